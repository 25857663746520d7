"""Task examples made here, in the columns and label types that the GLUE sets have on the Hub."""

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

from tinybert.pipeline.errors import UserError
from tinybert.synthetic import cola, mrpc, rte, sst2, stsb

# Share of label 1 in each classification task, about that of the real ones.
POSITIVE_SHARE = {"cola": 0.7, "sst2": 0.5, "mrpc": 0.67, "rte": 0.5}
TEXT_OF_LABEL: dict[str, Callable[[Random, bool], dict[str, str]]] = {
    "cola": cola.example,
    "sst2": sst2.example,
    "mrpc": mrpc.example,
    "rte": rte.example,
}
TASKS = (*TEXT_OF_LABEL, "stsb")
SPLITS = ("train", "dev")
# Every fifth text, by checksum, can only be a dev text: no seed and no count can make the splits overlap.
DEV_EVERY = 5
MAX_TRIES_PER_ROW = 200


def examples(task: str, split: str, count: int, seed: int) -> list[dict]:
    """`count` different rows of a task: sentence, or sentence1 and sentence2; label; idx.

    `label` is an int (cola: 1 acceptable; sst2: 1 positive; mrpc: 1 equivalent; rte: 0 entailment, 1 not), for stsb a
    float from 0 to 5. No text is in both splits, whatever the seeds. UserError where task or split is unknown, or
    where the grammar does not yield so many different rows.
    """
    if task not in TASKS:
        raise UserError(f"synthetic task {task!r} is unknown; it must be one of {', '.join(TASKS)}")
    if split not in SPLITS:
        raise UserError(f"split {split!r} of synthetic task {task} is unknown; it must be one of {', '.join(SPLITS)}")
    rng = Random(f"{task} {split} {seed}")
    draw = _scored(rng) if task == "stsb" else _labelled(task, count, rng)
    return _distinct(draw, split, count, task)


def _scored(rng: Random) -> Iterator[Callable[[], dict]]:
    while True:
        yield lambda: stsb.example(rng)


def _labelled(task: str, count: int, rng: Random) -> Iterator[Callable[[], dict]]:
    """For each row, a function that draws a text for the label that the row must have."""
    ones = round(count * POSITIVE_SHARE[task])
    labels = [1] * ones + [0] * (count - ones)
    rng.shuffle(labels)
    for label in labels:
        yield partial(_row, task, label, rng)


def _row(task: str, label: int, rng: Random) -> dict:
    return {**TEXT_OF_LABEL[task](rng, bool(label)), "label": label}


def _distinct(draws: Iterator[Callable[[], dict]], split: str, count: int, task: str) -> list[dict]:
    rows: list[dict] = []
    seen: set[str] = set()
    while len(rows) < count:
        draw = next(draws)
        for _ in range(MAX_TRIES_PER_ROW):
            row = draw()
            text = _text(row)
            if text not in seen and _split_of(text) == split and row.get("sentence1", "") != row.get("sentence2"):
                break
        else:
            raise UserError(
                f"{count} {split} examples of synthetic task {task} are too many; ask for {len(rows)} or fewer"
            )
        seen.add(text)
        rows.append({**row, "idx": len(rows)})
    return rows


def _text(row: dict) -> str:
    return " | ".join(value for value in row.values() if isinstance(value, str))


def _split_of(text: str) -> str:
    return "train" if zlib.crc32(text.encode()) % DEV_EVERY else "dev"
