"""The stages evaluate and baselines: what the systems of a task cost, beside their scores."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from stages import baselines, evaluate
from tests.support.builders import STUDENT, TEACHER, classifier
from tests.support.fake_stage import FakeStage, enter_project, write_cola
from tinybert.data.tokenizer import load_tokenizer, save_tokenizer
from tinybert.models.model_folders import save_model
from tinybert.pipeline import paths

TEXTS = ("fish swim", "swim fish the", "the fish", "swim the", "fish the fish", "swim swim")


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A task teacher and a student of it, saved with their tokenizer and rows."""
    tokenizer = enter_project(tmp_path, monkeypatch, TEXTS)
    shapes = {"teacher": TEACHER, "small": STUDENT}
    found = {name: classifier(replace(shape, vocab_size=tokenizer.get_vocab_size())) for name, shape in shapes.items()}
    for name, model in found.items():
        folder = paths.task_model("cola", 1, name)
        folder.mkdir(parents=True, exist_ok=True)
        save_model(model, folder)
        save_tokenizer(tokenizer, folder)
    rows = [{"idx": idx, "sentence": text, "label": idx % 2} for idx, text in enumerate(TEXTS)]
    write_cola(rows, rows)
    return found


def stage(name: str, items: dict[str, str]) -> FakeStage:
    tasks = {"cola": SimpleNamespace(max_length_tokens=16)}
    return FakeStage(name, items, SimpleNamespace(seed=1, seeds=(1,), tasks=tasks))


def test_evaluate_writes_the_costs_of_teacher_and_student(models):
    run = stage("evaluate", {"task": "cola", "student": "small"})
    evaluate.main(run)
    metrics = run.metrics["cola-small/1"]
    assert set(metrics) == {"costs", "dev"}
    lengths = [len(load_tokenizer(paths.TOKENIZER).encode(text).ids) for text in TEXTS]
    for system, name in {"teacher": "teacher", "student": "small"}.items():
        flops = np.mean([models[name].flops(length) for length in lengths])
        assert metrics["costs"][system] == {"parameters": models[name].parameter_count, "flops": pytest.approx(flops)}


def test_baselines_write_their_costs(models):
    run = stage("baselines", {"task": "cola"})
    baselines.main(run)
    assert set(run.metrics) == {"cola-tfidf", "cola-static"}
    static, tfidf = (run.metrics[f"cola-{name}"]["costs"]["student"] for name in ("static", "tfidf"))
    vocabulary, width = models["teacher"].config.vocab_size, models["teacher"].config.hidden_size
    assert static["parameters"] == vocabulary * width + width + 1
    assert 0 < tfidf["flops"] < static["flops"]
