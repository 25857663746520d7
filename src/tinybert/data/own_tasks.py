"""Tasks of one's own: rows, labels and dev split of a table, as frames in the columns that all tasks share."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from tinybert.config.tasks import METRICS_BY_KIND, TASKS, TableData, Task, Tasks
from tinybert.data.table_files import Row, Table, tables_of
from tinybert.data.task_sources import read_splits
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import NO_TEXT
from tinybert.pipeline.process import stream

COLUMNS = ("text", "text_pair")  # of the rows, whatever the table calls them
CHUNK_ROWS = 50_000
LEAST_ROWS = 10  # of train; the baselines choose their regularization on thirds of it
LABELED_TEST = "dev_test"  # a test split with labels is scored beside dev
# Python's float() also knows underscores and other alphabets' digits.
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
Frames = dict[str, pd.DataFrame]


class Labels:
    """What the cells of a label column mean; class ids are in the order of appearance until `sort` is called.

    Args:
        data: The section of the task.
        classes: All classes in their order, if they are known before the rows are read.
        aliases: Other spellings of classes.
    """

    def __init__(
        self, data: TableData, classes: Sequence[str] | None = None, aliases: Mapping[str, str] | None = None
    ) -> None:
        self.data, self.aliases = data, aliases or {}
        self.ids = {name: number for number, name in enumerate(classes or ())}
        self.are_given = self.is_known = self.has_order = classes is not None
        self.types: set[str] = set()  # of the cells of a table

    def parse(self, cell: Any) -> int | float | list[int]:
        """The class id, score or class ids of a cell; ValueError that says what is wrong."""
        if self.data.kind == "multilabel":
            if isinstance(cell, str) and self.data.separator:
                cell = [name for part in cell.split(self.data.separator) if (name := part.strip())]
            if not isinstance(cell, list):
                allowed = "a list, or text with a separator set"
                raise ValueError(f"no list of classes (got {cell!r:.40}); allowed: {allowed}")
            if is_one_hot(cell, self.ids if self.is_known else ()):
                raise ValueError(f"0 and 1 for each class (got {cell!r:.40}); allowed: the classes of the row")
            return sorted({self._id(name) for name in cell})
        return self.score(cell) if self.data.kind == "regression" else self._id(cell)

    def sort(self, label: pd.Series) -> pd.Series | np.ndarray:
        """Puts the classes in order (numbers by value, `positive` second); returns a parsed column with the new ids."""
        names = list(self.ids)
        if not self.is_known:
            are_integers = all(re.fullmatch(r"-?[0-9]{1,18}", name) for name in names)
            names.sort(key=(lambda name: (int(name), name)) if are_integers else None)
        if (positive := self.data.positive) in names:
            self.has_order &= names.index(positive) == 1  # otherwise this changes the order
            names.remove(positive)
            names.insert(1, positive)
        places = {name: number for number, name in enumerate(names)}
        new_ids = np.array([places[name] for name in self.ids], dtype=np.int64)
        self.ids, self.is_known = places, True
        if self.data.kind == "multilabel":
            return label.map(lambda ids: sorted(new_ids[ids].tolist()))
        return new_ids[label.to_numpy()]

    def _id(self, cell: Any) -> int:
        if isinstance(cell, (float, Decimal)) and math.isfinite(cell) and cell == int(cell):
            cell = int(cell)  # pandas writes whole numbers beside missing ones so
        if not isinstance(cell, (str, int)):
            raise ValueError(f"no class (got {cell!r:.40}); allowed: text or a whole number")
        self.types.add(type(cell).__name__)
        if len(self.types) > 1:
            raise ValueError(f"labels of several types (got {cell!r:.40}); allowed: all text, or all whole numbers")
        name = str(cell).replace("\u00a0", " ").strip() if not isinstance(cell, bool) else str(cell).lower()
        name = name if name in self.ids else self.aliases.get(name.lower(), name)
        if not name or not name.isprintable():
            raise ValueError(f"no class name (got {name!r:.40}); allowed: printable text")
        if name not in self.ids:
            if self.is_known:
                known = f"{', '.join(self.ids):.100}" + ("" if self.are_given else ", the classes of train")
                if self.aliases and "LABEL_0" in self.ids:
                    known += ", their numbers, or the names in id2label of the model's config.json"
                raise ValueError(f"unknown class (got {name!r:.40}); allowed: {known}")
            self.ids[name] = len(self.ids)
        return self.ids[name]

    @staticmethod
    def score(cell: Any) -> float:
        """The number that a cell holds; ValueError if none."""
        is_number = isinstance(cell, (int, float, Decimal)) and not isinstance(cell, bool)
        score = math.nan
        if is_number or (isinstance(cell, str) and NUMBER.fullmatch(cell.strip())):
            with suppress(ValueError, OverflowError):  # a signaling NaN, a whole number beyond floats
                score = float(cell)
        if not abs(score) < 1e9:
            raise ValueError(f"no score (got {cell!r:.40}); allowed: a number between -1e9 and 1e9")
        return score


def is_one_hot(labels: Sequence, classes: Collection[str] = ()) -> bool:
    """Whether a row's labels are 0 and 1 for each class: as classes they repeat, or are none of two `classes`."""
    found = {str(label).lower().removesuffix(".0") for label in labels}
    is_of_two = len(labels) == len(classes) == 2 and found.isdisjoint(map(str.lower, classes))
    return (len(found) < len(labels) or is_of_two) and (found <= {"0", "1"} or found <= {"true", "false"})


