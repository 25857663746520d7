"""The stage finetune_student: as many steps as task distillation has, on the rows that are not augmented."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from stages import finetune_student
from tests.support.builders import TEACHER, classifier
from tests.support.fake_stage import FakeStage, enter_project, write_cola
from tinybert.config.fields import Training
from tinybert.data.tokenizer import save_tokenizer
from tinybert.distill.task_teacher import TaskTeacher
from tinybert.models.bert import MaskedLM
from tinybert.models.model_folders import save_model
from tinybert.pipeline import paths
from tinybert.pipeline.files import write_json, write_jsonl

TEXTS = ("fish swim", "swim fish the", "the fish", "swim the", "fish the fish")


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Rows, training settings and checkpoint folder of each run that the stage starts, without training anything."""
    tokenizer = enter_project(tmp_path, monkeypatch, TEXTS)
    config = replace(TEACHER, vocab_size=tokenizer.get_vocab_size())
    save_model(classifier(config), paths.task_model("cola", 1, "teacher"))
    save_tokenizer(tokenizer, paths.task_model("cola", 1, "teacher"))
    save_model(MaskedLM(config), paths.general_student("small"))
    rows = [{"idx": idx, "sentence": text, "label": idx % 2} for idx, text in enumerate(TEXTS)]
    write_cola(rows, rows)
    # 5 rows and 6 augmented ones.
    write_jsonl(paths.augmented("cola"), rows + [row | {"augmented": True} for row in [*rows, rows[0]]])
    found = []

    def record(student, loss, batches, settings, *, run):
        found.append((batches, settings, run.checkpoint.folder))

    monkeypatch.setattr(finetune_student, "train", record)
    return found


class Tasks(dict):
    __getattr__ = dict.__getitem__


def stage_of(*phases: Training) -> FakeStage:
    write_json(paths.trainings("cola", "small"), [phase.model_dump() for phase in phases])
    tasks = Tasks(cola=SimpleNamespace(max_length_tokens=16))
    params = SimpleNamespace(seed=1, seeds=(1, 2), tasks=tasks, optimizer=None, precision="float32")
    return FakeStage("finetune_student", {"task": "cola", "student": "small"}, params)


def training(epochs: int, batch_size: int, max_steps: int | None = None) -> Training:
    return Training(epochs=epochs, max_steps=max_steps, batch_size=batch_size, learning_rate=1e-3)


@pytest.mark.parametrize(
    ("phases", "steps"),
    [
        ([training(3, 4), training(2, 2)], 3 * 3 + 2 * 6),  # 11 rows are 3 batches of 4, 6 batches of 2
        ([training(3, 4, max_steps=5), training(2, 2)], 5 + 2 * 6),
        ([training(2, 2)], 2 * 6),
        ([training(0, 4), training(2, 2, max_steps=7)], 7),
    ],
)
def test_it_has_the_steps_of_both_phases_and_no_augmented_rows(runs, phases, steps):
    stage = stage_of(*phases)
    finetune_student.main(stage)
    assert [settings.seed for _, settings, _ in runs] == [1, 2]
    assert len({folder for *_, folder in runs}) == 2
    for batches, settings, _ in runs:
        assert settings.training.steps(len(batches)) == steps
        assert sum(len(batch.input_ids) for batch in batches.epoch(0)) == len(TEXTS)
        assert settings.training.batch_size == 2
    assert set(stage.metrics) == {"cola-small/1", "cola-small/2"}
    assert set(stage.metrics["cola-small/1"]["dev"]) >= {"teacher", "student", "majority", "collapsed"}
    assert paths.predictions("finetune_student", "cola-small/2").is_file()


def test_rows_without_teacher_outputs_are_left_out(runs, monkeypatch):
    def without_row_1(teacher, rows, split="train"):
        return [row for row in rows if split != "train" or row["idx"] != 1]

    monkeypatch.setattr(TaskTeacher, "known", without_row_1)
    finetune_student.main(stage_of(training(2, 2)))
    batches, settings, _ = runs[0]
    assert settings.training.steps(len(batches)) == 2 * 5 and len(batches.rows) == 4  # 9 of 11 rows are known
