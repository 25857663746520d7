"""Rows of a GLUE task: synthetic, from the Hub, or from the official tab-separated files."""

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tinybert.data.tasks import Task
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import NO_TEXT, printable, read_jsonl, read_lines
from tinybert.pipeline.hub import hub_access, load_verified
from tinybert.pipeline.process import stream

KEY = "tasks.local.folder"
UNLABELLED = -1  # the Hub's label of test rows


def read_splits(task: Task, source: str, *, settings, seed: int) -> dict[str, list[dict]]:
    """Reads train, the dev splits and, where the source has them, the test splits of `task`.

    source: synthetic, hub or local; settings (params: glue) tells where; `seed` matters to synthetic rows alone. A row
    has the task's text columns, "label" (int class or float score; absent from test rows) and "idx". UserError when a
    file, a row or the Hub is at fault.
    """
    return SOURCES[source](task, settings, seed)


def _embedded(task: Task, settings, seed: int) -> dict[str, list[dict]]:
    from tinybert.synthetic import examples as synthetic

    if task.name not in synthetic.TASKS:
        raise UserError(
            f"tasks.source: synthetic: {task.name} has no synthetic examples, only {', '.join(synthetic.TASKS)} have; "
            f"take it off tasks.run, or set tasks.source to hub or local"
        )
    counts = {"train": settings.synthetic.train_examples, "dev": settings.synthetic.dev_examples}
    return {split: synthetic.examples(task.name, split, count, seed) for split, count in counts.items()}


def _hub(task: Task, settings, seed: int) -> dict[str, list[dict]]:
    hub = settings.hub
    fix = "check tasks.hub, or set tasks.source to local with tasks.local.folder, or to synthetic"
    # Arrow files that were made of a damaged download would stay; what is downloaded is kept, and is checked.
    with (
        tempfile.TemporaryDirectory() as arrow,
        hub_access("tasks.source: hub", f"{hub.dataset} ({task.name}, {hub.revision})", fix=fix),
    ):
        from datasets import load_dataset

        def load() -> dict:
            return load_dataset(hub.dataset, task.name, revision=hub.revision, cache_dir=arrow)

        loaded = load_verified(load, "dataset", hub.dataset, hub.revision)
        return _hub_splits(task, loaded)


def _hub_splits(task: Task, loaded: dict) -> dict[str, list[dict]]:
    names = {split: split.replace("dev", "validation") for split in ("train", *task.dev_splits, *task.test_splits)}
    for split in ("train", *task.dev_splits):
        if names[split] not in loaded:
            raise UserError(f"tasks.hub.dataset: {task.name} has no split {names[split]}; it has {', '.join(loaded)}")
    return {split: [_hub_row(task, row) for row in loaded[name]] for split, name in names.items() if name in loaded}


def _hub_row(task: Task, row: dict) -> dict:
    wanted = (*task.columns, "label", "idx")
    if absent := [column for column in wanted if column not in row]:
        raise UserError(f"tasks.hub.dataset: {task.name} has no column {absent[0]}; it has {', '.join(row)}")
    kept = wanted if row["label"] != UNLABELLED else (*task.columns, "idx")
    return {column: row[column] for column in kept}


def _local(task: Task, settings, seed: int) -> dict[str, list[dict]]:
    folder = paths.resolve(settings.local.folder) / task.tsv.folder
    splits = {split: _tsv_rows(task, folder / f"{split}.tsv", is_test=False) for split in ("train", *task.dev_splits)}
    for split in task.test_splits:
        if (folder / f"{split}.tsv").exists():
            splits[split] = _tsv_rows(task, folder / f"{split}.tsv", is_test=True)
    return splits


SOURCES: dict[str, Callable[..., dict[str, list[dict]]]] = {"synthetic": _embedded, "hub": _hub, "local": _local}


def _tsv_rows(task: Task, path: Path, *, is_test: bool) -> list[dict]:
    """The rows of one file; quotes are characters like any other."""
    lines = ((number, line.split("\t")) for number, line in read_lines(path, key=KEY))
    columns = _columns(task, path, lines, is_test=is_test)
    rows: list[dict] = []
    broken = 0
    for number, fields in lines:
        if fields == [""]:
            continue
        try:
            row = _row(task, f"{KEY}: {path}, line {number}", columns, fields, is_test=is_test)
        except UserError:
            broken += 1
            if broken > task.tsv.broken_rows:
                raise
            continue
        rows.append(row | {"idx": len(rows)})
    if not rows:
        raise UserError(f"{KEY}: {path} has no rows; download it again")
    return rows