def read_own(name: str, data: TableData) -> tuple[Task, Frames]:
    """Reads a task of one's own; UserError for the first mistake in its tables.

    Args:
        name: The task's name; errors begin with its key.
        data: Its section in params.yaml.

    Returns:
        The task, and a frame for each split with the columns COLUMNS (one or two), "label" (class id, score or list of
        class ids; absent from a test split without labels, and from unlabeled rows) and "idx". `attrs["read"]` of
        unlabeled rows is their number with those that are left out.
    """
    tables, splits = tables_of(name, data), {}
    unlabeled = tables.pop("unlabeled", None)
    is_regression = data.kind == "regression"
    labels = Labels(data, None if is_regression else data.labels or tables["train"].class_names(data.label))
    for split, table in tables.items():
        if split == "test" and not table.has_values(data.label):
            splits["test"] = _frame(table, None, data)
            continue
        splits[LABELED_TEST if split == "test" else split] = frame = _frame(table, labels, data)
        if split == "train":
            _check_train(table, frame, labels)
            if not is_regression:
                frame["label"] = labels.sort(frame["label"])
    task = _task(name, labels, splits)
    if "dev" not in splits:
        kept, dev = hold_out_rows(splits.pop("train"), task, data.dev_fraction, key=f"tasks.{name}.data.dev_fraction")
        splits = {"train": kept, "dev": dev} | splits
    if unlabeled:
        splits["unlabeled"] = _new_texts(unlabeled, data, splits)
    return task, splits


def _task(name: str, labels: Labels, splits: Frames) -> Task:
    data, names, scores = labels.data, tuple(labels.ids), splits["train"]["label"]
    metrics = METRICS_BY_KIND[data.kind]
    return Task(
        name,
        COLUMNS[: len(data.texts)],
        names,
        title=name,
        # First the metric of params, or else the kind's first; then the others that need no settings.
        metrics=tuple(dict.fromkeys([data.metric or metrics[0], *(m for m in metrics if m not in ("f1", "matthews"))])),
        score_range=(float(scores.min()), float(scores.max())) if data.kind == "regression" else None,
        dev_splits=("dev", LABELED_TEST) if LABELED_TEST in splits else ("dev",),
        kind=data.kind,
        is_own=True,
        has_label_order=labels.has_order or names == tuple(map(str, range(len(names)))),
    )


