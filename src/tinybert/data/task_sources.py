"""Rows of a GLUE task: synthetic, from the Hub, or from the official tab-separated files."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tinybert.config.fields import Source
from tinybert.config.tasks import GLUE, Task, Tasks
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError, check_all
from tinybert.pipeline.files import printable, read_lines
from tinybert.pipeline.hub import hub_access, hub_dataset
from tinybert.synthetic import examples as synthetic

KEY = "tasks.local.folder"
UNLABELED = -1  # the Hub's label of test rows


@dataclass(frozen=True)
class TsvLayout:
    """The layout of a task's official tab-separated files."""

    folder: str
    texts: Sequence[str]  # names in the header line, in the order of Task.columns
    label: str = "label"  # name in the header line
    spellings: Sequence[str] = ("0", "1")  # the labels as written, in the order of Task.labels
    columns: Sequence[str] = ()  # names by position if train and dev have no header line (test always has one)
    broken_rows: int = 0  # as many damaged rows of one file are left out before that is an error


LAYOUTS = {name: TsvLayout(**entry["files"]) for name, entry in GLUE.items()}


def read_splits(task: Task, source: Source, *, settings: Tasks, seed: int) -> dict[str, list[dict]]:
    """Reads all splits of a task; the seed matters to synthetic rows only.

    Returns:
        The rows of train, the dev splits and, where the source has them, the test splits. A row has the task's text
        columns, "label" (int class or float score; absent from test rows) and "idx".
    """
    if source != "synthetic":
        return _hub(task, settings) if source == "hub" else _local(task, settings)
    if task.name not in synthetic.TASKS:
        problem = f"{task.name} has no synthetic examples, only {', '.join(synthetic.TASKS)} have"
        raise UserError(f"tasks.source: synthetic: {problem}; fix: take it off tasks.run, or set hub or local")
    counts = {"train": settings.synthetic.train_examples, "dev": settings.synthetic.dev_examples}
    return {split: synthetic.examples(task.name, split, count, seed) for split, count in counts.items()}


def _hub(task: Task, settings: Tasks) -> dict[str, list[dict]]:
    hub = settings.hub
    fix = "check tasks.hub, or set tasks.source to local with tasks.local.folder, or to synthetic"
    with hub_access("tasks.source: hub", f"{hub.dataset} ({task.name}, {hub.revision})", fix=fix):
        loaded = hub_dataset(hub.dataset, task.name, hub.revision)
        names = {split: split.replace("dev", "validation") for split in ("train", *task.dev_splits, *task.test_splits)}
        for split, name in names.items():
            if name not in loaded and split not in task.test_splits:
                raise UserError(f"tasks.hub.dataset: {task.name} has no split {name}; it has {', '.join(loaded)}")
        return {split: [_hub_row(task, row) for row in loaded[name]] for split, name in names.items() if name in loaded}


def _hub_row(task: Task, row: dict) -> dict:
    wanted = (*task.columns, "label", "idx")
    if absent := [column for column in wanted if column not in row]:
        raise UserError(f"tasks.hub.dataset: {task.name} has no column {absent[0]}; it has {', '.join(row)}")
    return {column: row[column] for column in wanted if column != "label" or row["label"] != UNLABELED}


def _local(task: Task, settings: Tasks) -> dict[str, list[dict]]:
    folder = paths.resolve(settings.local.folder) / LAYOUTS[task.name].folder
    tests = [split for split in task.test_splits if (folder / f"{split}.tsv").exists()]
    splits = ("train", *task.dev_splits, *tests)
    rows = check_all(partial(_tsv_rows, task, folder / f"{split}.tsv", is_test=split in tests) for split in splits)
    return dict(zip(splits, rows, strict=True))


def _tsv_rows(task: Task, path: Path, *, is_test: bool) -> list[dict]:
    """The rows of one file. As many damaged rows as the task allows are left out."""
    lines, layout = read_lines(path, key=KEY), LAYOUTS[task.name]
    names = layout.columns
    if is_test or not names:
        names = next(lines, (1, ""))[1].split("\t")
        for wanted in layout.texts if is_test else (*layout.texts, layout.label):
            if names.count(wanted) != 1:
                found = f"{names.count(wanted)} columns {wanted!r} among {', '.join(names)!r:.200}"
                raise UserError(f"{KEY}: {path}, line 1: {found}; one is expected")
    rows: list[dict] = []
    damaged = 0
    for number, line in lines:
        try:
            if line:
                rows.append(_tsv_row(task, names, line, is_test=is_test) | {"idx": len(rows)})
        except UserError as error:
            damaged += 1
            if damaged > layout.broken_rows:
                raise UserError(f"{KEY}: {path}, line {number}{error}") from None
    if not rows:
        raise UserError(f"{KEY}: {path} has no rows; fix: download it again")
    return rows


def _tsv_row(task: Task, names: Sequence[str], line: str, *, is_test: bool) -> dict:
    """The row of one line; UserError that says what is wrong, without the line number."""
    fields, layout = line.split("\t"), LAYOUTS[task.name]
    if len(fields) != len(names):
        raise UserError(f": {len(fields)} fields; {len(names)} are expected: {printable(', '.join(names))}")
    cells = dict(zip(names, map(str.strip, fields), strict=True))
    if empty := [name for name in layout.texts if not cells[name]]:
        raise UserError(f", column {empty[0]}: empty; a text is expected")
    row: dict = {column: cells[name] for column, name in zip(task.columns, layout.texts, strict=True)}
    return row if is_test else row | {"label": _label(task, cells[layout.label])}


def _label(task: Task, text: str) -> int | float:
    layout = LAYOUTS[task.name]
    if not task.score_range:
        if text in layout.spellings:
            return layout.spellings.index(text)
        wanted = f"one of {', '.join(layout.spellings)}"
    else:
        least, greatest = task.score_range
        with suppress(ValueError):
            if least <= float(text) <= greatest:
                return float(text)
        wanted = f"a number from {least:g} to {greatest:g}"
    raise UserError(f", column {layout.label}: {text!r:.40}; {wanted} is expected")
