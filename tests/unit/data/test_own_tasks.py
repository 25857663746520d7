"""Tasks of one's own: classes, scores and label lists, the dev split taken from train, and each mistake's line."""

import json
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from tests.support.project import default_tree
from tinybert.config.load import check_params
from tinybert.config.tasks import TableData, read_task, write_task
from tinybert.data.encoding import label_array
from tinybert.data.own_tasks import hold_out_rows, read_own, read_task_rows, records, shared_texts
from tinybert.data.table_files import Table
from tinybert.pipeline.errors import UserError

CLASSES = [{"text": f"text {number}", "label": "xyz"[number % 3]} for number in range(30)]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read(tmp_path, rows=CLASSES, *, splits=None, **changes):
    data = {"train": write(tmp_path / "train.jsonl", rows), "texts": ("text",), "label": "label"}
    data |= {split: write(tmp_path / f"{split}.jsonl", found) for split, found in (splits or {}).items()}
    return read_own("mine", TableData(**data | changes))


def mistake(tmp_path, rows=CLASSES, **changes) -> str:
    with pytest.raises(UserError) as caught:
        read(tmp_path, rows, **changes)
    line = str(caught.value)
    assert "\n" not in line and "; allowed: " in line and "; fix: " in line
    return line.replace(f"{tmp_path}/", "")


def labeled(*labels, copies=6):
    return [{"text": f"{label} {copy}", "label": label} for label in labels for copy in range(copies)]


def test_classes_are_read_from_train_and_sorted(tmp_path):
    task, splits = read(tmp_path)
    assert (task.labels, task.metrics, task.kind) == (("x", "y", "z"), ("accuracy", "macro_f1"), "classification")
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 27, "dev": 3}
    for row in [*records(splits["train"]), *records(splits["dev"])]:
        assert row == {"text": f"text {row['idx']}", "label": row["idx"] % 3, "idx": row["idx"]}


@pytest.mark.parametrize(("positive", "labels", "has_order"), [("x", ("y", "x"), False), ("y", ("x", "y"), True)])
def test_the_hubs_order_is_a_teachers_unless_positive_changes_it(tmp_path, monkeypatch, positive, labels, has_order):
    monkeypatch.setattr(Table, "class_names", lambda table, column: ("x", "y"))
    task, _ = read(tmp_path, labeled("x", "y"), metric="f1", positive=positive)
    assert (task.labels, task.has_label_order) == (labels, has_order)


def test_scores_that_the_hub_numbers_as_classes_are_scores(tmp_path, monkeypatch):
    monkeypatch.setattr(Table, "class_names", lambda table, column: ("0", "1"))
    rows = [{"text": f"text {number}", "label": str(number % 2)} for number in range(30)]
    task, splits = read(tmp_path, rows, kind="regression")
    assert (task.labels, task.score_range) == ((), (0.0, 1.0))
    assert {*splits["train"]["label"]} == {0.0, 1.0}


def test_rows_have_their_ids_in_all_splits(tmp_path):
    rows = [row | {"key": f"r{number}"} for number, row in enumerate(CLASSES)]
    unlabeled = [{"text": "new", "key": 7.0}]
    _, splits = read(tmp_path, rows, id="key", splits={"test": unlabeled})
    for row in [*records(splits["train"]), *records(splits["dev"])]:
        assert row["id"] == f"r{row['idx']}"
    assert list(records(splits["test"])) == [{"text": "new", "id": "7", "idx": 0}]
    assert "no column 'key'; allowed: text, label" in mistake(tmp_path, id="key")


def test_the_description_is_read_as_it_was_written(tmp_path):
    task, _ = read(tmp_path, metric="f1", positive="y")
    (tmp_path / "data/tasks/mine").mkdir(parents=True)
    write_task(task, tmp_path / "data/tasks/mine")
    assert read_task("mine", tmp_path) == task


