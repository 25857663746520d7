"""The model card of a task model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinybert.compress.pruning import linear_sparsity
from tinybert.compress.serving import VARIANTS
from tinybert.data.tasks import Task
from tinybert.pipeline import paths
from tinybert.report.card import INHERITED, architecture, bullets, recipe_section, revision_section, write_card
from tinybert.report.source_words import corpus_source, hub_names, model_source, task_source, teacher_source
from tinybert.report.table import ABSENT, Table, fixed, markdown_body, percent, score
from tinybert.report.training_table import params_of

# where the Hub's name is another
HUB_METRICS = {"matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
EXAMPLES = ("The shop was closed.", "It was shut.")
WITH_TRANSFORMERS = """```python
from transformers import pipeline

classify = pipeline("text-classification", "FOLDER", truncation=True)
print(classify([ASKED]))
```

"""
WITH_ONNX_RUNTIME = """```python
import onnxruntime, tokenizers

rows = tokenizers.Tokenizer.from_file("FOLDER/tokenizer.json").encode_batch([ROW])
fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
feeds = {name: [getattr(row, field) for row in rows] for name, field in fields.items()}
print(onnxruntime.InferenceSession("FOLDER/qdq.onnx").run(["logits"], feeds)[0])
```

"""
ABOUT_LOGITS = (
    "Logits are in the order of `id2label` in config.json; a regression has one, the score. "
    "The files need ONNX Runtime 1.24 or newer."
)


@dataclass(frozen=True)
class TaskModel:
    """A finished task model and all that its card says of it.

    name: teacher, a student or a pruned student. model: itself; history: how it was trained. params: what the stage
    declares. scores: of its ONNX variants. teacher, majority: dev metrics of the task's teacher and of
    the majority guess. examples: rows by split.
    """

    name: str
    task: Task
    model: Any
    history: Sequence[dict[str, Any]]
    params: Any
    scores: dict[str, dict]
    teacher: dict[str, float]
    majority: dict[str, float]
    examples: dict[str, int]

    @property
    def is_teacher(self) -> bool:
        return self.name == "teacher"

    @property
    def is_pruned(self) -> bool:
        return bool(self.history) and self.history[-1]["stage"] == "prune"

    @property
    def is_bert(self) -> bool:
        return self.model.model_type == "bert"

    @property
    def settings(self) -> Any:
        """The task's section of params."""
        return self.params.tasks[self.task.name]


def write_task_card(folder: Path, of: TaskModel) -> None:
    """Writes README.md into the existing `folder`; no timings, so that the same project gives the same bytes."""
    sections = {
        "Data": _data(of),
        "Teacher": _teacher(of),
        "Recipe": recipe_section(of.history, architecture=architecture(of.model)),
        "Scores and sizes": _scores(of),
        "Limits": _limits(of),
        "Use": usage(of.task, of.name, is_bert=of.is_bert),
        "Made with": revision_section(of.params.seed),
    }
    write_card(folder, title=f"`{of.name}` for {of.task.name}", entries=_entries(of), sections=sections)


def usage(task: Task, name: str, *, is_bert: bool) -> str:
    """How the folder is loaded and asked, in five lines each."""
    texts = [f'"{text}"' for text in EXAMPLES[: len(task.columns)]]
    asked = '{{"text": {}, "text_pair": {}}}'.format(*texts) if task.is_pair else texts[0]
    row = f"({', '.join(texts)})" if task.is_pair else texts[0]
    folder = paths.final(task.name, name)
    first = WITH_TRANSFORMERS if is_bert else "With ONNX Runtime alone: transformers knows no such BiLSTM.\n\n"
    whole = first + WITH_ONNX_RUNTIME + ABOUT_LOGITS
    return whole.replace("FOLDER", str(folder)).replace("ASKED", asked).replace("ROW", row)


def _entries(of: TaskModel) -> dict[str, Any]:
    """The YAML in front. The licence is left out: that of data and teacher decides it."""
    corpora = () if of.is_teacher else (of.params.corpus,)
    ready = of.settings.finetuned_teacher
    return {
        "language": "en" if of.params.tasks.source != "local" else None,  # of other rows nobody said it
        "library_name": "transformers" if of.is_bert else "onnx",
        "pipeline_tag": "text-classification",
        "tags": ["onnx", "text-classification", *([] if of.is_teacher else ["distillation"])],
        "datasets": hub_names(of.params.tasks, *corpora),
        "base_model": hub_names(of.params.teacher, *([ready] if ready else [])),
        "model-index": _index(of) if of.params.tasks.source == "hub" else None,
    }


