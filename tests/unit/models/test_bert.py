"""Our BERT against Hugging Face's, its parameter counts, and what it does not compute."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from tests.support.builders import STUDENT, TEACHER, batch, classifier, masked_lm
from tinybert.models import bert
from tinybert.models.bert import Bert, BertConfig, SelfAttention, SequenceClassifier, dropout
from tinybert.models.model_folders import load_model, save_model
from tinybert.models.outputs import Batch, OutputSpec
from tinybert.pipeline.errors import UserError

EVERYTHING = OutputSpec(frozenset(range(3)), frozenset({1, 2}))


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory):
    """A folder with two models that we wrote, and what transformers' classes return for them."""
    from transformers import BertForMaskedLM, BertForSequenceClassification

    folder, example = tmp_path_factory.mktemp("models"), batch()
    for name, model in (("lm", masked_lm()), ("classifier", classifier())):
        (folder / name).mkdir()
        save_model(model, folder / name)
    lm = BertForMaskedLM.from_pretrained(folder / "lm", attn_implementation="eager").eval()
    head = BertForSequenceClassification.from_pretrained(folder / "classifier").eval()
    ids, mask = example.input_ids, example.mask.long()
    with torch.no_grad():
        return folder, lm(ids, mask, output_hidden_states=True, output_attentions=True), head(ids, mask).logits


def test_masked_lm_equals_hugging_face(hugging_face):
    folder, theirs, _ = hugging_face
    example = batch()
    example = replace(example, positions=example.mask.flatten().nonzero().flatten())
    ours = load_model(folder / "lm")(example, EVERYTHING)
    real = example.mask.numpy()
    assert ours.logits.detach().numpy() == pytest.approx(theirs.logits.numpy()[real], abs=1e-5)
    for layer in range(3):
        assert ours.hidden[layer].detach().numpy() == pytest.approx(theirs.hidden_states[layer].numpy()[real], abs=1e-5)


def test_softmax_of_our_scores_is_hugging_faces_attention(hugging_face):
    folder, theirs, _ = hugging_face
    example = batch(positions=torch.arange(2))
    scores = load_model(folder / "lm")(example, EVERYTHING).scores
    queries = np.broadcast_to(example.mask.numpy()[:, None, :, None], (3, 3, 7, 7))
    for layer in (1, 2):
        masked = scores[layer].masked_fill(~example.mask[:, None, None, :], -torch.inf).softmax(-1)
        found, expected = masked.detach().numpy()[queries], theirs.attentions[layer - 1].numpy()[queries]
        assert found == pytest.approx(expected, abs=1e-5)


def test_classifier_equals_hugging_face(hugging_face):
    folder, _, theirs = hugging_face
    ours = load_model(folder / "classifier")(batch()).logits
    assert ours.detach().numpy() == pytest.approx(theirs.numpy(), abs=1e-5)


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


