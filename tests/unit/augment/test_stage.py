"""The stage's two strategies with the shipped params."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from stages import augment
from tests.support.project import ROOT
from tinybert.augment.substitution import read_sentences
from tinybert.augment.word_vectors import WordVectors
from tinybert.config.load import load_params
from tinybert.config.schema import Sampling
from tinybert.config.tasks import TASKS
from tinybert.data.encoding import encode
from tinybert.data.tokenizer import train_tokenizer
from tinybert.distill.resume import Checkpoint
from tinybert.models.bert import BertConfig, MaskedLM
from tinybert.pipeline import paths

ROWS = [
    {"sentence": "Seven brown horses crossed old wooden bridges.", "label": 1, "idx": 0},
    {"sentence": "Black birds saw the rivers near green fields.", "label": 0, "idx": 1},
]


@pytest.fixture
def params(monkeypatch):
    monkeypatch.chdir(ROOT)
    return load_params()


@pytest.fixture
def inputs(monkeypatch):
    """The rows, teacher, tokenizer and vectors of earlier stages."""
    tokenizer = train_tokenizer([row["sentence"] for row in ROWS] * 3, vocabulary_size=150)
    torch.manual_seed(0)
    model = MaskedLM(BertConfig(tokenizer.get_vocab_size(), 12, 1, 3, 24))
    monkeypatch.setattr(augment, "read_task", TASKS.__getitem__)
    monkeypatch.setattr(augment, "read_rows", lambda task, split: ROWS)
    monkeypatch.setattr(augment, "read_jsonl", lambda path: [])
    monkeypatch.setattr(augment, "load_bert", lambda kind, folder: model)
    monkeypatch.setattr(augment, "load_tokenizer", lambda folder: tokenizer)
    monkeypatch.setattr(augment, "word_vectors", lambda *_, seed: WordVectors(["a", "b"], np.eye(2)))


class Resumed(Checkpoint):
    """A checkpoint of a run that was interrupted after seven seconds."""

    def __init__(self, *args):
        super().__init__(*args)
        self.earlier_seconds = 7.0


def augmented(params, monkeypatch, folder):
    """What the stage writes, and its metrics."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(augment, "Checkpoint", Resumed)
    written, metrics = [], {}
    monkeypatch.setattr(augment, "write_jsonl", lambda path, rows: written.extend(rows))
    identity = {"name": "augment", "items": {"task": "cola"}, "fingerprint": lambda: lambda: "run"}
    stage = SimpleNamespace(params=Declared(params), write_metrics=metrics.update, **identity)
    augment.main(stage)
    assert stage.earlier_seconds == 7.0
    return written, metrics


@pytest.mark.parametrize("strategy", ["substitution", "sampling"])
@pytest.mark.parametrize("copies", [0, 7])
def test_each_strategy_makes_as_many_copies_as_params_say(strategy, copies, params, inputs, monkeypatch, tmp_path):
    params.augmentation.__dict__["strategy"] = strategy
    params.tasks.cola.__dict__["augmented_copies"] = copies
    written, metrics = augmented(params, monkeypatch, tmp_path)
    assert [row for row in written if "augmented" not in row] == ROWS
    assert metrics == {"original": 2, "augmented": len(written)}
    assert len(written) == 2 if copies == 0 else 2 < len(written) <= 2 * (1 + copies)


def test_substitution_reads_its_settings(params, inputs, monkeypatch, tmp_path):
    def record(*given, **named):
        asked.update(named)
        return read_sentences(*given, **named)

    asked = {}
    params.augmentation.substitution.__dict__.update(probability=0.0, stop_words="off")
    monkeypatch.setattr(augment, "read_sentences", record)
    assert augmented(params, monkeypatch, tmp_path)[0] == ROWS
    assert asked == {"max_tokens": params.tasks.cola.max_length_tokens - 2, "unchanged": frozenset()}


def test_unlabeled_rows_are_added_as_rows_without_a_gold_label(params, inputs, monkeypatch, tmp_path):
    params.tasks.cola.__dict__["augmented_copies"] = 0
    new = {"sentence": "A new text.", "idx": 0}
    monkeypatch.setattr(augment, "read_jsonl", lambda path: [new] if path == paths.unlabeled("cola") else [])
    written, metrics = augmented(params, monkeypatch, tmp_path)
    assert written[:2] == ROWS and metrics == {"original": 2, "augmented": 2}
    assert written[2]["sentence"] == "A new text." and written[2]["augmented"] is True
    tokenizer = train_tokenizer([row["sentence"] for row in written] * 3, vocabulary_size=150)
    assert encode(written, TASKS["cola"], tokenizer, max_length_tokens=16).varied.tolist() == [False, False, True]


class Declared:
    """Params whose tasks are read by name, as StageParams'."""

    def __init__(self, params):
        self.params = params

    def __getattr__(self, name):
        return self.params.tasks.model_extra if name == "tasks" else getattr(self.params, name)


def test_probabilities_above_one_together_are_an_error(params):
    values = params.augmentation.sampling.model_dump() | {"mask_probability": 0.7, "replacement_probability": 0.4}
    with pytest.raises(ValidationError, match=r"mask_probability \+ replacement_probability must be at most 1"):
        Sampling(**values)
