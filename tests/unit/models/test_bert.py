"""Our BERT against Hugging Face's, its parameter counts, and what it does not compute."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.builders import STUDENT, TEACHER, batch, classifier, masked_lm
from tinybert.models.bert import Bert, BertConfig, MaskedLM, SequenceClassifier
from tinybert.models.checkpoints import load_bert, load_classifier, load_model, load_task_model, save_model
from tinybert.models.outputs import OutputSpec, RealTokens
from tinybert.pipeline.errors import UserError

EVERYTHING = OutputSpec(frozenset(range(3)), frozenset({1, 2}))

HUGGING_FACE = """
import sys, numpy as np, torch
from transformers import BertForMaskedLM, BertForSequenceClassification
folder = sys.argv[1]
data = np.load(folder + "/batch.npz")
ids, mask = torch.tensor(data["ids"]), torch.tensor(data["mask"]).long()
lm = BertForMaskedLM.from_pretrained(folder + "/lm", attn_implementation="eager").eval()
head = BertForSequenceClassification.from_pretrained(folder + "/classifier").eval()
with torch.no_grad():
    out = lm(ids, mask, output_hidden_states=True, output_attentions=True)
    logits = head(ids, mask).logits
np.savez(folder + "/out.npz", logits=out.logits, classes=logits, *[h for h in out.hidden_states], **{
    f"attention_{n}": a for n, a in enumerate(out.attentions, start=1)})
"""


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory):
    """Outputs of transformers' classes, in a process of its own, from folders that we wrote."""
    folder = tmp_path_factory.mktemp("models")
    for name, model in (("lm", masked_lm()), ("classifier", classifier())):
        (folder / name).mkdir()
        save_model(model, folder / name)
    example = batch()
    np.savez(folder / "batch.npz", ids=example.input_ids.numpy(), mask=example.mask.numpy())
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", HUGGING_FACE, folder], check=True, capture_output=True, env=environment)
    return folder, np.load(folder / "out.npz")


def test_masked_lm_equals_hugging_face(hugging_face):
    folder, theirs = hugging_face
    example = batch()
    example = replace(example, positions=example.mask.flatten().nonzero().flatten())
    ours = load_model(folder / "lm")(example, EVERYTHING)
    real = example.mask.numpy()
    assert ours.logits.detach().numpy() == pytest.approx(theirs["logits"][real], abs=1e-5)
    for layer in range(3):
        assert ours.hidden[layer].detach().numpy() == pytest.approx(theirs[f"arr_{layer}"][real], abs=1e-5)


def test_softmax_of_our_scores_is_hugging_faces_attention(hugging_face):
    folder, theirs = hugging_face
    example = batch(positions=torch.arange(2))
    scores = load_model(folder / "lm")(example, EVERYTHING).scores
    queries = np.broadcast_to(example.mask.numpy()[:, None, :, None], (3, 3, 7, 7))
    for layer in (1, 2):
        masked = scores[layer].masked_fill(~example.mask[:, None, None, :], -torch.inf).softmax(-1)
        found, expected = masked.detach().numpy()[queries], theirs[f"attention_{layer}"][queries]
        assert found == pytest.approx(expected, abs=1e-5)


def test_classifier_equals_hugging_face(hugging_face):
    folder, theirs = hugging_face
    ours = load_model(folder / "classifier")(batch()).logits
    assert ours.detach().numpy() == pytest.approx(theirs["classes"], abs=1e-5)


def test_scores_are_q_times_k_over_root_d_from_the_weights():
    model, example = masked_lm(), batch(positions=torch.arange(1))
    found = model(example, OutputSpec(frozenset({0}), frozenset({1})))
    layer = model.bert.encoder.layer[0].attention.self
    lengths = example.mask.sum(1).tolist()
    states = found.hidden[0].detach().double().numpy()
    weights = {name: part.detach().double().numpy() for name, part in layer.named_parameters()}
    query = states @ weights["query.weight"].T + weights["query.bias"]
    key = states @ weights["key.weight"].T + weights["key.bias"]
    for head in range(3):
        columns = slice(4 * head, 4 * head + 4)
        rows = (np.split(part[:, columns], np.cumsum(lengths)[:-1]) for part in (query, key))
        for row, (queries, keys) in enumerate(zip(*rows, strict=True)):
            scores = found.scores[1][row, head, : lengths[row], : lengths[row]]
            assert scores.detach().numpy() == pytest.approx(queries @ keys.T / np.sqrt(4), abs=1e-6)