@pytest.mark.parametrize(("tokens", "is_fused"), [(128, False), (129, True)])
def test_fused_and_explicit_attention_agree_with_gradients(tokens, is_fused, monkeypatch):
    torch.manual_seed(0)
    attention, lengths = SelfAttention(STUDENT).eval(), torch.tensor([tokens, tokens // 2, 1])
    mask = (torch.arange(tokens) < lengths[:, None])[:, None, None, :]
    inputs, scale = torch.randn(3, 3, tokens, 12), torch.randn(3, tokens, 12)
    calls, fused_kernel = [], F.scaled_dot_product_attention

    def kernel(*tensors, **options):
        calls.append(options)
        return fused_kernel(*tensors, **options)

    def context_and_gradients():
        parts = [part.clone().requires_grad_() for part in inputs]
        context = attention(*parts, mask, None)
        (context * scale).sum().backward()
        return [context.detach(), *(part.grad for part in parts)]

    monkeypatch.setattr(F, "scaled_dot_product_attention", kernel)
    chosen = context_and_gradients()
    assert len(calls) == is_fused
    monkeypatch.setattr(bert, "FUSED_FROM_TOKENS", tokens + 1 if is_fused else 0)
    other = context_and_gradients()
    assert len(calls) == 1
    for ours, theirs in zip(chosen, other, strict=True):
        assert ours.abs().max() > 0.1
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    padding = ~mask[:, 0, 0]
    assert not any(gradient[padding].any() for gradient in chosen[2:])  # of keys and values


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [((30522, 312, 4, 12, 1200), 14_350_248), ((30522, 768, 12, 12, 3072), 109_482_240)],
    ids=["tinybert4", "bert-base"],
)
def test_published_parameter_counts_with_pooler(shape, parameters):
    with torch.device("meta"):
        model = Bert(BertConfig(*shape))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize(
    ("shape", "labels"),
    [((30522, 312, 4, 12, 1200), 2), ((30522, 768, 12, 12, 3072), 3)],
    ids=["tinybert4", "bert-base"],
)
def test_flops_are_those_that_pytorch_counts_in_hugging_face(shape, labels):
    from transformers import BertConfig as TheirConfig
    from transformers import BertForSequenceClassification

    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    config = TheirConfig(**dict(zip(names, shape, strict=True)), num_labels=labels, attn_implementation="eager")
    with torch.device("meta"):
        theirs = BertForSequenceClassification(config).eval()
        ours = SequenceClassifier(BertConfig(*shape), tuple("abc"[:labels]))
        for tokens in (1, 11, 128):
            with FlopCounterMode(display=False) as counted:
                theirs(torch.ones(1, tokens, dtype=torch.long))
            assert ours.flops(tokens) == counted.get_total_flops() > 0


def test_wider_padding_changes_nothing():
    model = masked_lm()
    # the first token of each row, where padding puts it
    narrow, wide = (model(batch(width=width, positions=torch.arange(3) * width), EVERYTHING) for width in (7, 20))
    real = batch().mask
    pairs = (real[:, :, None] & real[:, None, :])[:, None].expand(-1, 3, -1, -1)
    for layer in range(3):
        assert torch.allclose(narrow.hidden[layer], wide.hidden[layer], atol=1e-6)
    for layer in (1, 2):
        assert torch.allclose(narrow.scores[layer][pairs], wide.scores[layer][..., :7, :7][pairs], atol=1e-6)
    assert torch.allclose(narrow.logits, wide.logits, atol=1e-6)


def test_what_padding_holds_changes_nothing():
    model, plain = classifier(), batch()
    nonsense = replace(plain, input_ids=plain.input_ids.masked_fill(~plain.mask, 17))
    assert torch.equal(model(plain).logits, model(nonsense).logits)


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


def test_scores_alone_equal_those_of_a_whole_layer():
    model, example = masked_lm(), batch(positions=torch.arange(1))
    alone = model(example, OutputSpec(scores=frozenset({2}), logits=False)).scores[2]
    assert torch.allclose(alone, model(example, EVERYTHING).scores[2], atol=1e-6)


def test_shapes_that_do_not_fit_pairs_are_rejected():
    with pytest.raises(UserError, match=r"^type_vocab_size: must be 2 or more, .* \(got 1\)"):
        replace(STUDENT, type_vocab_size=1)
    with pytest.raises(UserError, match=r"^pad_token_id: must be below vocab_size \(got 50\)"):
        replace(STUDENT, pad_token_id=50)


def test_heads_must_divide_the_width():
    with pytest.raises(UserError, match=r"^num_attention_heads: must divide hidden_size \(got 3\)"):
        BertConfig(50, 10, 2, 3, 24)


def test_rows_of_a_layer_equal_those_of_the_full_layer():
    layer, example = masked_lm().bert.encoder.layer[0], batch((7, 1, 5))
    hidden = torch.randn(13, 12, generator=torch.Generator().manual_seed(3))
    full = layer(hidden, example.real)["hidden"]
    for places, rows in (([0, 7, 14], [0, 7, 8]), ([2, 6, 7, 15, 16], [2, 6, 7, 9, 10]), ([1, 3], [1, 3])):
        found = layer(hidden, example.real, only=example.real.tokens_at(torch.tensor(places)))["hidden"]
        assert torch.allclose(found, full[rows], atol=1e-6)


@pytest.mark.parametrize("lengths", [(7, 4, 5), (8, 8, 8)])
@pytest.mark.parametrize(("build", "read"), [(classifier, None), (masked_lm, [1, 3, 6, 17])])
def test_the_last_layer_computes_only_what_the_head_reads(build, read, lengths):
    places = None if read is None else torch.tensor(read)
    model, example = build().double(), replace(batch(lengths, width=8), positions=places)
    computed = []
    model.bert.encoder.layer[-1].output.register_forward_hook(lambda *call: computed.append(call[-1]))
    gradients = []
    for spec in (OutputSpec(), EVERYTHING):
        model.zero_grad()
        logits = model(example, spec).logits
        logits.square().sum().backward()
        gradients.append([logits, *(weight.grad for weight in model.parameters())])
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-9)
    # Of all 24 places: padding up to a multiple of 64 or its end is computed too.
    assert [len(states.flatten(0, -2)) for states in computed] == [len(read or lengths), 24]


