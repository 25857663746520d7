"""Predictions of a teacher in tables: their logits by hand, rows without one, and each mistake on one line."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from tinybert.config.tasks import TASKS, PredictionFiles, Task
from tinybert.data.prediction_files import FLOOR, read_predicted_teacher
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_jsonl, write_jsonl

COLA = TASKS["cola"]
OWN = Task("mine", ("text",), ("a", "b", "c"), "mine", is_own=True)
CERTAIN = math.log(FLOOR)


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)


def write_rows(task: Task, **ids_by_split) -> None:
    """Rows of label 1 with these ids as "idx", or as "id" where they are text."""
    for split, ids in ids_by_split.items():
        found = [
            {"idx": index, "id": name} if isinstance(name, str) else {"idx": name} for index, name in enumerate(ids)
        ]
        write_jsonl(paths.task_rows(task.name) / f"{split}.jsonl", [row | {"text": "x", "label": 1} for row in found])


def read(task: Task = COLA, *, heldout_fraction: float = 0.0, **settings):
    given = {"train": "train.csv", "dev": "dev.csv", "id": "id", "missing": "drop"} | settings
    given = {key: value for key, value in given.items() if value is not None}
    rows = {path.stem: list(read_jsonl(path)) for path in paths.task_rows(task.name).glob("*.jsonl")}
    return read_predicted_teacher(task, PredictionFiles(**given), rows, heldout_fraction=heldout_fraction)


def table(name: str, header: str, *lines: str) -> None:
    (paths.project_root() / name).write_text("\n".join([header, *lines]) + "\n")


def logits(teacher, split: str, number: int) -> list[float]:
    return teacher.table[teacher.places[split, number]].tolist()


def test_probabilities_become_their_logarithms():
    write_rows(COLA, train=[4, 2], dev=[2])
    table("train.csv", "id,p0,p1", "2,0.25,0.75", "4,1,0")
    table("dev.csv", "p1,p0,id", "0.5,0.5,2")
    teacher, counts = read(probabilities=("p0", "p1"))
    assert logits(teacher, "train", 2) == pytest.approx([math.log(0.25), math.log(0.75)])
    assert logits(teacher, "train", 4) == pytest.approx([0, CERTAIN])
    assert logits(teacher, "dev", 2) == pytest.approx([math.log(0.5)] * 2)
    assert counts == {"without_prediction": 0}


def test_logits_in_lists_are_taken_as_they_are():
    write_rows(COLA, train=[0], dev=[0])
    for split, values in (("train", [-3.5, 2]), ("dev", [1e3, -1e3])):
        (paths.project_root() / f"{split}.jsonl").write_text(json.dumps({"id": 0, "out": values}) + "\n")
    teacher, _ = read(train="train.jsonl", dev="dev.jsonl", logits=("out",))
    assert logits(teacher, "train", 0) == [-3.5, 2] and logits(teacher, "dev", 0) == [1000, -1000]


def test_classes_are_certain_and_ids_are_the_tables_own():
    write_rows(OWN, train=["x-1", "x-2"], dev=["x-3"])
    table("train.csv", "id,answer", "x-2,c", "x-1,a")
    table("dev.csv", "id,answer", "x-3,b")
    teacher, _ = read(OWN, label="answer")
    assert logits(teacher, "train", 0) == pytest.approx([0, CERTAIN, CERTAIN])
    assert logits(teacher, "train", 1) == pytest.approx([CERTAIN, CERTAIN, 0])


@pytest.mark.parametrize(("missing", "rows"), [("gold", 3), ("drop", 1)])
def test_rows_without_a_prediction_are_counted(missing, rows):
    write_rows(COLA, train=[0, 1, 2], dev=[0])
    table("train.csv", "id,label", "0,unacceptable", "2,")
    table("dev.csv", "id,label", "0,acceptable")
    teacher, counts = read(label="label", missing=missing)
    assert counts == {"without_prediction": 2}
    assert len(teacher.numbers["train"]) == rows
    assert logits(teacher, "train", 0) == pytest.approx([0, CERTAIN])
    if missing == "gold":
        assert logits(teacher, "train", 1) == logits(teacher, "train", 2) == pytest.approx([CERTAIN, 0])


def test_scores_and_several_labels():
    scored = replace(OWN, labels=(), kind="regression")
    write_rows(scored, train=[0], dev=[0])
    table("train.csv", "id,score", "0,3.25")
    table("dev.csv", "id,score", "0,-1")
    teacher, _ = read(scored, logits=("score",))
    assert logits(teacher, "train", 0) == [3.25] and teacher.labels == ("score",)
    tagged = replace(OWN, kind="multilabel")
    write_rows(tagged, train=[0], dev=[0])
    table("train.csv", "id,a,b,c", "0,0.5,0.9,0.9")
    table("dev.csv", "id,a,b,c", "0,0,0,1")
    teacher, _ = read(tagged, probabilities=("a", "b", "c"))
    assert logits(teacher, "train", 0) == pytest.approx([0, math.log(9), math.log(9)], abs=1e-6)
    assert logits(teacher, "dev", 0) == pytest.approx([CERTAIN, CERTAIN, -CERTAIN], rel=1e-3)
    table("train.csv", "id,tags", "0,a;c")
    for nothing in (";", ""):
        table("dev.csv", "id,tags", f"0,{nothing}")
        teacher, _ = read(tagged, label="tags", separator=";")
        assert np.sign(logits(teacher, "train", 0)).tolist() == [1, -1, 1]
        assert np.sign(logits(teacher, "dev", 0)).tolist() == [-1, -1, -1]


@pytest.mark.parametrize("task", [OWN, COLA])
def test_dev_rows_from_train_have_predictions_in_trains_file(task):
    write_rows(task, train=[0, 2], dev=[1])
    table("train.csv", "id,label", *(f"{idx},{task.labels[idx % 2]}" for idx in range(3)))
    is_own = task is OWN
    teacher, counts = read(task, dev=None if is_own else "x.csv", label="label", heldout_fraction=0 if is_own else 0.3)
    assert counts == {"without_prediction": 0}
    assert set(teacher.places) == {("train", 0), ("train", 2), ("dev", 1)}
    assert logits(teacher, "dev", 1)[1] == 0


def test_held_out_rows_leave_rows_of_the_table_out():
    """The dev share is split off first, then held-out rows replace it."""
    write_rows(OWN, train=[0, 2], dev=[1])
    table("train.csv", "id,label", *(f"{idx},{OWN.labels[idx % 2]}" for idx in range(5)))
    teacher, counts = read(OWN, dev=None, label="label", heldout_fraction=0.3)
    assert set(teacher.places) == {("train", 0), ("train", 2), ("dev", 1)} and counts == {"without_prediction": 0}


def test_an_id_of_rows_in_two_splits_is_refused():
    for split, idx in (("train", 0), ("dev", 1)):
        row = {"idx": idx, "id": "a", "text": "x", "label": 1}
        write_jsonl(paths.task_rows(OWN.name) / f"{split}.jsonl", [row])
    table("train.csv", "id,label", f"a,{OWN.labels[1]}")
    with pytest.raises(UserError, match="rows of train and dev share the id 'a'"):
        read(OWN, dev=None, label="label")


@pytest.mark.parametrize(
    ("file", "lines", "settings", "line"),
    [
        (
            "train",
            ("id,p0,p1", "0,.5,.5", "1,.5,.5", "7,.5,.5"),
            {},
            "line 4: no row has this id (got '7'); allowed: 0, 1",
        ),
        ("train", ("id,p0,p1", "0,.5,.5", "0,.1,.9"), {}, "line 3: id '0' stands at line 2 too"),
        ("train", ("id,p0,p1", "0,.5,.6"), {}, "line 2, column p0, p1: probabilities do not sum to 1 (got 1.1)"),
        (
            "train",
            ("id,p0,p1", "0,1.5,-.5"),
            {},
            "line 2, column p0, p1: no probability (got -0.5 to 1.5); allowed: 0 ",
        ),
        ("train", ("id,p0,p1", "0,nan,1"), {}, "line 2, column p0, p1: no score (got 'nan')"),
        ("train", ("id,p0,p1", "0,.5,"), {}, "line 2, column p0, p1: no score (got '')"),
        ("train", ("id,p0,p1", "0,.5"), {}, "line 2: 2 fields; 3 are expected"),
        ("train", ("id,p0", "0,.5"), {}, "no column 'p1'; allowed: id, p0"),
        ("train", ("id,p0,p1",), {}, "no rows"),
        ("train", ("id,p0,p1", "0,,"), {}, "no predictions of train; fix: add some"),
        ("dev", ("id,p0,p1", "0,.5,.5"), {}, "no prediction of dev's row with id '1'; allowed: one for each row"),
        (
            "train",
            ("id,p", "0,1"),
            {"probabilities": ("p",)},
            "wrong number of values (got 1); allowed: 2, one for each",
        ),
        (
            "train",
            ("id,l", "0,maybe"),
            {"label": "l"},
            "line 2, column l: unknown class (got 'maybe'); allowed: unacceptable, acceptable; fix: ",
        ),
    ],
)
def test_each_mistake_is_one_line_with_file_and_row(file, lines, settings, line):
    write_rows(COLA, train=[0, 1], dev=[0, 1])
    for name in ("train", "dev"):
        table(f"{name}.csv", "id,p0,p1", "0,.5,.5", "1,.5,.5")
    table(f"{file}.csv", *lines)
    with pytest.raises(UserError) as caught:
        read(**(settings or {"probabilities": ("p0", "p1")}))
    assert line in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"tasks.cola.finetuned_teacher.predictions.{file}: {file}.csv: ")


def test_ids_must_be_unique_and_scored_splits_have_files():
    write_rows(OWN, train=["x", "x"], dev=["y"], dev_test=["z"])
    table("train.csv", "id,l", "x,a")
    with pytest.raises(UserError, match=r"rows of train share the id 'x'; fix: name another column in data\.id"):
        read(OWN, label="l")
    with pytest.raises(UserError, match=r"predictions\.test: missing; the test split has labels"):
        read(replace(OWN, dev_splits=("dev", "dev_test")), label="l")
    with pytest.raises(UserError, match=r"cola\.finetuned_teacher\.predictions\.dev: missing"):
        read(COLA, dev=None, label="l")
    with pytest.raises(UserError, match=r"predictions\.probabilities: a score has none"):
        read(replace(OWN, kind="regression", labels=()), probabilities=("l",))
