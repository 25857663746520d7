"""`tinybert init`: looks at a table, writes the section of a new task into params.yaml and prints what it found."""

import argparse
import glob
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from scipy.stats import entropy

from tinybert.config.load import PARAMS, check_params, load_params, read_yaml
from tinybert.config.schema import Params
from tinybert.config.tasks import TASKS, Task
from tinybert.data.own_tasks import LABELED_TEST, NUMBER, Frames, read_own, shared_texts
from tinybert.data.table_files import Table
from tinybert.data.tokenizer import load_tokenizer, teacher_tokenizer
from tinybert.models.outputs import check_bfloat16
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_file

SEEN_ROWS = 10_000  # rows used to choose kind and length
CLASS_NUMBERS = 20  # whole numbers with more different values are scores
BALANCED = 0.9  # from this share of the greatest entropy of classes on, accuracy is the metric
MOST_TOKENS_PER_WORD = 1.5  # without a tokenizer; a length too great costs less than cut texts
# Epochs (teacher, intermediate, prediction, pruning) by the maximum number of training rows per 8 classes; more than 80
# classes count as 80. The teacher of more than 8 classes has four times the GLUE task's learning rate, at most
# MANY_CLASSES_RATE. With 77 classes it scores .86 after 6 epochs at 5e-5, .93 at 2e-4 (docs/log.md).
EPOCHS = {2_000: (10, 20, 10, 4), 10_000: (6, 10, 6, 3), 100_000: (3, 3, 2, 1), math.inf: (1, 1, 1, 1)}
CLASSES, MOST_CLASSES, MANY_CLASSES_RATE = 8, 80, 2e-4
SHOWN_CLASSES = 12
MOST_SHARED = 0.05  # of dev's texts may also be in train without a warning
FEW_ROWS = 200  # of dev: a single one is half a point
PHASES = ("teacher", "intermediate", "prediction", "pruning")


def main(argv: Sequence[str]) -> None:
    """Writes a task for a table into params.yaml, as the only one to run, and prints what the table holds."""
    parser = argparse.ArgumentParser(prog="tinybert init", description=main.__doc__)
    parser.add_argument("table", help="the training rows: .csv, .tsv, .jsonl or .parquet, also .gz")
    parser.add_argument("--text", nargs="+", action="extend", required=True, metavar="COLUMN", help="one or two")
    parser.add_argument("--label", required=True, metavar="COLUMN", help="classes, numbers or lists of classes")
    parser.add_argument("--name", help="of the task; by default that of the file")
    parser.add_argument("--dev", metavar="TABLE", help="labeled rows that are scored (a tenth of TABLE)")
    parser.add_argument("--test", metavar="TABLE", help="labeled rows for an unbiased score of the FP32 student")
    parser.add_argument("--unlabeled", metavar="TABLE", help="texts without labels, for students only")
    parser.add_argument("--kind", choices=("classification", "regression", "multilabel"), help="default: by the labels")
    parser.add_argument("--separator", help="between the labels of a cell, if they are several in one text")
    options = parser.parse_args(argv)
    stem = re.sub(r"[^a-z0-9]+", "_", Path(options.table).name.split(".")[0].lower()).strip("_")
    name = options.name or (stem if re.match("[a-z]", stem) else f"task_{stem}")
    params = load_params()
    if hasattr(params.tasks, name) or name in (*TASKS, "domain"):
        raise UserError(f"--name: tasks.{name} is in params.yaml, or reserved; fix: another --name, or undo the edit")
    data = {"train": options.table, "dev": options.dev, "test": options.test, "unlabeled": options.unlabeled,
            "texts": options.text, "label": options.label, "separator": options.separator}  # fmt: skip
    data = {key: value for key, value in data.items() if value is not None}
    data["kind"] = options.kind or kind_of(Table(options.table, "TABLE"), options.label, options.separator)
    tree = read_yaml(PARAMS)
    # Predictions of another task do not fit this table, and null does not fit a teacher with 0 epochs.
    replaced = {"data": data, "finetuned_teacher": {"folder": "none"}}
    tree["tasks"][name] = tree["tasks"][params.tasks.run[0]] | replaced
    checked = check_params(tree).tasks[name].data
    assert checked  # `data`, with its defaults
    task, splits = read_own(name, checked)
    if data["kind"] == "classification":
        counts = splits["train"]["label"].value_counts()
        data |= {"metric": "macro_f1"} if entropy(counts, base=len(counts)) < BALANCED else {}
    metric = "macro_f1 (unbalanced classes)" if "metric" in data else task.headline
    section = section_of(params, data, task, splits)
    changed = write_section(name, section, params)
    print("\n".join(findings(task, splits)))
    if options.test and LABELED_TEST not in splits:
        print(f"warning: {options.test} is not scored: its column {options.label} has no labels, or is missing")
    epochs = ", ".join(f"{phase} {section[phase]['epochs']}" for phase in PHASES)
    print(f"params.yaml: tasks.{name}: {task.kind}, {metric}, {section['max_length_tokens']} tokens, epochs: {epochs}")
    for change in changed:
        print(f"params.yaml: {change}")
    if params.teacher.source == "synthetic":
        print("warning: teacher.source: synthetic, a teacher pretrained on synthetic text only; fix: before "
              "this command run git checkout params.yaml, make profile NAME=minilm")  # fmt: skip
    print("next: make repro")