def _columns(task: Task, path: Path, lines: Iterator[tuple[int, list[str]]], *, is_test: bool) -> tuple[str, ...]:
    """The column names: of a file without header line by position, else from its first line."""
    if task.tsv.columns and not is_test:
        return task.tsv.columns
    _, header = next(lines, (1, [""]))
    wanted = task.tsv.texts if is_test else (*task.tsv.texts, task.tsv.label)
    if absent := [column for column in wanted if column not in header]:
        raise UserError(f"{KEY}: {path}, line 1: no column {absent[0]!r} among {', '.join(header)!r:.200}")
    if doubled := [column for column in wanted if header.count(column) > 1]:
        raise UserError(f"{KEY}: {path}, line 1: column {doubled[0]!r} is there twice; remove one of them")
    return tuple(header)


def _row(task: Task, where: str, columns: tuple[str, ...], fields: list[str], *, is_test: bool) -> dict:
    if len(fields) != len(columns):
        raise UserError(f"{where}: {len(fields)} fields; {len(columns)} are expected: {printable(', '.join(columns))}")
    values = dict(zip(columns, fields, strict=True))
    row: dict[str, str | int | float] = {}
    for column, name in zip(task.columns, task.tsv.texts, strict=True):
        row[column] = values[name].strip()
        if not row[column]:
            raise UserError(f"{where}, column {name}: empty; a text is expected")
    if not is_test:
        row["label"] = _label(task, f"{where}, column {task.tsv.label}", values[task.tsv.label].strip())
    return row


def _label(task: Task, where: str, text: str) -> int | float:
    if task.score_range:
        return _score(task.score_range, where, text)
    if text not in task.tsv.spellings:
        raise UserError(f"{where}: {text!r:.40}; one of {', '.join(task.tsv.spellings)} is expected")
    return task.tsv.spellings.index(text)


def _score(score_range: tuple[float, float], where: str, text: str) -> float:
    least, greatest = score_range
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not least <= score <= greatest:  # also refuses NaN
        raise UserError(f"{where}: {text!r:.40}; a number from {least:g} to {greatest:g} is expected")
    return score


def read_rows(path: str | Path, task: Task) -> list[dict]:
    """The rows of a JSON-lines file that prepare_task or augment wrote; all of them have labels, or none has.

    UserError for a file without rows, and for a row whose texts, "idx" or "label" are not as the task needs them.
    """
    rows = list(read_jsonl(path))
    if not rows:
        raise UserError(f"{path}: holds no rows; run the stage that writes it again")
    is_labelled = "label" in rows[0]
    for number, row in enumerate(rows, start=1):
        wrong = [column for column in task.columns if not _is_text(row.get(column))]
        wrong += ["idx"] if type(row.get("idx")) is not int else []
        wrong += ["label"] if ("label" in row) != is_labelled or (is_labelled and not _fits(task, row["label"])) else []
        if wrong:
            found = f"{wrong[0]} is {row[wrong[0]]!r:.40}" if wrong[0] in row else f"has no {wrong[0]}"
            raise UserError(f"{path}, line {number}: {found}, unfit for {task.name}; run the stage that wrote it")
    return rows


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not NO_TEXT.search(value)


def _fits(task: Task, label: object) -> bool:
    if task.score_range:
        least, greatest = task.score_range
        return isinstance(label, (int, float)) and type(label) is not bool and least <= label <= greatest
    return type(label) is int and 0 <= label < len(task.labels)


def fraction_of(rows: Sequence[dict], fraction: float, *, seed: int) -> list[dict]:
    """A share of `rows` in their order, at least one, drawn at random by the seed.

    fraction: in (0, 1]. The rows of a smaller fraction are among those of a larger one, so that a series of fractions
    compares amounts of data and nothing else.
    """
    wanted = max(1, round(fraction * len(rows)))
    ranks = stream(seed, "train_fraction").permutation(len(rows))
    return [row for row, rank in zip(rows, ranks, strict=True) if rank < wanted]