@pytest.mark.parametrize(
    ("labels", "changes", "expected"),
    [
        ((10, 9, 2), {}, ("2", "9", "10")),
        ((2.0, 10.0, 9.0), {}, ("2", "9", "10")),
        (("10", "9", "2"), {}, ("2", "9", "10")),
        ((True, False, True), {}, ("false", "true")),
        (("b", "a", "c"), {"labels": ("c", "b", "a", "d")}, ("c", "b", "a", "d")),
        (("b", "a", "c"), {"metric": "f1", "positive": "c"}, ("a", "c", "b")),
        (("b", "a"), {"metric": "f1", "positive": "a"}, ("b", "a")),
        (("b", "a"), {"metric": "f1", "positive": "a", "labels": ("b", "a")}, ("b", "a")),
    ],
)
def test_the_order_of_classes(tmp_path, labels, changes, expected):
    task, splits = read(tmp_path, labeled(*labels), **changes)
    assert task.labels == expected
    for row in records(splits["train"]):
        assert task.labels[row["label"]].startswith(row["text"].split()[0].lower().removesuffix(".0"))


def test_150_classes_and_two_texts(tmp_path):
    rows = [{"a": f"a {n}", "b": f"b {n}", "label": f"class {n % 150:03}"} for n in range(450)]
    task, splits = read(tmp_path, rows, texts=("b", "a"))
    assert len(task.labels) == 150 and task.is_pair and task.columns == ("text", "text_pair")
    assert set(splits["dev"]["label"]) == set(splits["train"]["label"]) == set(range(150))
    assert next(records(splits["train"]))["text"].startswith("b ")


def test_a_regression(tmp_path):
    rows = [{"text": f"t {n}", "label": str(n / 4) if n % 2 else n / 4} for n in range(40)]
    task, splits = read(tmp_path, rows, kind="regression", metric="spearman")
    assert (task.labels, task.metrics, task.score_range) == ((), ("spearman", "pearson"), (0.0, 9.75))
    assert len(splits["dev"]) == 4
    assert all(row["label"] == row["idx"] / 4 for row in records(splits["train"]))


def test_several_labels_in_lists_or_one_text(tmp_path):
    lists = [["b", "a"], [], ["c"], ["a", "a"]] * 5
    joined = [{"text": f"t {n}", "label": "; ".join(names)} for n, names in enumerate(lists)]
    plain = [{"text": f"t {n}", "label": names} for n, names in enumerate(lists)]
    first, second = read(tmp_path, plain, kind="multilabel"), read(tmp_path, joined, kind="multilabel", separator=";")
    assert first[0] == second[0] and first[1]["train"].equals(second[1]["train"])
    task, splits = first
    assert (task.labels, task.metrics, task.is_multilabel) == (("a", "b", "c"), ("micro_f1", "macro_f1"), True)
    rows = pd.concat(splits.values()).sort_values("idx")
    assert list(rows["label"][:4]) == [[0, 1], [], [2], [0]]
    assert label_array(rows["label"][:4], task).tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0]]
    assert {one for ids in splits["dev"]["label"] for one in ids} == {0, 1, 2}


def test_given_splits_are_used_and_unlabeled_rows_not_scored(tmp_path):
    texts = [{"text": "new"}]
    task, splits = read(tmp_path, splits={"dev": CLASSES[:5], "test": CLASSES[5:9]})
    assert list(splits) == ["train", "dev", "dev_test"] and task.dev_splits == ("dev", "dev_test")
    assert len(splits["train"]) == 30
    assert shared_texts(splits, task) == {"dev": 5, "dev_test": 4}
    task, splits = read(tmp_path, splits={"dev": CLASSES[:5], "test": texts})
    assert list(splits) == ["train", "dev", "test"] and task.dev_splits == ("dev",)
    assert list(records(splits["test"])) == [{"text": "new", "idx": 0}]


