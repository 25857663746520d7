"""The stage finetune_teacher where the task teacher is there already."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from stages.finetune_teacher import main
from tests.support.builders import TEACHER, classifier
from tests.support.fake_stage import FakeStage, enter_project, write_cola
from tests.support.project import tiny_params, write_params
from tinybert.config.tasks import FineTuning, ReadyTeacher
from tinybert.models.model_folders import load_model, save_model
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import write_jsonl


class Tasks(dict):
    teacher_encoder = "pretrained"


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """The stage for CoLA in an empty project with tokenizer, rows and a model that calls every row acceptable."""
    write_params(tmp_path, tiny_params(heads=TEACHER.num_attention_heads))
    tokenizer = enter_project(tmp_path, monkeypatch, ["fish swim", "swim fish the"])
    rows = [{"idx": idx, "sentence": "fish swim the fish", "label": label} for idx, label in enumerate((1, 1, 0, 1))]
    write_cola(rows, rows)
    config = replace(TEACHER, vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=8)
    model = classifier(config, labels=("acceptable", "unacceptable"))
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor([5.0, -5.0]))
    (tmp_path / "ready").mkdir()
    save_model(model, "ready")
    teacher = SimpleNamespace(encoder=None)
    config = SimpleNamespace(max_length_tokens=16, finetuned_teacher=ReadyTeacher(folder="ready"), teacher=teacher)
    tasks = Tasks({"cola": config})
    return FakeStage("finetune_teacher", {"task": "cola"}, SimpleNamespace(seed=1, tasks=tasks))


def test_a_ready_teacher_is_taken_without_training_and_measured(stage):
    main(stage)
    assert stage.metrics["steps"] == 0 and stage.metrics["curve"] == [] and stage.metrics["loss"] == {}
    assert stage.metrics["dev"] == {"matthews": 0.0, "accuracy": 0.75}
    folder = paths.task_model("cola", 1, "teacher")
    teacher = load_model(folder)
    assert teacher.labels == ("unacceptable", "acceptable")
    assert teacher.classifier.bias.tolist() == [-5.0, 5.0]
    assert (folder / "tokenizer.json").is_file()
    assert stage.metrics["parameters"] == teacher.parameter_count


def test_rows_longer_than_a_ready_teacher_takes_are_refused(stage):
    write_jsonl(paths.task_rows("cola") / "train.jsonl", [{"idx": 0, "sentence": "fish swim " * 5, "label": 1}])
    with pytest.raises(UserError, match=r"tasks\.cola\.max_length_tokens: .*\(got 12 tokens\); allowed: at most 8"):
        main(stage)
    assert not paths.task_model("cola", 1, "teacher").exists()


def test_dev_rows_longer_than_the_positions_are_refused(stage):
    stage.params.tasks["cola"].finetuned_teacher = None
    paths.TEACHER.parent.mkdir(exist_ok=True)
    Path("ready").rename(paths.TEACHER)
    write_jsonl(paths.task_rows("cola") / "dev.jsonl", [{"idx": 0, "sentence": "fish swim " * 5, "label": 1}])
    with pytest.raises(UserError, match=r"tasks\.cola\.max_length_tokens: .*\(got 12 tokens\); allowed: at most 8"):
        main(stage)


def test_a_ready_teacher_must_fit_the_students(stage):
    write_params(Path(), tiny_params(heads=2))  # whose students' attention has no third head
    with pytest.raises(UserError, match=r"students\.tinybert4\.intermediate\.losses\.attention: .* 2 he"):
        main(stage)
    assert not paths.task_model("cola", 1, "teacher").exists()


@pytest.mark.parametrize(("of_all", "of_task"), [("given", None), ("pretrained", "given")])
def test_a_task_teacher_starts_from_the_encoder_that_params_name(stage, of_all, of_task):
    """With 0 epochs the encoder stays as it was loaded: that of `given`, not that of the pretrained teacher."""
    stage.params.tasks["cola"].finetuned_teacher = None
    training = {"epochs": 0, "max_steps": None, "batch_size": 2, "learning_rate": 1e-3, "encoder": of_task}
    stage.params.tasks["cola"].teacher = FineTuning(**training)
    stage.params.tasks.teacher_encoder = of_all
    stage.params.teacher = SimpleNamespace(source="local", local=SimpleNamespace(folder="ready"))
    stage.params.precision, stage.params.optimizer = "float32", None
    main(stage)
    given, found = (load_model(folder) for folder in ("ready", paths.task_model("cola", 1, "teacher")))
    assert all(torch.equal(weight, given.bert.state_dict()[name]) for name, weight in found.bert.state_dict().items())
    assert not paths.TEACHER.exists() and not torch.equal(found.classifier.bias, given.classifier.bias)
