"""`tinybert cut`: a smaller BERT out of a fine-tuned one, by least squares on texts, with training or without."""

import argparse
import random
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from tinybert.api import DistillSettings, distill_student, task_of
from tinybert.config.fields import Architecture
from tinybert.config.load import describe_mistake
from tinybert.config.task_settings import TableData
from tinybert.data.encoding import encode
from tinybert.data.own_tasks import COLUMNS, own_row
from tinybert.data.table_files import Table
from tinybert.distill.batches import predict
from tinybert.models.bert import SequenceClassifier
from tinybert.models.checkpoints import load_bert
from tinybert.pipeline.errors import UserError

SEED, MOST_SCORED_ROWS = 42, 1_000


def main(argv: Sequence[str]) -> None:
    """Cuts a smaller BERT out of a fine-tuned one; with --epochs it then learns the teacher's predictions."""
    options, started = _options(argv), time.monotonic()
    if options.output.exists():
        raise UserError(f"--output: exists (got {options.output}); fix: name a new folder, or remove it")
    teacher, table = load_bert(SequenceClassifier, options.folder), Table(str(options.rows), "ROWS")
    if len(options.text) > len(COLUMNS):
        raise UserError(f"--text: too many columns (got {' '.join(options.text)}); allowed: one or two")
    data = TableData(train=table.name, texts=tuple(options.text), label="none")
    rows = [own_row(table, found, None, data) for found in table.rows(data.texts)]
    random.Random(SEED).shuffle(rows)
    count = min(MOST_SCORED_ROWS, len(rows) // 5)
    if not count:
        raise UserError(f"ROWS: too few (got {len(rows)}); allowed: 5 or more; fix: name a larger file")
    settings = DistillSettings(
        text=COLUMNS[: len(data.texts)], epochs=options.epochs, learning_rate=options.learning_rate,
        max_length_tokens=options.max_length, seed=SEED, tokenizer=options.folder,
    )  # fmt: skip
    student = distill_student(teacher, _shape(options, teacher), rows[count:], {"prediction": 1.0}, settings)
    student.save(options.output)
    task = task_of(teacher, settings.text)
    scored = encode(rows[:count], task, student.tokenizer, max_length_tokens=options.max_length)
    theirs, ours = (predict(model, scored, task) for model in (teacher, student.model))
    if task.is_regression:
        same = f"correlation with the teacher's scores: {np.corrcoef(theirs, ours)[0, 1]:.4f}"
    else:
        same = f"same answer as the teacher: {np.mean((theirs == ours).reshape(count, -1).all(axis=1)):.1%}"
    print(f"parameters: {student.model.parameter_count:,} of {teacher.parameter_count:,}")
    print(f"{same} ({count:,} rows that it has not read)")
    print(f"{options.output}: model and tokenizer, after {time.monotonic() - started:.0f} s; next: tinybert quantize")


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tinybert cut", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="BertForSequenceClassification in safetensors, with its tokenizer")
    parser.add_argument("rows", type=Path, help=".csv, .tsv, .jsonl or .parquet, also .gz; labels are not read")
    parser.add_argument("--output", type=Path, required=True, help="a new folder for the result")
    parser.add_argument("--text", nargs="+", default=["text"], metavar="COLUMN", help="one text column or two (text)")
    parser.add_argument("--layers", type=int, help="of the result (the teacher's)")
    parser.add_argument("--width", type=int, help="likewise")
    parser.add_argument("--heads", type=int, help="likewise; heads may not be wider than the teacher's")
    parser.add_argument("--feed-forward", type=int, help="likewise (4 times the width)")
    parser.add_argument("--epochs", type=int, default=0, help="of training after the cut (0)")
    parser.add_argument("--learning-rate", type=float, default=1e-4, help="of this training (1e-4)")
    parser.add_argument("--max-length", type=int, default=128, help="tokens of a row (128)")
    return parser.parse_args(argv)


def _shape(options: argparse.Namespace, teacher: SequenceClassifier) -> Architecture:
    """The student's shape: the teacher's sizes, where no option names another."""
    given = teacher.config.shape
    sizes = {name: getattr(given, name) for name in ("layers", "width", "heads")} | {"feed_forward": None}
    sizes |= {name: asked for name in sizes if (asked := getattr(options, name)) is not None}
    sizes["feed_forward"] = sizes["feed_forward"] or min(4 * sizes["width"], given.feed_forward)
    try:
        return Architecture.model_validate(sizes | {"dropout": 0.0})
    except ValidationError as error:
        raise UserError(describe_mistake(error.errors()[0])) from None