def _new_texts(table: Table, data: TableData, splits: Frames) -> pd.DataFrame:
    """The unlabeled rows whose texts no split has, since rows that are scored must stay unseen."""
    columns, rows = list(COLUMNS[: len(data.texts)]), _frame(table, None, data.model_copy(update={"id": None}))
    known = pd.concat([found[columns] for found in splits.values()])
    is_known = pd.MultiIndex.from_frame(rows[columns]).isin(pd.MultiIndex.from_frame(known))
    new = rows[~is_known].drop_duplicates(columns, ignore_index=True)
    if new.empty:
        raise table.error(f"no new text in {len(rows):,} rows; allowed: texts of no other split; fix: add some")
    new.attrs["read"] = len(rows)
    return new


def read_task_rows(name: str, settings: Tasks, *, seed: int) -> tuple[Task, Frames]:
    """Reads a task's table, or its rows of GLUE, with `tasks.heldout_fraction` of train in place of all other splits.

    The seed is that of synthetic rows.
    """
    if data := settings[name].data:
        task, splits = read_own(name, data)
    else:
        task = TASKS[name]
        read = read_splits(task, settings.source, settings=settings, seed=seed)
        splits = {split: pd.DataFrame(rows) for split, rows in read.items()}
    if fraction := settings.heldout_fraction:  # MNLI's two dev splits become equal
        kept, heldout = hold_out_rows(splits["train"], task, fraction, key="tasks.heldout_fraction")
        unlabeled = {split: rows for split, rows in splits.items() if split == "unlabeled"}
        splits = {"train": kept} | dict.fromkeys(task.dev_splits, heldout) | unlabeled
    return task, splits


