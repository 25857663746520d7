"""Classifiers of other families, read as BERTs, have the logits of transformers."""

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.support.families import save_family
from tinybert.config.tasks import Task
from tinybert.data.encoding import encode
from tinybert.data.tokenizer import load_tokenizer
from tinybert.models.model_folders import load_any_bert
from tinybert.models.outputs import Batch
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_json, write_json

TEXTS = ["old king", "fish", "a war of the"]  # RoBERTa's test tokenizer reads letters
PAIRS = [{"sentence1": first, "sentence2": second} for first, second in zip(TEXTS, TEXTS[::-1], strict=True)]
CHANGES = {"electra": {"embedding_size": 16}}
FAMILIES = ["bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra"]


def saved(family: str, folder):
    if family == "camembert":  # XLM-RoBERTa by another name
        save_family("xlm-roberta", folder)
        path = folder / "config.json"
        path.write_text(path.read_text().replace("xlm-roberta", "camembert").replace("XLMRoberta", "Camembert"))
        return folder
    return save_family(family, folder, **CHANGES.get(family, {}))


@pytest.mark.parametrize("columns", [("sentence1",), ("sentence1", "sentence2")])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(tmp_path, family, columns):
    folder = saved(family, tmp_path)
    model, tokenizer = load_any_bert(folder), load_tokenizer(folder)
    assert model.labels == ("no", "yes")
    batch = encode(PAIRS, Task("x", columns, model.labels, "x"), tokenizer, max_length_tokens=30).batch(range(3))
    assert not batch.mask.all()
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokens(*([row[name] for row in PAIRS] for name in columns), padding=True, return_tensors="pt")
    with torch.no_grad():
        expected, found = theirs(**inputs).logits.numpy(), model(batch).logits.numpy()
    assert np.abs(expected).max() > 0.05
    np.testing.assert_allclose(found, expected, atol=1e-5)


def change(folder, weights=lambda stored: stored, **changes):
    """Rewrites a folder with other weights and changes of config.json."""
    save_file(weights(load_file(folder / "model.safetensors")), folder / "model.safetensors", {"format": "pt"})
    write_json(folder / "config.json", read_json(folder / "config.json") | changes)
    return folder


def logits(model) -> np.ndarray:
    ids = torch.tensor([[0, 5, 6, 2], [0, 7, 2, 1]])
    with torch.no_grad():
        return model(Batch(ids, ids != 1, torch.tensor([[0, 0, 1, 1], [0, 0, 1, 0]]))).logits.numpy()


def test_a_pooler_that_the_head_does_not_read_is_ignored(tmp_path):
    folder = saved("roberta", tmp_path)
    expected = logits(load_any_bert(folder))
    others = {f"roberta.pooler.dense.{name}": torch.ones(size) for name, size in (("weight", (16, 16)), ("bias", 16))}
    assert np.array_equal(logits(load_any_bert(change(folder, lambda stored: stored | others))), expected)


def test_old_names_of_layer_norms_are_known(tmp_path):
    folder = saved("distilbert", tmp_path)
    expected = logits(load_any_bert(folder))

    def renamed(stored):
        return {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
                for name, tensor in stored.items()}  # fmt: skip

    assert np.array_equal(logits(load_any_bert(change(folder, renamed))), expected)


def test_trained_segments_are_kept(tmp_path):
    folder = save_family("roberta", tmp_path, type_vocab_size=2)
    table = load_any_bert(folder).bert.embeddings.token_type_embeddings.weight
    assert torch.equal(
        table, load_file(folder / "model.safetensors")["roberta.embeddings.token_type_embeddings.weight"]
    )


@pytest.mark.parametrize(
    ("family", "changes", "line"),
    [
        ("roberta", {"architectures": ["RobertaForMaskedLM"]}, "architectures: not supported here (got ['RobertaForM"),
        ("roberta", {"is_decoder": True}, "is_decoder: not supported (got True); allowed: False"),
        ("roberta", {"pad_token_id": "1"}, "pad_token_id: "),
        ("distilbert", {"activation": "relu"}, "activation: not supported (got 'relu'); allowed: gelu"),
    ],
)
def test_what_would_change_logits_is_refused(tmp_path, family, changes, line):
    with pytest.raises(UserError) as caught:
        load_any_bert(change(saved(family, tmp_path), **changes))
    assert str(caught.value).startswith(f"{tmp_path}/config.json: {line}")


def test_factorized_embeddings_are_refused(tmp_path):
    folder = save_family("electra", tmp_path)
    with pytest.raises(UserError, match=r"config.json: embedding_size: differs from hidden_size; allowed: equal sizes"):
        load_any_bert(folder)


def test_other_families_are_refused(tmp_path):
    folder = save_family("modernbert", tmp_path)
    with pytest.raises(UserError, match="model_type: not supported"):
        load_any_bert(folder)