def test_unlabeled_rows_have_texts_of_no_other_split(tmp_path):
    texts = [{"text": text} for text in ("new", "text 0", "text 29", "scored", "new", "newer")]
    splits = {"test": [{"text": "scored"}], "unlabeled": texts}
    _, found = read(tmp_path, splits=splits)
    assert list(found) == ["train", "dev", "test", "unlabeled"] and len(found["train"]) == 27
    assert list(records(found["unlabeled"])) == [{"text": "new", "idx": 0}, {"text": "newer", "idx": 5}]
    line = mistake(tmp_path, splits={"unlabeled": [{"label": "x"}]})
    assert "tasks.mine.data.unlabeled" in line and "no column 'text'; allowed: label" in line
    line = mistake(tmp_path, splits={"unlabeled": [{"text": "text 3"}]})
    assert "tasks.mine.data.unlabeled" in line and "no new text in 1 rows; allowed: texts of no other split" in line


def test_unlabeled_rows_need_no_ids(tmp_path):
    rows = [row | {"key": str(number)} for number, row in enumerate(CLASSES)]
    _, found = read(tmp_path, rows, id="key", splits={"unlabeled": [{"text": "new"}]})
    assert len(found["unlabeled"]) == 1 and "id" not in found["unlabeled"]


def test_a_heldout_share_of_train_keeps_unlabeled_rows(tmp_path):
    tree = default_tree()
    data = {"train": write(tmp_path / "a.jsonl", CLASSES), "texts": ["text"], "label": "label"}
    data["unlabeled"] = write(tmp_path / "b.jsonl", [{"text": "new"}])
    tree["tasks"] |= {"mine": tree["tasks"]["cola"] | {"data": data}, "heldout_fraction": 0.2}
    _, splits = read_task_rows("mine", check_params(tree).tasks, seed=0)
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 24, "dev": 3, "unlabeled": 1}


def test_held_out_training_rows_replace_the_scored_splits(tmp_path):
    """Six texts twice: equal texts stay on one side; the given dev and the labeled test are left out."""
    rows = [{"text": f"row {n % 54}", "label": "xy"[n % 2]} for n in range(60)]
    other = write(tmp_path / "other.jsonl", [{"text": f"new {n}", "label": "x"} for n in range(5)])
    data = {"train": write(tmp_path / "own.jsonl", rows), "dev": other, "test": other}
    tree = default_tree({"tasks.heldout_fraction": 0.2})
    tree["tasks"]["mine"] = tree["tasks"]["cola"] | {"data": data | {"texts": ["text"], "label": "label"}}
    _, splits = read_task_rows("mine", check_params(tree).tasks, seed=0)
    assert list(splits) == ["train", "dev", "dev_test"] and splits["dev"].equals(splits["dev_test"])
    train, dev, _ = splits.values()
    assert sorted([*train["idx"], *dev["idx"]]) == list(range(60))
    assert 10 <= len(dev) <= 12 and {*dev["label"]} == {0, 1}
    assert not {*train["text"]} & {*dev["text"]}


def test_a_test_of_which_some_rows_have_labels_needs_all(tmp_path):
    task, _ = read(tmp_path, splits={"test": [{"text": "new", "label": None}]})
    assert task.dev_splits == ("dev",)
    line = mistake(tmp_path, splits={"test": [{"text": "new"}, *CLASSES[:3]]})
    assert "tasks.mine.data.test" in line and "no column 'label'" in line


@pytest.mark.parametrize(
    ("names", "changes", "expected"),
    [
        (("b", "a"), {}, False),
        (("b", "a"), {"labels": ("b", "a")}, True),
        ((1, 0), {}, True),
        ((2, 1), {}, False),
    ],
)
def test_labels_have_an_order_if_given_or_numbered_from_0(tmp_path, names, changes, expected):
    rows = [{"text": f"t {number}", "label": names[number % 2]} for number in range(20)]
    task, _ = read(tmp_path, rows, **changes)
    assert task.has_label_order is expected


def test_label_types_may_differ_between_tables(tmp_path):
    """Cells of CSV are text."""
    rows = [{"text": f"t {number}", "label": number % 2} for number in range(20)]
    (tmp_path / "dev.csv").write_text("text,label\nnew,1\n")
    data = {"train": write(tmp_path / "train.jsonl", rows), "dev": str(tmp_path / "dev.csv")}
    task, splits = read_own("mine", TableData(**data, texts=("text",), label="label"))
    assert task.labels == ("0", "1") and list(splits["dev"]["label"]) == [1]