def kind_of(table: Table, label: str, separator: str | None) -> str:
    """Infers the kind of task from the label column: lists, numbers (many, or with decimals), else classes."""
    found = (cells[label] for _, (_, cells) in zip(range(SEEN_ROWS), table.rows((label,)), strict=False))
    cells = [cell for cell in found if cell not in (None, "")]  # a row without a label has an error of its own
    if separator or any(isinstance(cell, list) for cell in cells):
        return "multilabel"
    texts = [text for cell in cells if (text := str(cell).strip())]
    numbers = list(filter(NUMBER.fullmatch, texts))
    are_classes = all(float(text).is_integer() for text in numbers) and len(set(numbers)) <= CLASS_NUMBERS
    others = [text for text in texts if not NUMBER.fullmatch(text)]
    for problem, fix, is_so in (
        ("mostly scores", "remove other cells", not are_classes and len(others) < len(numbers)),
        ("decimal commas", "write points", all(NUMBER.fullmatch(text.replace(",", ".", 1)) for text in texts)),
        ("lists as text", "write JSON lines", all(text[0] == "[" and text[-1] == "]" for text in others)),
    ):
        if others and is_so:
            raise table.error(f"column {label}: {problem} (got {others[0]!r:.40}); fix: {fix}, or add --kind")
    return "classification" if are_classes or others else "regression"


def section_of(params: Params, data: dict[str, Any], task: Task, splits: Frames) -> dict[str, Any]:
    """The task's section: that of a GLUE task (no `init` raised its rate), with length and epochs that fit."""
    given = next((name for name in TASKS if hasattr(params.tasks, name)), params.tasks.run[0])
    section = params.tasks[given].model_dump(mode="json", exclude_defaults=True)
    section |= {"data": data, "max_length_tokens": length_tokens(params, task, splits["train"]), "train_fraction": 1.0}
    # Augmented rows had no clear effect (docs/log.md), and need text and a trained masked-LM head.
    section |= {"finetuned_teacher": None, "augmented_copies": 0}
    classes = min(max(len(task.labels), CLASSES), MOST_CLASSES)
    labeled, unlabeled = len(splits["train"]), len(splits.get("unlabeled", ()))
    few, many = (next(epochs for most, epochs in EPOCHS.items() if rows * CLASSES / classes <= most)
                 for rows in (labeled, labeled + unlabeled))  # fmt: skip
    epochs = few[0], *many[1:3], few[3]  # only students learn from unlabeled rows
    if len(task.labels) > CLASSES:
        rate = section["teacher"]["learning_rate"]
        section["teacher"]["learning_rate"] = max(rate, min(4 * rate, MANY_CLASSES_RATE))
    for phase, number in zip(PHASES, epochs, strict=True):
        section[phase] |= {"epochs": number, "max_steps": None}
    return section


def length_tokens(params: Params, task: Task, train: pd.DataFrame) -> int:
    """The 95th percentile of the rows' tokens, up to a multiple of 8; estimated if no tokenizer can be loaded."""
    texts = train.head(SEEN_ROWS)[list(task.columns)].astype(object)
    try:
        tokenizer = teacher_tokenizer(params.teacher) or load_tokenizer(paths.TOKENIZER)
        tokens = texts.map(lambda text: len(tokenizer.encode(text, add_special_tokens=False))).sum(axis=1)
    except UserError as error:
        if params.teacher.source != "synthetic":
            again = "undo the edit of params.yaml, and run this again"
            print(f"warning: the number of tokens is a guess: {error}; then {again}")
        tokens = texts.apply(lambda column: column.str.split().str.len()).sum(axis=1) * MOST_TOKENS_PER_WORD
    longest = float(np.percentile(tokens, 95)) + 1 + len(task.columns)  # special tokens
    return int(min(512, max(16, 8 * math.ceil(longest / 8))))


