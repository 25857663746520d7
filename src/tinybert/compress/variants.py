"""The ONNX variants of a classifier: written, measured, chosen from; and the command `tinybert quantize`."""

import argparse
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from tabulate import tabulate
from tokenizers import Tokenizer

from tinybert.compress.onnx_files import OnnxClassifier, export_onnx, latencies, write_portable
from tinybert.compress.quantization import calibration_feeds, plan_int8, write_int8, write_published_int8
from tinybert.config.fields import HUGE, read_config
from tinybert.config.load import describe_mistake
from tinybert.config.schema import Calibration, Latency, Quantization
from tinybert.config.tasks import METRICS_BY_KIND, TableData, Task, task_of
from tinybert.data.encoding import Encoded, encode
from tinybert.data.own_tasks import COLUMNS, NUMBER, Labels, own_row
from tinybert.data.table_files import Table
from tinybert.data.tokenizer import folder_tokenizer, load_tokenizer, tokenizer_settings
from tinybert.distill.batches import PREDICTION_BATCH_SIZE, decide
from tinybert.evaluate.scoring import Predictions, choose_variant, score_drops, variant_scores
from tinybert.models.bert import SequenceClassifier
from tinybert.models.foreign import RELATIVES, ROBERTA
from tinybert.models.model_folders import Classifier, load_any_bert
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_folder, file_sizes_mb, write_json
from tinybert.pipeline.paths import INT8_VARIANTS, VARIANTS

CHECKED_ROWS = (1, 32)  # sizes of the batches of scored rows on which the exported graph must agree with PyTorch
RESULTS_FILE = "quantization.json"
# The command's settings that params.yaml has keys for. Only times of real rows are reported: one short random batch.
SEED, SMOOTHING, CALIBRATION_BATCH, CALIBRATION_ROWS, MIN_LENGTH = 42, 0.9, 8, 128, 8
LATENCY = Latency(batch_sizes=(32,), length_tokens=8, dev_examples=256, warmup_runs=2, runs=1, threads=2)


class Measured(NamedTuple):
    """ONNX variants by name: predictions; scores and sizes; latencies as `latencies` returns them."""

    predictions: dict[str, Predictions]
    metrics: dict[str, dict[str, Any]]
    latency: dict[str, Any]


class Subject(NamedTuple):
    """A classifier with rows of its task: those that calibrate INT8, and those that are scored and timed."""

    model: Classifier
    task: Task
    calibration: Encoded
    scored: Encoded


def measure_variants(subject: Subject, folder: Path, settings: Quantization, *, seed: int) -> Measured:
    """Writes fp32.onnx and the INT8 variants into an existing folder, and measures each."""
    task, rows, calibration = subject.task, subject.scored, settings.calibration
    files = {variant: folder / f"{variant}.onnx" for variant in VARIANTS}
    checked = [rows.batch(range(min(count, len(rows)))) for count in CHECKED_ROWS]
    export_onnx(subject.model, files["fp32"], real_rows=checked)
    feeds = calibration_feeds(subject.calibration, batch_size=calibration.batch_size)
    if settings.method == "published":
        for variant in INT8_VARIANTS:
            write_published_int8(files["fp32"], feeds, files[variant], variant)
    else:
        plan = plan_int8(files["fp32"], feeds, smoothing=calibration.smoothing, exclude=settings.exclude)
        for variant in INT8_VARIANTS:
            write_int8(plan, files[variant], variant)
    predictions = {}
    for variant, file in files.items():
        logits = OnnxClassifier(file, settings.latency.threads).logits_of(rows, PREDICTION_BATCH_SIZE)
        predictions[variant] = Predictions(task.headline, rows.gold, decide(logits, task))
    scores = variant_scores(predictions, task, seed=seed)
    metrics = {variant: scores[variant] | {"size_mb": file_sizes_mb(file)} for variant, file in files.items()}
    return Measured(predictions, metrics, latencies(files, settings.latency, rows, subject.model.config.vocab_size))


def passing_variant(found: Mapping[str, dict], metric: str, max_score_drop: float | None, *, key: str) -> str:
    """The variant that `choose_variant` chooses; UserError that begins with `key` if none passes."""
    if chosen := choose_variant(found, metric, max_score_drop):
        return chosen
    listed = ", ".join(f"{variant} {drop:.4f}" for variant, drop in score_drops(found, metric).items())
    fix = "raise it, add rows, or keep nodes in float (exclude)"
    problem = f"every INT8 variant loses more {metric} (got {listed})"
    raise UserError(f"{key}: {problem}; allowed: {max_score_drop:g}; fix: {fix}")


