"""`tinybert cut`: a smaller BERT out of a fine-tuned one, by least squares on texts, with training or without.

With --speedup the command also chooses the shape. For each number of layers it cuts the widest shape that
is fast enough, unless a deeper one is as wide, and keeps the shape whose logits are nearest to the teacher's.
"""

import argparse
import math
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from tinybert.api import DistillSettings, distill_student
from tinybert.compress.onnx_files import export_onnx, latencies
from tinybert.compress.variants import LATENCY, number, read_classifier
from tinybert.config.fields import HUGE, Architecture
from tinybert.config.load import describe_mistake
from tinybert.config.students import check_subclone, mapped_layers
from tinybert.config.tasks import TableData
from tinybert.data.encoding import Encoded, encode
from tinybert.data.own_tasks import own_row
from tinybert.data.table_files import Table
from tinybert.distill.batches import logits_of, predict
from tinybert.distill.task_teacher import cut_classifier
from tinybert.models.bert import BertConfig, SequenceClassifier
from tinybert.models.model_folders import load_bert
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import report_disk_error

SEED, MOST_SCORED_ROWS, LOSSES = 42, 1_000, {"prediction": 1.0}
SIZES = ("layers", "width", "heads", "feed_forward")
WIDTH_STEP = 4  # dimensions per head between the widths that --speedup tries
TIMED_TOKENS = 1_024  # of the vocabulary: embedding lookups take no time, but exporting 30,522 rows does