def test_queries_keys_and_values_are_those_of_the_weights():
    model, example = masked_lm(), batch(positions=torch.arange(1))
    found = model(example, OutputSpec(frozenset({0}), qkv=frozenset({1})))
    layer = model.bert.encoder.layer[0].attention.self
    for name, part in (("query", found.queries), ("key", found.keys), ("value", found.values)):
        expected = found.hidden[0] @ getattr(layer, name).weight.T + getattr(layer, name).bias
        assert torch.allclose(part[1], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [((30522, 312, 4, 12, 1200), 14_350_248), ((30522, 768, 12, 12, 3072), 109_482_240)],
    ids=["tinybert4", "bert-base"],
)
def test_published_parameter_counts_with_pooler(shape, parameters):
    with torch.device("meta"):
        model = Bert(BertConfig(*shape))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_wider_padding_changes_nothing():
    model = masked_lm()
    # the first token of each row, where padding puts it
    narrow, wide = (
        model(batch(width=width, positions=torch.arange(3) * width), replace(EVERYTHING, qkv=frozenset({1, 2})))
        for width in (7, 20)
    )
    real = batch().mask
    pairs = (real[:, :, None] & real[:, None, :])[:, None].expand(-1, 3, -1, -1)
    for layer in range(3):
        assert torch.allclose(narrow.hidden[layer], wide.hidden[layer], atol=1e-6)
    for layer in (1, 2):
        assert torch.allclose(narrow.scores[layer][pairs], wide.scores[layer][..., :7, :7][pairs], atol=1e-6)
        for part in ("queries", "keys", "values"):
            assert torch.allclose(getattr(narrow, part)[layer], getattr(wide, part)[layer], atol=1e-6)
    assert torch.allclose(narrow.logits, wide.logits, atol=1e-6)


def test_what_padding_holds_changes_nothing():
    model, plain = classifier(), batch()
    nonsense = replace(plain, input_ids=plain.input_ids.masked_fill(~plain.mask, 17))
    assert torch.equal(model(plain).logits, model(nonsense).logits)


def test_real_tokens_find_their_way_out_of_padding_and_back():
    mask = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
    real, rows = RealTokens(mask), torch.arange(18.0).view(3, 3, 2)
    tokens = real.unpad(rows)
    assert tokens[:, 0].tolist() == [0, 2, 6, 12, 14, 16]
    assert torch.equal(real.pad(tokens), rows * mask[..., None])
    assert real.first(tokens)[:, 0].tolist() == [0, 6, 12]
    assert real.columns.tolist() == [0, 1, 0, 0, 1, 2]
    assert real.rows.tolist() == [0, 0, 1, 2, 2, 2]
    assert real.at(tokens, torch.tensor([7, 1, 3]))[:, 0].tolist() == [14, 2, 6]


def test_nothing_above_the_highest_wanted_layer_is_computed():
    model = masked_lm(TEACHER)
    calls = []
    for number, layer in enumerate(model.bert.encoder.layer, start=1):
        for part in (layer.attention.self.value, layer.output):
            part.register_forward_hook(lambda *_, number=number: calls.append(number))
    model(batch(), OutputSpec(frozenset({2}), frozenset({1}), logits=False))
    assert calls == [1, 1, 2, 2]
    calls.clear()
    model(batch(), OutputSpec(frozenset({1}), frozenset({3}), logits=False))
    assert calls == [1, 1, 2, 2]  # of layer 3 the scores alone, from its queries and keys
    calls.clear()
    found = model(batch(), OutputSpec(qkv=frozenset({2}), logits=False))
    assert calls == [1, 1, 2]  # of layer 2 the values, but no output
    assert [set(part) for part in (found.queries, found.keys, found.values, found.hidden)] == [{2}, {2}, {2}, set()]


def test_scores_alone_equal_those_of_a_whole_layer():
    model, example = masked_lm(), batch(positions=torch.arange(1))
    alone = model(example, OutputSpec(scores=frozenset({2}), logits=False)).scores[2]
    assert torch.allclose(alone, model(example, EVERYTHING).scores[2], atol=1e-6)