def hold_out_rows(rows: pd.DataFrame, task: Task, fraction: float, *, key: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Splits a share off the rows, the same for every seed: classes keep their shares, equal texts stay together.

    Returns:
        The remaining rows and the share, in order. Every class has rows in both; a label of a multilabel task may not.

    Raises:
        UserError: A class has one text only. It begins with `key`, which set the fraction.
    """
    texts = rows.groupby(list(task.columns), sort=False).ngroup().to_numpy()
    # A text with several classes is assigned its most frequent class; ties go to the rarest class.
    votes = pd.DataFrame({"text": texts, "stratum": _strata(rows["label"], task)})
    votes["rarity"] = votes.groupby("stratum").transform("size")
    votes = votes.value_counts().reset_index()
    votes = votes.sort_values(["count", "rarity", "text"], ascending=[False, True, True], kind="stable")
    groups = votes.groupby("text").agg(stratum=("stratum", "first"), size=("count", "sum"))
    groups = groups.iloc[stream(0, "hold out").permutation(len(groups))]
    amounts = groups.groupby("stratum")["size"].agg(["sum", "min", "size"])
    # At least the smallest text of a class is drawn, if the class has another one.
    amounts = amounts[amounts["size"] > 1]
    left = (fraction * amounts["sum"]).clip(lower=amounts["min"]).to_dict()
    drawn = []
    for text, stratum, size in groups.itertuples():
        if size <= left.get(stratum, 0):
            left[stratum] -= size
            drawn.append(text)
    found = set(groups["stratum"].loc[drawn])
    lacking = sorted(set(rows["label"]) - found) if task.kind == "classification" else []
    if lacking or not drawn:
        what = f"class {task.labels[lacking[0]]!r:.40} of" if lacking else "train of"
        fix = "name a dev file" if key.endswith("dev_fraction") else "set it to 0"
        fix += ", add rows, or leave the class out" if lacking else ", or add rows"
        problem = f"{what} {task.name} has at most one text of its own, too few for a share of {fraction:g}"
        raise UserError(f"{key}: {problem}; allowed: two or more; fix: {fix}")
    is_heldout = np.isin(texts, drawn)
    return rows[~is_heldout].reset_index(drop=True), rows[is_heldout].reset_index(drop=True)


def records(rows: pd.DataFrame) -> Iterator[dict]:
    """The rows of a frame as plain mappings, made in chunks."""
    for start in range(0, len(rows), CHUNK_ROWS):
        yield from rows.iloc[start : start + CHUNK_ROWS].to_dict("records")


def shared_texts(splits: Frames, task: Task, reference: str = "train") -> dict[str, int]:
    """How many rows of each other split, but unlabeled ones, have the texts of a row of the split `reference`."""
    labeled = {split: rows for split, rows in splits.items() if split != "unlabeled"}
    texts = {split: pd.MultiIndex.from_frame(rows[list(task.columns)]) for split, rows in labeled.items()}
    return {split: int(found.isin(texts[reference]).sum()) for split, found in texts.items() if split != reference}


def _frame(table: Table, labels: Labels | None, data: TableData) -> pd.DataFrame:
    """All rows of a table; texts are kept once, in the compact form of frames."""
    if labels:
        labels.types.clear()
    found = table.rows(data.columns if labels else data.unlabeled_columns)
    rows = (own_row(table, row, labels, data) | {"idx": index} for index, row in enumerate(found))
    chunks = iter(lambda: list(islice(rows, CHUNK_ROWS)), [])
    return pd.concat(map(pd.DataFrame, chunks), ignore_index=True)


def own_row(table: Table, found: Row, labels: Labels | None, data: TableData) -> dict[str, Any]:
    """The texts of a row in COLUMNS, and its label as `Labels.parse` returns it; UserError for a wrong cell."""
    where, cells = found
    row: dict[str, Any] = {}
    for column, name in zip(COLUMNS, data.texts, strict=False):
        text = cells[name]
        if not isinstance(text, str) or not text.strip() or NO_TEXT.search(text):
            got = "nothing" if text is None or text == "" else f"{text!r:.40}"
            raise table.error(f"{where}, column {name}: no text (got {got}); allowed: text; fix: remove the row")
        row[column] = text.strip()
    if data.id and NO_TEXT.search(row.setdefault("id", row_id(cells[data.id]))):
        raise table.error(f"{where}, column {data.id}: no text (got {row['id']!r:.40}); allowed: text; fix: correct it")
    if labels:
        try:
            row["label"] = labels.parse(cells[data.label])
        except ValueError as error:
            fix = "leave out rows without a label" if cells[data.label] in (None, "") else "correct the row"
            raise table.error(f"{where}, column {data.label}: {error}; fix: {fix}, or name another column") from None
    return row


def _check_train(table: Table, train: pd.DataFrame, labels: Labels) -> None:
    """UserError if nothing can be learned from the rows."""
    if len(train) < LEAST_ROWS:
        raise table.error(f"too few rows (got {len(train)}); allowed: {LEAST_ROWS} or more; fix: add some")
    # Rows with the same set of classes: also what 0 and 1 for each of two classes look like (is_one_hot).
    if min(train["label"].explode().nunique(), train["label"].map(str).nunique()) < 2:
        what = {"regression": "score", "multilabel": "set of classes"}.get(labels.data.kind, "class")
        found = ", ".join(labels.ids) or train["label"].iloc[0]
        raise table.error(f"column {labels.data.label}: one {what} only (got {found!s:.40}); allowed: two or more; "
                          "fix: name another column, or add rows")  # fmt: skip
    if labels.data.positive and labels.data.positive not in labels.ids:
        raise UserError(f"{table.key.rpartition('.')[0]}.positive: no class of train (got {labels.data.positive}); "
                        f"allowed: {', '.join(labels.ids):.100}; fix: correct it")  # fmt: skip


def _strata(label: pd.Series, task: Task) -> np.ndarray:
    """The class of each row: its rarest label, -1 without one; 0 in a regression."""
    if task.kind == "regression":
        return np.zeros(len(label), dtype=np.int64)
    if task.kind == "classification":
        return label.to_numpy()
    counts = np.bincount(label.explode().dropna().astype(np.int64), minlength=len(task.labels))
    return np.array([min(ids, key=lambda one: (counts[one], one), default=-1) for ids in label], dtype=np.int64)


def row_id(cell: Any) -> str:
    """The text of a row's id; a whole number is the same as its digits."""
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    return str(cell).strip()
