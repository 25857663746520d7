"""The stage's two strategies with the shipped params."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from stages.augment import STRATEGIES
from tests.support.project import ROOT
from tinybert.augment.word_vectors import WordVectors
from tinybert.config.load import StageParams, load_params
from tinybert.config.schema import Augmentation, Sampling
from tinybert.data.tasks import TASKS
from tinybert.data.tokenizer import train_tokenizer
from tinybert.distill.resume import Checkpoint
from tinybert.models.bert import BertConfig, MaskedLM

ROWS = [
    {"sentence": "Seven brown horses crossed old wooden bridges.", "label": 1, "idx": 0},
    {"sentence": "Black birds saw the rivers near green fields.", "label": 0, "idx": 1},
]
DECLARED = ["seed", "precision", "augmentation", "tasks.cola.max_length_tokens", "tasks.cola.augmented_copies"]


@pytest.fixture
def params(monkeypatch):
    monkeypatch.chdir(ROOT)
    return load_params()


@pytest.fixture
def parts(monkeypatch):
    """The teacher, the tokenizer and the vectors that earlier stages would leave."""
    tokenizer = train_tokenizer([row["sentence"] for row in ROWS] * 3, vocabulary_size=150)
    torch.manual_seed(0)
    model = MaskedLM(BertConfig(tokenizer.get_vocab_size(), 12, 1, 3, 24))
    vectors = WordVectors(["a", "b"], np.eye(2))
    monkeypatch.setattr("tinybert.models.checkpoints.load_model", lambda folder: model)
    monkeypatch.setattr("tinybert.data.tokenizer.load_tokenizer", lambda folder: tokenizer)
    monkeypatch.setattr("tinybert.augment.word_vectors.word_vectors", lambda settings, corpus, seed: vectors)


@pytest.mark.parametrize("strategy", ["substitution", "sampling"])
def test_each_strategy_varies_as_many_copies_as_params_say(strategy, params, parts, tmp_path):
    checkpoint = Checkpoint(tmp_path, lambda: "run")
    rows = STRATEGIES[strategy](ROWS, TASKS["cola"], StageParams(params, DECLARED), checkpoint)
    assert [row for row in rows if "augmented" not in row] == ROWS
    copies = params.tasks.cola.augmented_copies
    assert len(ROWS) < len(rows) <= len(ROWS) * (1 + copies)


def test_the_strategies_are_those_that_params_may_name():
    assert set(STRATEGIES) == set(Augmentation.model_fields["strategy"].annotation.__args__)


def test_probabilities_above_one_together_are_refused(params):
    values = params.augmentation.sampling.model_dump() | {"mask_probability": 0.7, "replacement_probability": 0.4}
    with pytest.raises(ValidationError, match=r"mask_probability \+ replacement_probability must be at most 1"):
        Sampling(**values)