def write_section(name: str, section: dict[str, Any], params: Params) -> list[str]:
    """Adds the section to params.yaml as the only task to run; no domain or pruned students; comments and order stay.

    Returns:
        The other settings that it changed, as `key: value`.
    """
    students = params.tasks.students
    kept = [student for student in params.general.students if student in students]
    models = [model for model in params.quantization.models if model in ("teacher", *students)] or [*students]
    lists = {"tasks.run": [name], "domain.students": [], "pruning.sparsities_percent": [], "general.students": kept,
             "quantization.models": models}  # fmt: skip
    yaml = YAML()
    yaml.preserve_quotes, yaml.width = True, 4096
    yaml.default_flow_style = True  # a setting on one line, as the other sections have them
    yaml.representer.add_representer(type(None), lambda by, _: by.represent_scalar("tag:yaml.org,2002:null", "null"))
    tree = yaml.load(PARAMS.read_text(encoding="utf-8"))
    changed = []
    for key, after in lists.items():
        track, field = key.split(".")
        if tree[track][field] != after:
            changed.append(f"{key}: [{', '.join(after)}]")
            tree[track][field][:] = after
    if params.precision == "bfloat16":
        try:
            check_bfloat16()
        except UserError:
            tree["precision"] = "float32"
            changed.append("precision: float32, because this machine has no bf16")
    tree["tasks"][name] = CommentedMap(section)
    tree["tasks"][name].fa.set_block_style()

    def dumped() -> str:
        text = io.StringIO()
        yaml.dump(tree, text)
        return text.getvalue()

    safe = YAML(typ="safe", pure=True)
    if not check_params(safe.load(dumped())).reads_text:
        changed.append("teacher.pretraining.max_steps: 1, because no model trains on text")
        tree["teacher"]["pretraining"]["max_steps"] = 1
        patterns = [str(paths.resolve(pattern)) for pattern in params.corpus.local.files]
        if params.corpus.source == "local" and not any(glob.glob(found, recursive=True) for found in patterns):
            tree["corpus"]["source"] = "synthetic"
            changed.append("corpus.source: synthetic, because the files of corpus.local are absent")
    check_params(safe.load(text := dumped()))
    with atomic_file(PARAMS) as handle:
        handle.write(text)
    return changed


def findings(task: Task, splits: Frames) -> list[str]:
    """What the table holds, a fact a line."""
    train, columns = splits["train"], list(task.columns)
    lines = [f"rows: {', '.join(f'{len(rows):,} {split}' for split, rows in splits.items())}"]
    if (unlabeled := splits.get("unlabeled")) is not None and (left_out := unlabeled.attrs["read"] - len(unlabeled)):
        lines.append(f"unlabeled: {left_out:,} of {unlabeled.attrs['read']:,} rows are left out: repeated texts")
    if task.is_regression:
        least, greatest = task.score_range or (0.0, 0.0)
        lines.append(f"scores: {least:g} to {greatest:g}, mean {train['label'].mean():g}")
        if (train["label"] % 1 == 0).all():
            lines.append("warning: whole numbers are read as scores; for classes add --kind classification")
        if max(abs(least), abs(greatest)) > 10:
            lines.append("warning: scores beyond 10 are learned slowly; scale them, for example to 0 to 5")
    else:
        counts = train["label"].explode().value_counts()
        first = counts.head(SHOWN_CLASSES)
        names = [f"'{label}'" if "," in label else label for label in task.labels]
        shown = [f"{names[number]} {count:,}" for number, count in zip(first.index, first, strict=True)]
        more = f", and {len(counts) - SHOWN_CLASSES} more" if len(counts) > SHOWN_CLASSES else ""
        lines.append(f"classes: {len(task.labels)} ({', '.join(shown)}{more})")
        share, rarest = counts.iloc[0] / len(train), counts.iloc[-1]
        lines.append(f"balance: the most frequent class is {share:.1%} of the rows, the rarest {rarest:,} rows")
    doubles = train.duplicated(columns)
    labels = train.assign(label=train["label"].astype(str)).drop_duplicates([*columns, "label"])
    lines.append(f"duplicates: {int(doubles.sum()):,} training rows have the text of an earlier one, "
                 f"{int(labels.duplicated(columns).sum()):,} of these with another label")  # fmt: skip
    if (count := len(splits["dev"])) < FEW_ROWS:
        lines.append(f"warning: {count} dev rows, each {1 / count:.1%} of the split; use a larger --dev")
    shared = shared_texts(splits, task)
    lines.append(f"texts also in train: {', '.join(f'{count:,} of {split}' for split, count in shared.items())}")
    for split, option in zip(task.dev_splits, ("--dev", "--test"), strict=False):
        if shared[split] > MOST_SHARED * len(splits[split]):
            lines.append(f"warning: scores on texts that are also in train are too high; name other rows with {option}")
    in_dev = shared_texts(splits, task, reference="dev").items()
    return lines + [f"texts also in dev: {count:,} of {split}" for split, count in in_dev if split != "train"]