def main(argv: Sequence[str]) -> None:
    """Cuts a smaller BERT out of a fine-tuned one; with --epochs it then learns the teacher's predictions."""
    options, started = _options(argv), time.monotonic()
    if options.output.exists():
        raise UserError(f"--output: exists (got {options.output}); fix: name a new folder, or remove it")
    with report_disk_error(options.output):
        options.output.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=options.output.parent).close()  # training may take hours
    teacher, tokenizer, task = read_classifier(options, partial(load_bert, SequenceClassifier))
    table, data = Table(str(options.rows), "ROWS"), TableData.model_construct(texts=tuple(options.text))
    rows = [own_row(table, found, None, data) for found in table.rows(data.texts)]
    random.Random(SEED).shuffle(rows)
    count = min(MOST_SCORED_ROWS, len(rows) // 5)
    if count < 2:  # a correlation needs two rows
        raise UserError(f"ROWS: too few (got {len(rows)}); allowed: 10 or more; fix: name a larger file")
    settings = DistillSettings(
        text=task.columns, epochs=options.epochs, learning_rate=options.learning_rate,
        max_length_tokens=options.max_length, seed=SEED, tokenizer=tokenizer,
    )  # fmt: skip
    parts = rows[:count], rows[count : 2 * count], rows[2 * count :]
    scored, compared, cut_on = (encode(part, task, tokenizer, max_length_tokens=options.max_length) for part in parts)
    longest = max(int(encoded.lengths.max()) for encoded in (scored, compared, cut_on))
    teacher.config.check_length(longest, "--max-length")
    if options.speedup is None:
        shape = _shape(options, teacher)
    else:
        shape = _nearest_shape(teacher, shapes_at(teacher, compared, options.speedup), compared, cut_on)
    student = distill_student(teacher, shape, rows[count:], LOSSES, settings)
    student.save(options.output)
    expected, found = (predict(model, scored, task) for model in (teacher, student.model))
    if task.is_regression:
        same = f"correlation with the teacher's scores: {np.corrcoef(expected, found)[0, 1]:.4f}"
    else:
        same = f"same prediction as the teacher: {np.mean((expected == found).reshape(count, -1).all(axis=1)):.1%}"
    print(f"parameters: {student.model.parameter_count:,} of {teacher.parameter_count:,}")
    print(f"{same} ({count:,} held-out rows)")
    print(f"{options.output}: model and tokenizer, after {time.monotonic() - started:.0f} s; "
          f"next: tinybert quantize {options.output} TABLE")  # fmt: skip


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tinybert cut", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="BertForSequenceClassification in safetensors, with its tokenizer")
    parser.add_argument("rows", type=Path, help=".csv, .tsv, .jsonl or .parquet, also .gz; labels are not read")
    parser.add_argument("--output", type=Path, required=True, help="a new folder for the result")
    parser.add_argument("--text", nargs="+", default=["text"], metavar="COLUMN", help="one text column or two (text)")
    parser.add_argument("--layers", type=int, help="of the result (the teacher's)")
    parser.add_argument("--width", type=int, help="of the result (the teacher's)")
    parser.add_argument("--heads", type=int, help="of the result (the teacher's), not wider than the teacher's")
    parser.add_argument("--feed-forward", type=int, help="of the result (4 times the width, at most the teacher's)")
    parser.add_argument("--speedup", type=number(float, 1, HUGE), help="instead of sizes: speed over the teacher's")
    parser.add_argument("--epochs", type=number(int, 0, HUGE), default=0, help="of training after the cut (0)")
    parser.add_argument("--learning-rate", type=number(float, 1e-9, 1), default=1e-4, help="of this training (1e-4)")
    parser.add_argument("--max-length", type=number(int, 8, 512), default=128, help="tokens of a row (128)")
    options = parser.parse_args(argv)
    sizes = [f"--{name.replace('_', '-')}" for name in SIZES if getattr(options, name) is not None]
    if options.speedup is None and not sizes:
        raise UserError("--speedup: no size given; allowed: --layers, --width, ...; fix: --speedup 2, or sizes")
    if options.speedup is not None and sizes:
        raise UserError(f"--speedup: it chooses the sizes (got {sizes[0]} too); allowed: one of them; fix: drop one")
    return options


def _shape(options: argparse.Namespace, teacher: SequenceClassifier) -> Architecture:
    """The student's shape: the teacher's sizes, where no option names another."""
    original = teacher.config.shape
    asked = {name: size for name in SIZES if (size := getattr(options, name)) is not None}
    feed_forward = min(4 * asked.get("width", original.width), original.feed_forward)
    try:
        shape = Architecture.model_validate(dict(original) | {"feed_forward": feed_forward, "dropout": 0.0} | asked)
        mapped_layers("uniform", shape.layers, original.layers, key="layers")
        check_subclone(shape, original, key="")
    except (ValidationError, UserError) as error:
        found = describe_mistake(error.errors()[0]) if isinstance(error, ValidationError) else str(error)
        size, _, problem = found.partition(":")
        raise UserError(f"--{size.replace('_', '-')}:{problem}") from None
    return shape


def _nearest_shape(
    teacher: SequenceClassifier, shapes: Mapping[Architecture, float], chosen_on: Encoded, cut_on: Encoded
) -> Architecture:
    """The shape whose cut has the logits nearest to the teacher's; prints a line for each."""
    expected, errors = logits_of(teacher, chosen_on), {}
    for shape, speedup in shapes.items():
        cut, _ = cut_classifier(teacher, shape, "uniform", cut_on)
        errors[shape] = float(np.square(logits_of(cut, chosen_on) - expected).mean())
        sizes = f"--layers {shape.layers} --width {shape.width} --feed-forward {shape.feed_forward}"
        print(f"{sizes}: {speedup:.1f} times as fast, squared error of logits {errors[shape]:.3g}", flush=True)
    return min(errors, key=errors.__getitem__)


def shapes_at(teacher: SequenceClassifier, rows: Encoded, speedup: float) -> dict[Architecture, float]:
    """For each number of layers the widest shape that is at least `speedup` times as fast as the teacher.

    Heads stay as many as the teacher's, and the feed-forward part keeps its ratio to the width. A shape that is neither
    deeper nor wider than another is left out. Each width is timed once, so speedups are estimates.

    Args:
        teacher: Only its sizes matter.
        rows: Of the task. Up to 256 are timed, 32 of similar length at a time, by ONNX Runtime in FP32 on two threads.
        speedup: 1 or more.

    Returns:
        How many times as fast each shape is, deepest first.

    Raises:
        UserError: Even the smallest shape is too slow.
    """
    original, step = teacher.config.shape, WIDTH_STEP * teacher.config.shape.heads
    widths = [*range(step, original.width, step), original.width]
    # A wider model is never faster: what was measured otherwise is noise.
    batch_ms = np.maximum.accumulate([_batch_ms(teacher, width, rows) for width in widths])  # (widths, layers)
    speedups = batch_ms[-1, -1] / batch_ms
    found, widest = dict[Architecture, float](), -1
    for layers in range(original.layers, 0, -1):
        fast = int((speedups[:, layers - 1] >= speedup).sum()) - 1  # the last width that is fast enough
        if fast > widest:
            found[_resized(original, layers, widths[fast])] = float(speedups[fast, layers - 1])
            widest = fast
    if not found:
        most = math.floor(10 * speedups.max()) / 10
        raise UserError(f"--speedup: too high (got {speedup:g}); allowed: up to {most:g}; fix: lower it")
    return found


def _resized(original: Architecture, layers: int, width: int) -> Architecture:
    feed_forward = width * original.feed_forward // original.width
    return Architecture(layers=layers, width=width, heads=original.heads, feed_forward=feed_forward, dropout=0.0)


def _batch_ms(teacher: SequenceClassifier, width: int, rows: Encoded) -> np.ndarray:
    """Milliseconds of a batch for 1, 2, ... layers: 1 and all are measured, the others interpolated."""
    original, positions = teacher.config.shape, teacher.config.max_position_embeddings
    timed_rows = replace(rows, input_ids=[ids % TIMED_TOKENS for ids in rows.input_ids])
    with tempfile.TemporaryDirectory() as folder:
        files = {str(layers): Path(folder) / f"{layers}.onnx" for layers in sorted({1, original.layers})}
        for layers, file in files.items():
            shape = _resized(original, int(layers), width)
            config = BertConfig.of(shape, vocab_size=TIMED_TOKENS, max_position_embeddings=positions)
            export_onnx(SequenceClassifier(config, teacher.labels), file)
        timed = latencies(files, LATENCY, timed_rows, TIMED_TOKENS)
    measured = [timed[layers][f"dev_batch_{LATENCY.batch_sizes[0]}"]["median"] for layers in files]
    return np.interp(np.arange(1, original.layers + 1), list(map(int, files)), measured)