@pytest.mark.parametrize("count", [860, 900, 940, 1380])
def test_a_frequent_text_does_not_empty_the_dev_share(tmp_path, count):
    rows = [{"text": "same" if n < 0.11 * count else f"t {n}", "label": "a"} for n in range(count)]
    rows += [{"text": f"b {n}", "label": "b"} for n in range(100)]
    _, splits = read(tmp_path, rows, dev_fraction=0.12)
    share = (splits["dev"]["label"] == 0).sum() / count
    assert 0.11 < share <= 0.12


def test_equal_texts_stay_together_and_classes_keep_their_shares(tmp_path):
    rng = np.random.default_rng(0)
    rows = [{"text": f"t {rng.integers(300)}", "label": "ab"[int(rng.random() < 0.2)]} for _ in range(1000)]
    task, splits = read(tmp_path, rows, dev_fraction=0.25)
    assert shared_texts(splits, task) == {"dev": 0}
    assert 220 < len(splits["dev"]) <= 250 and len(splits["train"]) + len(splits["dev"]) == 1000
    for _, again in (read(tmp_path, rows, dev_fraction=0.25) for _ in range(2)):
        assert again["dev"].equals(splits["dev"])


def test_a_text_with_most_rows_of_a_class_is_not_drawn(tmp_path):
    rows = [{"text": "same", "label": "a"}] * 90 + [{"text": f"t {n}", "label": "ab"[n % 2]} for n in range(20)]
    _, splits = read(tmp_path, rows)
    assert "same" not in set(splits["dev"]["text"]) and 2 <= len(splits["dev"]) <= 11
    assert Counter(splits["dev"]["label"]).keys() == {0, 1}


def test_a_class_whose_texts_are_all_of_another_is_refused(tmp_path):
    rows = [*labeled("a", "b"), *labeled("a"), *labeled("a"), *({"text": f"a {n}", "label": "c"} for n in range(3))]
    assert "class 'c' of mine has at most one text of its own" in mistake(tmp_path, rows)


def test_a_label_with_one_text_remains_in_train(tmp_path):
    rows = [{"text": f"t {n}", "label": ["a"] if n else ["a", "rare"]} for n in range(20)]
    task, splits = read(tmp_path, rows, kind="multilabel")
    assert all(task.labels.index("rare") not in ids for ids in splits["dev"]["label"])
    kept, heldout = hold_out_rows(splits["train"], task, 0.5, key="tasks.heldout_fraction")
    assert len(kept) + len(heldout) == len(splits["train"])


