"""Rows of a GLUE task: synthetic, from the Hub, or from the official tab-separated files."""

import csv
import io
import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from tinybert.config.fields import Source
from tinybert.config.schema import Tasks
from tinybert.data.tasks import Task
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import printable, read_lines
from tinybert.pipeline.hub import hub_access, load_verified

KEY = "tasks.local.folder"
UNLABELLED = -1  # the Hub's label of test rows


def read_splits(task: Task, source: Source, *, settings: Tasks, seed: int) -> dict[str, list[dict]]:
    """Reads all splits of a task.

    Args:
        task: Which one.
        source: synthetic, hub or local.
        settings: The section tasks of params, which says more about each source.
        seed: Matters to synthetic rows only.

    Returns:
        The rows of train, the dev splits and, where the source has them, the test splits. A row has the task's text
        columns, "label" (int class or float score; absent from test rows) and "idx".

    Raises:
        UserError: If a file, a row or the Hub is at fault.
    """
    return SOURCES[source](task, settings, seed)


def _synthetic(task: Task, settings: Tasks, seed: int) -> dict[str, list[dict]]:
    from tinybert.synthetic import examples as synthetic

    if task.name not in synthetic.TASKS:
        raise UserError(
            f"tasks.source: synthetic: {task.name} has no synthetic examples, only {', '.join(synthetic.TASKS)} have; "
            f"take it off tasks.run, or set tasks.source to hub or local"
        )
    counts = {"train": settings.synthetic.train_examples, "dev": settings.synthetic.dev_examples}
    return {split: synthetic.examples(task.name, split, count, seed) for split, count in counts.items()}


def _hub(task: Task, settings: Tasks, seed: int) -> dict[str, list[dict]]:
    hub = settings.hub
    fix = "check tasks.hub, or set tasks.source to local with tasks.local.folder, or to synthetic"
    # Arrow files made of a damaged download would stay in the cache; the download itself is checked there.
    with (
        tempfile.TemporaryDirectory() as arrow,
        hub_access("tasks.source: hub", f"{hub.dataset} ({task.name}, {hub.revision})", fix=fix),
    ):
        from datasets import load_dataset

        def load() -> dict:
            return load_dataset(hub.dataset, task.name, revision=hub.revision, cache_dir=arrow)

        loaded = load_verified(load, "dataset", hub.dataset, hub.revision)
        names = {split: split.replace("dev", "validation") for split in ("train", *task.dev_splits, *task.test_splits)}
        for split in ("train", *task.dev_splits):
            if names[split] not in loaded:
                found = f"{task.name} has no split {names[split]}; it has {', '.join(loaded)}"
                raise UserError(f"tasks.hub.dataset: {found}")
        return {split: [_hub_row(task, row) for row in loaded[name]] for split, name in names.items() if name in loaded}


def _hub_row(task: Task, row: dict) -> dict:
    wanted = (*task.columns, "label", "idx")
    if absent := [column for column in wanted if column not in row]:
        raise UserError(f"tasks.hub.dataset: {task.name} has no column {absent[0]}; it has {', '.join(row)}")
    return {column: row[column] for column in wanted if column != "label" or row["label"] != UNLABELLED}


def _local(task: Task, settings: Tasks, seed: int) -> dict[str, list[dict]]:
    folder = paths.resolve(settings.local.folder) / task.tsv.folder
    files = {split: folder / f"{split}.tsv" for split in ("train", *task.dev_splits, *task.test_splits)}
    return {
        split: _tsv_rows(task, path, is_test=split in task.test_splits)
        for split, path in files.items()
        if path.exists() or split not in task.test_splits
    }


SOURCES: dict[str, Callable[[Task, Tasks, int], dict[str, list[dict]]]] = {
    "synthetic": _synthetic,
    "hub": _hub,
    "local": _local,
}


def _tsv_rows(task: Task, path: Path, *, is_test: bool) -> list[dict]:
    """The rows of one file. As many damaged rows as the task allows are left out."""
    lines = dict(read_lines(path, key=KEY))
    columns = task.tsv.columns
    if is_test or not columns:
        columns = tuple(lines.pop(1, "").split("\t"))
        _check_header(task, path, columns, is_test=is_test)
    lines = {number: line for number, line in lines.items() if line}
    expected = f"{len(columns)} are expected: {printable(', '.join(columns))}"
    fields = {number: line.count("\t") + 1 for number, line in lines.items()}
    wrong = {number: f": {count} fields; {expected}" for number, count in fields.items() if count != len(columns)}
    table = _parse({number: line for number, line in lines.items() if number not in wrong}, task, columns)

    rows = pd.DataFrame({column: table[name] for column, name in zip(task.columns, task.tsv.texts, strict=True)})
    for name in task.tsv.texts:
        empty = table.index[table[name] == ""]
        wrong = {number: f", column {name}: empty; a text is expected" for number in empty} | wrong
    if not is_test:
        texts = table[task.tsv.label]
        rows["label"] = [_label(task, text) for text in texts]
        allowed = (
            "a number from {:g} to {:g}".format(*task.score_range)
            if task.score_range
            else f"one of {', '.join(task.tsv.spellings)}"
        )
        for number in rows.index[rows["label"].isna()].difference(list(wrong)):
            wrong[number] = f", column {texts.name}: {texts[number]!r:.40}; {allowed} is expected"
    if len(wrong) > task.tsv.broken_rows:
        first = sorted(wrong)[task.tsv.broken_rows]
        raise UserError(f"{KEY}: {path}, line {first}{wrong[first]}")
    rows = rows.drop(index=rows.index.intersection(list(wrong)))
    if rows.empty:
        raise UserError(f"{KEY}: {path} has no rows; download it again")
    if not is_test:
        rows["label"] = rows["label"].astype(float if task.is_regression else int)
    return rows.assign(idx=range(len(rows))).to_dict("records")


def _check_header(task: Task, path: Path, header: tuple[str, ...], *, is_test: bool) -> None:
    wanted = task.tsv.texts if is_test else (*task.tsv.texts, task.tsv.label)
    if absent := [column for column in wanted if column not in header]:
        raise UserError(f"{KEY}: {path}, line 1: no column {absent[0]!r} among {', '.join(header)!r:.200}")
    if doubled := [column for column in wanted if header.count(column) > 1]:
        raise UserError(f"{KEY}: {path}, line 1: column {doubled[0]!r} is there twice; remove one of them")


def _parse(lines: dict[int, str], task: Task, columns: tuple[str, ...]) -> pd.DataFrame:
    """The task's columns of lines that have all fields, stripped, by line number."""
    wanted = [name for name in (*task.tsv.texts, task.tsv.label) if name in columns]
    places = [columns.index(name) for name in wanted]
    table = pd.read_csv(
        io.StringIO("\n".join(lines.values())),
        sep="\t",
        quoting=csv.QUOTE_NONE,
        names=range(len(columns)),
        usecols=places,
        dtype=str,
        na_filter=False,
        lineterminator="\n",
    )
    return table[places].set_axis(wanted, axis="columns").set_axis(list(lines)).apply(lambda column: column.str.strip())


def _label(task: Task, text: str) -> float:
    """The class id or the score that a text stands for; NaN if it is none."""
    if not task.score_range:
        return task.tsv.spellings.index(text) if text in task.tsv.spellings else math.nan
    least, greatest = task.score_range
    try:
        score = float(text)
    except ValueError:
        return math.nan
    return score if least <= score <= greatest else math.nan