def test_a_classifier_takes_the_encoder_and_draws_a_new_head(tmp_path):
    save_model(masked_lm(), tmp_path)
    torch.manual_seed(1)
    model = load_classifier(tmp_path, ("a", "b", "c"), pair=False)
    ours, theirs = model.state_dict(), masked_lm().state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours if name.startswith("bert."))
    assert ours["classifier.weight"].shape == (3, 12)
    assert ours["classifier.weight"].std() > 0.005


def test_unusable_folders_are_told_apart(tmp_path):
    with pytest.raises(UserError, match=r"config\.json: absent"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}')
    with pytest.raises(UserError, match="model_type is 'gpt2'"):
        load_model(tmp_path)
    save_model(masked_lm(), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors: absent"):
        load_model(tmp_path)


def test_a_model_of_another_kind_is_refused(tmp_path):
    for kind, model in (("lm", masked_lm()), ("classifier", classifier())):
        (tmp_path / kind).mkdir()
        save_model(model, tmp_path / kind)
    assert isinstance(load_bert(MaskedLM, tmp_path / "lm"), MaskedLM)
    assert isinstance(load_task_model(tmp_path / "classifier"), SequenceClassifier)
    with pytest.raises(UserError, match="classifier: holds a BertForSequenceClassification, a BertForMaskedLM is need"):
        load_bert(MaskedLM, tmp_path / "classifier")
    with pytest.raises(UserError, match="lm: holds a BertForMaskedLM, a classifier is needed"):
        load_task_model(tmp_path / "lm")


def test_a_folder_without_all_weights_is_refused(tmp_path):
    save_model(classifier(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file(
        {name: part for name, part in weights.items() if "classifier" not in name}, tmp_path / "model.safetensors"
    )
    with pytest.raises(UserError, match=r"lacks classifier\.bias and 1 more weights"):
        load_model(tmp_path)
    model = load_classifier(tmp_path, ("a", "b"), pair=False)  # which gets a new head
    assert torch.equal(model.bert.pooler.dense.weight, weights["bert.pooler.dense.weight"])


def test_damaged_folders_have_one_line(tmp_path):
    save_model(masked_lm(), tmp_path)
    config = (tmp_path / "config.json").read_text()
    for text, named in (
        (config[:40], "no JSON"),
        (config.replace('"hidden_size": 12', '"hidden_size": "x"'), "hidden_size is 'x'; a number is needed"),
        (config.replace('"hidden_size": 12', '"hidden_size": 24'), "has shape"),
        (config.replace('"BertForMaskedLM"', ""), "architecture None cannot be used"),
    ):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match=named) as error:
            load_model(tmp_path)
        assert "\n" not in str(error.value)
    (tmp_path / "config.json").write_text(config)
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[:100])
    with pytest.raises(UserError, match="no whole safetensors file"):
        load_model(tmp_path)


def test_a_shape_that_no_pair_of_sentences_fits_is_refused():
    with pytest.raises(UserError, match="type_vocab_size 1; pairs of sentences need 2 segments"):
        replace(STUDENT, type_vocab_size=1)
    with pytest.raises(UserError, match="pad_token_id 50 is no piece of a vocabulary of 50"):
        replace(STUDENT, pad_token_id=50)


def test_heads_must_divide_the_width():
    with pytest.raises(UserError, match="width 10 is no multiple of 3 heads"):
        BertConfig(50, 10, 2, 3, 24)


def test_rows_of_a_layer_equal_those_of_the_full_layer():
    layer, example = masked_lm().bert.encoder.layers[0], batch((7, 1, 5))
    hidden = torch.randn(13, 12, generator=torch.Generator().manual_seed(3))
    full = layer(hidden, example.real).hidden
    for rows in ([0, 7, 8], [6, 7, 10]):
        found = layer(hidden, example.real, rows=torch.tensor(rows)).hidden
        assert torch.allclose(found, full[rows], atol=1e-6)


def test_a_classifier_reads_only_the_first_token_of_the_last_layer():
    model, example = classifier(), batch()
    computed = []
    model.bert.encoder.layers[-1].output.register_forward_hook(lambda *call: computed.append(len(call[-1])))
    found = model(example, OutputSpec(only_first=True)).logits
    assert torch.allclose(found, model(example).logits, atol=1e-6)
    assert computed == [3, 16]