@pytest.mark.parametrize(
    ("rows", "changes", "line"),
    [
        (CLASSES[:9], {}, "train.jsonl: too few rows (got 9); allowed: 10 or more"),
        ([*CLASSES, {"text": " ", "label": "x"}], {}, "line 31, column text: no text (got ' ')"),
        ([*CLASSES, {"text": "", "label": "x"}], {}, "line 31, column text: no text (got nothing)"),
        ([*CLASSES, {"text": 3, "label": "x"}], {}, "line 31, column text: no text (got 3)"),
        ([*CLASSES, {"text": "\ud800", "label": "x"}], {}, "line 31, column text: no text (got '\\ud800')"),
        ([*CLASSES, {"text": "a", "label": ""}], {}, "line 31, column label: no class name (got '')"),
        ([*CLASSES, {"text": "a", "label": None}], {}, "line 31, column label: no class (got None)"),
        ([*CLASSES, {"text": "a", "label": 7}], {}, "line 31, column label: labels of several types (got 7)"),
        ([*CLASSES, {"text": "a", "label": 0.5}], {}, "line 31, column label: no class (got 0.5)"),
        (labeled("x", copies=12), {}, "train.jsonl: column label: one class only (got x)"),
        ([*CLASSES, {"text": "a", "label": "w"}], {}, "dev_fraction: class 'w' of mine has at most one text"),
        (CLASSES, {"labels": ("x", "y")}, "line 3, column label: unknown class (got 'z'); allowed: x, y"),
        (CLASSES, {"metric": "f1", "positive": "w"}, "positive: no class of train (got w); allowed: x, y, z"),
        (CLASSES, {"kind": "regression"}, "train.jsonl: line 1, column label: no score (got 'x')"),
        (labeled("1", "2"), {"kind": "regression", "splits": {"dev": labeled("nan")}}, "column label: no score"),
        (labeled("3", copies=12), {"kind": "regression"}, "train.jsonl: column label: one score only (got 3.0)"),
        (CLASSES, {"kind": "multilabel"}, "train.jsonl: line 1, column label: no list of classes (got 'x')"),
        ([{"text": str(n), "label": []} for n in range(12)], {"kind": "multilabel"}, "label: one set of classes"),
        ([{"text": "a", "label": [1, 0, 1]}], {"kind": "multilabel"}, "line 1, column label: 0 and 1 for each class"),
        ([{"text": str(n), "label": [n % 2, 1 - n % 2]} for n in range(12)], {"kind": "multilabel"},
         "column label: one set of classes only (got 0, 1)"),
        ([{"text": "a", "label": [1.0, 0.0, 0.0]}], {"kind": "multilabel"}, "column label: 0 and 1 for each class"),
        ([{"text": "a", "label": "x", "i": "\ud8000"}], {"id": "i"}, "line 1, column i: no text (got '\\ud8000')"),
        (CLASSES, {"splits": {"dev": labeled("w")}}, "dev.jsonl: line 1, column label: unknown class (got 'w')"),
        ([{"text": "same", "label": n} for n in range(12)], {"kind": "regression"}, "train of mine has at most one"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path, rows, changes, line):
    assert line in mistake(tmp_path, rows, **changes)


DATA = {"train": "t.csv", "texts": ["text"], "label": "label"}


@pytest.mark.parametrize(
    ("task", "data", "line"),
    [
        ("cola", DATA, "tasks.cola.data: GLUE's tasks take rows from tasks.source; fix: null, or another name"),
        ("mine", None, "tasks.mine.data: missing; fix: name the task's table, or one of GLUE's tasks"),
        ("copy", DATA, "tasks.copy: the name is reserved; fix: rename this task"),
        ("domain", DATA, "tasks.domain: the name is reserved; fix: rename this task"),
        ("Mine", DATA, "tasks.Mine: must be lower-case letters, digits and _, beginning with a letter"),
        ("mine", DATA | {"texts": ["a", "b", "c"]}, "tasks.mine.data.texts: "),
        ("mine", DATA | {"texts": ["label"]}, "tasks.mine.data.label: is a text too (got label)"),
        ("mine", DATA | {"metric": "pearson"}, "tasks.mine.data.metric: not one of classification (got pearson)"),
        ("mine", DATA | {"metric": "f1"}, "tasks.mine.data.positive: must be set for metric f1, and for no other"),
        ("mine", DATA | {"positive": "a"}, "tasks.mine.data.positive: must be set for metric f1, and for no other"),
        ("mine", DATA | {"separator": ";"}, "tasks.mine.data.separator: rows of kind classification have one label"),
        ("mine", DATA | {"labels": ["a"]}, "tasks.mine.data.labels: "),
        ("mine", DATA | {"kind": "regression", "labels": ["a", "b"]}, "tasks.mine.data.labels: a regression has none"),
        ("mine", DATA | {"metric": "f1", "positive": "a", "labels": ["a", "b"]}, "tasks.mine.data.labels: "),
        ("mine", DATA | {"kind": "ranking"}, "tasks.mine.data.kind: should be 'classification', 'regression' or"),
        ("mine", DATA | {"dev_fraction": 0}, "tasks.mine.data.dev_fraction: should be greater than 0"),
    ],
)  # fmt: skip
def test_sections_that_do_not_fit(task, data, line):
    tree = default_tree()
    tree["tasks"][task] = tree["tasks"]["cola"] | {"data": data}
    with pytest.raises(UserError, match="params") as caught:
        check_params(tree)
    assert str(caught.value).startswith(f"params.yaml: {line}")
