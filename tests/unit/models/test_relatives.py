"""Classifiers of other families, read as BERTs, have the logits of transformers."""

import numpy as np
import pytest
import torch
import transformers

from tests.support.families import save_family
from tinybert.config.tasks import Task
from tinybert.data.encoding import encode
from tinybert.data.tokenizer import load_tokenizer
from tinybert.models.model_folders import load_relative
from tinybert.pipeline.errors import UserError

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
    model, tokenizer = load_relative(folder), load_tokenizer(folder)
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


def test_factorized_embeddings_are_refused(tmp_path):
    folder = save_family("electra", tmp_path)
    with pytest.raises(UserError, match=r"config.json: embedding_size: differs from hidden_size; allowed: equal sizes"):
        load_relative(folder)


def test_other_families_are_refused(tmp_path):
    folder = save_family("modernbert", tmp_path)
    with pytest.raises(UserError, match="model_type: not supported"):
        load_relative(folder)