def _index(of: TaskModel) -> list[dict[str, Any]]:
    """The FP32 scores as the Hub lists them, of its own data only."""
    dev, hub = of.scores["fp32"]["dev"], of.params.tasks.hub
    split = of.task.dev_splits[0].replace("dev", "validation")
    dataset = {"type": hub.dataset, "name": f"GLUE {of.task.name}", "config": of.task.name, "split": split}
    metrics = [{"type": HUB_METRICS.get(name, name), "value": round(value, 4)} for name, value in dev.items()]
    result = {"task": {"type": "text-classification"}, "dataset": dataset | {"revision": hub.revision}}
    return [{"name": f"{of.name}-{of.task.name}", "results": [result | {"metrics": metrics}]}]


def _data(of: TaskModel) -> str:
    rows = ", ".join(f"{count:,} {split}" for split, count in of.examples.items())
    labels = ", ".join(f"`{label}`" for label in of.task.labels)
    span = of.task.score_range
    kind = "a score from {:g} to {:g}".format(*span) if span else f"classes {labels}"
    lines = [f"Task: {of.task.name} ({kind}), {task_source(of.params.tasks)}", f"Rows: {rows}"]
    if not of.is_teacher:
        share = params_of(of.history, f"tasks.{of.task.name}.train_fraction")
        copies = params_of(of.history, f"tasks.{of.task.name}.augmented_copies")
        strategy = params_of(of.history, "augmentation.strategy")
        varied = f"each with {copies} variations drawn ({strategy})" if copies else "without augmentation"
        lines += [f"Of the training rows: {percent(share)}, {varied}"] if share else []
        lines += [f"General distillation: {corpus_source(of.params.corpus)}"]
    return bullets(lines)


def _teacher(of: TaskModel) -> str:
    ready = of.settings.finetuned_teacher
    if ready:
        source = f"fine-tuned on the task by others: {model_source(ready)}"
    else:
        source = f"fine-tuned here on the task's gold labels from {teacher_source(of.params.teacher)}"
    return f"This is the task's teacher, {source}." if of.is_teacher else f"The task's teacher was {source}."


def _scores(of: TaskModel) -> str:
    metrics = of.task.metrics
    guess = [("majority guess", *(score(of.majority[metric]) for metric in metrics), ABSENT, ABSENT, ABSENT)]
    teacher = [("teacher", *(score(of.teacher[metric]) for metric in metrics), ABSENT, ABSENT, ABSENT)]
    rows = [_form_row(of, form) for form in VARIANTS]
    columns = ("", *metrics, "as FP32", f"{of.task.headline} less FP32's, 95 %", "MB")
    note = (
        f"On {of.task.dev_splits[0]}. fp32, dynamic, qdq and qoperator are the ONNX files of these names. As FP32: "
        "share of rows that get FP32's answer. 95 %: paired bootstrap interval over rows."
    )
    whole = markdown_body(Table("Scores", columns, [*guess, *([] if of.is_teacher else teacher), *rows], note=note))
    if not of.is_pruned:
        return whole
    return f"{whole}\nPruned: {percent(linear_sparsity(of.model))} of the weights of its linear layers are zero."


def _form_row(of: TaskModel, form: str) -> tuple[str, ...]:
    found = of.scores[form]
    scores = (score(found["dev"][metric]) for metric in of.task.metrics)
    if form == "fp32":
        return (form, *scores, ABSENT, ABSENT, fixed(found["size_mb"]["raw"], 2))
    interval = "{low:+.3f} to {high:+.3f}".format(**found["difference_95"])
    return (form, *scores, percent(found["agreement"]), interval, fixed(found["size_mb"]["raw"], 2))


def _limits(of: TaskModel) -> str:
    """What a reader must know before using it."""
    collapsed = [form for form in VARIANTS if of.scores[form]["collapsed"]]
    is_synthetic = of.params.tasks.source == "synthetic"
    warning = f"**Collapsed: {', '.join(collapsed)} gives one answer whatever the input. Do not use it.**"
    lines = [
        warning if collapsed else "",
        f"The scores are those of the labelled {of.task.dev_splits[0]} split, not of GLUE's test server. Weights are "
        "of the last step, none was selected by this split; settings may have been chosen with it in sight.",
        "One training run with one seed: another seed gives another score.",
        "Its rows are synthetic: it knows a small grammar and vocabulary, its scores cannot be compared with GLUE's, "
        "and it is of no use on real text."
        if is_synthetic
        else "",
        f"A row of more than {of.settings.max_length_tokens} tokens is cut: it learnt from none that is longer.",
        f"The INT8 forms were calibrated on {of.params.quantization.calibration.examples} training rows at most.",
        "It was trained on annotators' judgements and a pretrained model, whose mistakes and biases were not examined."
        if of.is_teacher
        else INHERITED,
    ]
    return bullets(lines)