def main(argv: Sequence[str]) -> None:
    """Runs `tinybert quantize`."""
    options = _options(argv)
    output = options.output or options.folder / "onnx"
    if output.exists() and not (output / RESULTS_FILE).is_file():
        raise UserError(f"--output: exists, but not from this command (got {output}); fix: --output NEW")
    subject = _subject(options)
    drop, examples = options.max_score_drop, len(subject.calibration)
    calibration = Calibration(examples=examples, batch_size=CALIBRATION_BATCH, smoothing=SMOOTHING)
    settings = Quantization.model_construct(
        method="smoothed", calibration=calibration, exclude=options.exclude, latency=LATENCY
    )
    counts = {"calibration_rows": examples, "scored_rows": len(subject.scored)}
    with atomic_folder(output) as folder:
        measured = measure_variants(subject, folder, settings, seed=SEED)
        rows = min(*LATENCY.batch_sizes, measured.latency["dev_examples"])  # of a batch at real lengths
        for variant, found in measured.metrics.items():
            found["row_ms"] = measured.latency[variant][f"dev_batch_{LATENCY.batch_sizes[0]}"]["median"] / rows
        write_portable(folder / "fp32.onnx", folder / "model.onnx")
        results: dict[str, Any] = counts | {"max_score_drop": drop, "variants": measured.metrics}
        write_json(folder / RESULTS_FILE, results)
    print(_table(results["variants"], subject.task.headline), flush=True)
    print("\n{scored_rows} rows scored, {calibration_rows} others calibrated INT8".format(**counts), flush=True)
    if measured.metrics["fp32"]["collapsed"]:
        print("warning: FP32 has one answer for all rows; fix: check the column --text, and the model's tokenizer")
    # If no variant passes, the files stay, without model_quantized.onnx.
    chosen = passing_variant(measured.metrics, subject.task.headline, drop, key="--max-score-drop")
    write_portable(output / f"{chosen}.onnx", output / "model_quantized.onnx")
    write_json(output / RESULTS_FILE, results | {"chosen": chosen})
    print(f"chosen: {chosen}; {output} has all files, model_quantized.onnx is this one for other runtimes")


def _options(argv: Sequence[str]) -> argparse.Namespace:
    description = "Writes ONNX files of a fine-tuned classifier, measures them, and chooses an INT8 one."
    parser = argparse.ArgumentParser(prog="tinybert quantize", description=description)
    parser.add_argument("folder", type=Path, help="a BERT, RoBERTa, DistilBERT or ELECTRA classifier, in safetensors")
    parser.add_argument("rows", type=Path, help=".csv, .tsv, .jsonl or .parquet, also .gz; not the training rows")
    parser.add_argument("--text", nargs="+", default=["text"], metavar="COLUMN", help="one text column or two (text)")
    parser.add_argument("--label", default="label", metavar="COLUMN", help="class names or numbers, or scores (label)")
    parser.add_argument("--separator", help="between labels of a cell (problem_type: multi_label_classification)")
    metrics = "accuracy, macro_f1, f1 (of class 1), matthews; pearson, spearman; multilabel: micro_f1, macro_f1"
    parser.add_argument("--metric", help=metrics)
    share, count = number(float, 0, 1), number(int, 1, HUGE)
    parser.add_argument("--max-score-drop", type=share, default=0.01, help="of the chosen file, 0 to 1 (0.01)")
    parser.add_argument("--calibration-rows", type=count, help="drawn, not scored (128, at most a quarter of the rows)")
    parser.add_argument("--exclude", nargs="+", default=(), metavar="PATTERN", help="ONNX nodes that stay in float")
    parser.add_argument("--max-length", type=number(int, MIN_LENGTH, 512), help="tokens of a row (its tokenizer's)")
    parser.add_argument("--output", type=Path, help="a folder; earlier output in it is replaced (FOLDER/onnx)")
    return parser.parse_args(argv)


def number(kind: type, least: float, most: float) -> Callable[[str], Any]:
    """An argparse `type` that reads a number and checks its limits."""

    def number_within_limits(text: str) -> Any:
        if not least <= (value := kind(text)) <= most:
            raise argparse.ArgumentTypeError(f"out of range (got {text}); allowed: {least} to {most}")
        return value

    number_within_limits.__name__ = kind.__name__  # argparse names it in errors
    return number_within_limits