def test_tokens_are_a_multiple_and_outputs_are_of_real_ones():
    """The numbers of tokens of products repeat, and no output changes."""
    lengths = (30, 20, 25)
    example, spec = batch(lengths, width=60), OutputSpec(frozenset({0, 1, 2}), frozenset({1}))
    model, computed = classifier(replace(STUDENT, max_position_embeddings=60)), []
    model.bert.encoder.layer[0].output.register_forward_hook(lambda *call: computed.append(len(call[-1])))
    found = model(example, spec)
    assert computed == [128]
    assert {len(states) for states in found.hidden.values()} == {75}
    for row, length in enumerate(lengths):
        alone = model(batch_rows(example, row, length), spec)
        start = sum(lengths[:row])
        for layer, states in found.hidden.items():
            torch.testing.assert_close(states[start : start + length], alone.hidden[layer], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(found.logits[row], alone.logits[0], atol=1e-5, rtol=1e-4)


def batch_rows(example, row, length):
    """One row without padding."""
    return Batch(*(part[row : row + 1, :length] for part in (example.input_ids, example.mask, example.token_type_ids)))


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_values_are_dropped_at_random_and_the_mean_stays(probability):
    torch.manual_seed(0)
    values = torch.full((1001, 999), 3.0)
    found = dropout(values, probability)
    assert (found == 0).double().mean().item() == pytest.approx(probability, abs=0.002)
    assert found[found != 0].unique().tolist() == pytest.approx([3 / (1 - probability)], rel=1e-4)
    assert found.double().mean().item() == pytest.approx(3.0, abs=0.01)
    zeros = (found == 0).double()
    for neighbor in (zeros[:, 1:], zeros[:, 4:]):  # four values come from one random number
        pair = torch.stack([zeros[:, : neighbor.shape[1]].flatten(), neighbor.flatten()])
        assert abs(torch.corrcoef(pair)[0, 1]) < 0.005


def test_the_gradient_is_that_of_what_was_kept():
    torch.manual_seed(0)
    values = torch.ones(50, 7, requires_grad=True)
    found = dropout(values, 0.3)
    found.sum().backward()
    assert torch.equal(values.grad, found.detach())


def test_the_seed_decides():
    values, found = torch.ones(40), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(dropout(values, 0.5))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_nothing_is_dropped_without_need():
    values = torch.ones(9)
    assert dropout(values, 0.0) is values
    assert dropout(values, 0.9, training=False) is values


def test_half_precision_stays_half_precision():
    assert dropout(torch.ones(8, dtype=torch.bfloat16), 0.1).dtype == torch.bfloat16