def read_classifier(
    options: argparse.Namespace, load: Callable[[Path], SequenceClassifier]
) -> tuple[SequenceClassifier, Tokenizer, Task]:
    """Loads model and tokenizer of FOLDER and makes its task on the --text columns; `tinybert cut` uses it too."""
    model = load(options.folder)
    if RELATIVES.get(read_config(options.folder).get("model_type", "bert")) is not ROBERTA:
        tokenizer = folder_tokenizer(options.folder, key="FOLDER")
    else:
        fix = "tokenizer.save_pretrained(FOLDER) of transformers"
        tokenizer = load_tokenizer(options.folder, fix=fix)
        if tokenizer.post_processor is None:
            raise UserError(f"{options.folder}/tokenizer.json: adds no special tokens; fix: {fix}")
    if (found := max(tokenizer.get_vocab().values()) + 1) > (most := model.config.vocab_size):
        raise UserError(f"FOLDER: its tokenizer is too large (got {found}); allowed: {most}; fix: use the model's")
    if not all(options.text) or not len(set(options.text)) == len(options.text) <= len(COLUMNS):
        raise UserError(f"--text: must be one column, or two different ones (got {options.text}); fix: name these")
    return model, tokenizer, task_of(model.labels, model.config.problem_type, COLUMNS[: len(options.text)])


def _subject(options: argparse.Namespace) -> Subject:
    """The model with its rows; calibration rows are drawn and not scored."""
    model, tokenizer, task = read_classifier(options, load_any_bert)
    known = [metric for metric in METRICS_BY_KIND[task.kind] if metric != "f1" or len(task.labels) == 2]
    metric = options.metric or task.headline
    if metric not in known:
        raise UserError(f"--metric: does not fit the model's labels (got {metric}); allowed: {', '.join(known)}")
    task = replace(task, name=options.folder.name, metrics=(metric,))
    try:
        data = TableData(
            train=str(options.rows), texts=tuple(options.text), label=options.label, kind=task.kind,
            separator=options.separator, labels=task.labels or None,
        )  # fmt: skip
    except ValidationError as error:
        mistake = describe_mistake(error.errors()[0])
        key = "FOLDER: " if mistake.startswith("labels") else "--"
        raise UserError(key + mistake.replace("texts.", "text ")) from None
    # Numbers stand for classes, unless they are names of classes.
    classes = () if any(map(NUMBER.fullmatch, task.labels)) else task.labels
    aliases = {str(number): name for number, name in enumerate(classes)}
    if len({name.lower() for name in task.labels}) == len(task.labels):
        aliases |= {name.lower(): name for name in task.labels}
    table, labels = Table(data.train, "ROWS"), Labels(data, task.labels, aliases)
    rows = [own_row(table, found, labels, data) for found in table.rows(data.columns)]
    count = options.calibration_rows or max(2, min(CALIBRATION_ROWS, len(rows) // 4))
    if count >= len(rows):
        raise UserError(f"--calibration-rows: no row is left (got {count} of {len(rows)}); fix: lower it, or add rows")
    random.Random(SEED).shuffle(rows)
    if task.is_regression:
        scores = [row["label"] for row in rows]
        task = replace(task, score_range=(min(scores), max(scores)))
    limit = tokenizer_settings(options.folder).get("model_max_length") or 512
    if not isinstance(limit, (int, float)) or limit < MIN_LENGTH:
        problem = f"model_max_length: no number of tokens (got {limit!r:.40}); allowed: {MIN_LENGTH} or more"
        raise UserError(f"{options.folder}/tokenizer_config.json: {problem}; fix: correct it")
    longest = int(min(options.max_length or limit, model.config.max_position_embeddings))
    parts = (encode(part, task, tokenizer, max_length_tokens=longest) for part in (rows[:count], rows[count:]))
    return Subject(model, task, *parts)


def _table(found: Mapping[str, dict[str, Any]], metric: str) -> str:
    rows = []
    for variant, result in found.items():
        change, ends = result["dev"][metric] - found["fp32"]["dev"][metric], result["difference_95"]
        same = "" if result["agreement"] is None else f"{result['agreement']:.1%}"
        cells = (variant, f"{result['size_mb']['raw']:.2f}", f"{result['dev'][metric]:.4f}", f"{change + 0.0:+.4f}")
        rows.append((*cells, f"{ends['low']:+.4f} to {ends['high']:+.4f}", same, f"{result['row_ms']:.3f}"))
    headings = ("variant", "MB", metric, "minus FP32", "95 %", "as FP32", "ms a row")
    return tabulate(rows, headings, colalign=("left", *["right"] * 6), disable_numparse=True)
