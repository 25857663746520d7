"""Task distillation as a Python call, for notebooks and scripts: no params.yaml, no pipeline."""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, Literal

import pandas as pd
import torch
from pydantic import ValidationError
from tokenizers import Tokenizer
from torch import Tensor

from tinybert.config.fields import Architecture, RowTokens, Seed, Training, read_config
from tinybert.config.load import describe_mistake
from tinybert.config.schema import Optimizer
from tinybert.config.students import LayerMap, Learnable, StageLosses
from tinybert.config.tasks import MULTILABEL, Task, task_of
from tinybert.data.own_tasks import NUMBER, is_one_hot
from tinybert.data.tokenizer import check_wordpiece, folder_tokenizer, save_tokenizer
from tinybert.distill.loop import Settings, train
from tinybert.distill.metric_log import Entry, TrainRun
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.task_teacher import TOKENIZER_FILES, TaskTeacher, cut_classifier, has_tokens_of
from tinybert.distill.teacher_cache import CachedTeacher, TeacherCache
from tinybert.models import model_folders
from tinybert.models.bert import SequenceClassifier
from tinybert.models.foreign import OWN_TOKENIZER, ForeignClassifier, load_foreign
from tinybert.models.model_folders import Classifier, TaskModel, load_bert, load_classifier, load_task_model, save_model
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import NO_TEXT, atomic_folder

Teacher = SequenceClassifier | ForeignClassifier
AnyTeacher = str | Path | Teacher
AnyStudent = str | Path | Classifier | Architecture
OPTIMIZER = Optimizer(weight_decay=0.01, max_gradient_norm=1.0, warmup_fraction=0.1)
CACHE_BYTES = 2 * 10**9  # of a temporary folder, removed after the call


@dataclass(frozen=True, kw_only=True)
class DistillSettings:
    """How a student is distilled; the defaults are those of TinyBERT's prediction phase.

    Attributes:
        text: The column of the text, or the two columns of a pair.
        label: The column of the gold labels: class names or numbers, a score, or a list of classes.
        layer_map: A name of params.yaml's layer maps, or a teacher layer for each student layer.
        tokenizer: The student's, or its folder; None: that of the student's folder, or of the teacher's if it has none.
            Required if the teacher is a BERT object and the student no earlier result.
    """

    text: tuple[str, ...] = ("text",)
    label: str = "label"
    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 3e-5
    max_length_tokens: int = 128
    temperature: float = 1.0
    layer_map: str | tuple[int, ...] = "uniform"
    seed: int = 42
    precision: str = "float32"
    optimizer: Optimizer = OPTIMIZER
    tokenizer: str | Path | Tokenizer | None = None


@dataclass(frozen=True)
class DistilledStudent:
    """A trained student: the model, its tokenizer, the loss curve, and the loss with its trained projections."""

    model: Classifier
    tokenizer: Tokenizer
    curve: list[Entry]
    max_length_tokens: int
    loss: DistillationLoss

    def save(self, folder: str | Path) -> None:
        """Writes model and tokenizer as `folder`, in place of an older model; UserError if anything else is there."""
        place = Path(folder).resolve()  # the name of "."
        if place.is_file() or (place.is_dir() and any(place.iterdir()) and not (place / "config.json").is_file()):
            raise UserError(f"folder: exists, and is no model (got {folder}); allowed: a new folder; fix: name another")
        with atomic_folder(place) as target:
            save_model(self.model, target)
            save_tokenizer(self.tokenizer, target, max_length_tokens=self.max_length_tokens)


def distill_student(
    teacher: AnyTeacher,
    student: AnyStudent | DistilledStudent,
    rows: Sequence[Mapping[str, Any]] | pd.DataFrame,
    losses: Mapping[str, float],
    settings: DistillSettings | None = None,
    *,
    callback: Callable[[Entry], None] = lambda entry: None,
) -> DistilledStudent:
    """Distills a task student from a fine-tuned classifier, as the stages of task distillation do.

    Args:
        teacher: A folder with config.json, model.safetensors and tokenizer files, or a loaded model of this package.
            A folder without the student's tokens reads rows with its own tokenizer, for losses on rows only.
        student: A folder, whose model keeps its head if it has the teacher's classes in this order. A classifier with
            these classes, or an earlier result with its tokenizer and projections, which are trained in place. Or the
            shape of a student that is cut out of the teacher, a BERT, on the rows before it learns.
        rows: Mappings or a data frame with the text columns; gold labels are read only if the loss `hard` is on.
        losses: Weight by name, for example {"prediction": 1.0}.
        settings: All other settings.
        callback: Called with each entry of the loss curve: step, epoch, learning rate, mean of each loss.

    Raises:
        UserError: A model, row, loss or setting that does not fit.
    """
    settings, earlier = settings or DistillSettings(), dict[str, Tensor]()
    training, config = _check_settings(losses, settings)
    if isinstance(student, DistilledStudent):
        settings = replace(settings, tokenizer=settings.tokenizer or student.tokenizer)
        earlier, student = student.loss.tensors, student.model
    _check_kind("teacher", teacher, Teacher)
    _check_kind("student", student, Classifier | Architecture)
    tokenizer = _student_tokenizer(settings, student, teacher)
    loaded = _load_teacher(teacher, tokenizer, settings.text)
    task = task_of(loaded.labels, loaded.config.problem_type, settings.text)
    torch.manual_seed(settings.seed)
    checked = _rows(rows, task, settings.label if "hard" in config.weights else None)
    task_teacher = TaskTeacher(loaded, task, tokenizer, settings.max_length_tokens)
    trained, projection = _start_student(student, task_teacher, checked)
    loss = DistillationLoss(config, trained.config, loaded.config)
    loss.load(student) if isinstance(student, (str, Path)) else loss.take(earlier)
    loss.start_projections(projection)
    ours, theirs = task_teacher.read_both(checked)
    with tempfile.TemporaryDirectory() as folder:
        cached = CachedTeacher(loaded, loss, theirs, TeacherCache(Path(folder), CACHE_BYTES))
        batches = cached.student_batches(ours, task, batch_size=settings.batch_size, seed=settings.seed)
        run_settings = Settings(training, training.optimizer, settings.seed, settings.precision)
        curve = train(trained, loss, batches, run_settings, teacher=cached, run=TrainRun("distill_student", callback))
    return DistilledStudent(trained, tokenizer, curve, settings.max_length_tokens, loss)


def _check_kind(key: str, value: object, kind: type | UnionType) -> None:
    """Raises UserError for an argument that is neither a folder nor an object of this package."""
    if not isinstance(value, (str, Path, kind)):
        problem = f"no folder and no object of this package (got {type(value).__name__})"
        raise UserError(f"{key}: {problem}; fix: save it, a model with its tokenizer, and name the folder")


class _Checked(Training):
    """The settings, but those of the losses, that params.yaml's schema has rules for."""

    max_steps: None = None
    layer_map: LayerMap
    optimizer: Optimizer
    max_length_tokens: RowTokens
    seed: Seed
    precision: Literal["float32", "bfloat16"]


def _check_settings(losses: Mapping[str, float], settings: DistillSettings) -> tuple[_Checked, DistillationConfig]:
    """The settings in the form of the stages; UserError for the first that params.yaml would not allow."""
    if not isinstance(settings.text, (tuple, list)) or len(settings.text) not in (1, 2):
        raise UserError(f"text: no columns (got {settings.text!r:.40}); allowed: a tuple of one or two names")
    losses = dict(losses) if isinstance(losses, Mapping) else losses
    try:
        checked = _Checked.model_validate(settings, from_attributes=True)
        stage = StageLosses.model_validate({"losses": losses, "temperature": settings.temperature})
    except ValidationError as error:
        raise UserError(describe_mistake(error.errors()[0])) from None
    if isinstance(checked.layer_map, Learnable):
        raise UserError("layer_map: learnable maps need the pipeline (got a mapping); allowed: a name, teacher layers")
    return checked, DistillationConfig(
        stage.active_losses, checked.layer_map, temperature=settings.temperature, seed=settings.seed
    )


def _student_tokenizer(settings: DistillSettings, student: AnyStudent, teacher: AnyTeacher) -> Tokenizer:
    """The tokenizer of the settings; without one, that of the first folder unless the teacher is a BERT object."""
    if found := settings.tokenizer:
        _check_kind("tokenizer", found, Tokenizer)
        if isinstance(found, Tokenizer):
            check_wordpiece(found, "tokenizer")
        return found if isinstance(found, Tokenizer) else folder_tokenizer(found, key="tokenizer")
    models = () if isinstance(teacher, SequenceClassifier) else (student, teacher)
    for folder in [Path(model) for model in models if isinstance(model, (str, Path))]:
        read_config(folder)  # the clearer message for a folder that is missing
        if any((folder / name).is_file() for name in TOKENIZER_FILES):
            return folder_tokenizer(folder, key="tokenizer")
    raise UserError("tokenizer: missing, an object has none; fix: name the tokenizer, or its folder, in settings")


def _load_teacher(teacher: AnyTeacher, tokenizer: Tokenizer, columns: tuple[str, ...]) -> Teacher:
    """The teacher of a folder: a BERT with the student's tokens, or any classifier with its own."""
    if isinstance(teacher, Teacher):
        return teacher
    found = read_config(teacher)
    if has_tokens_of(tokenizer, Path(teacher)) and not found.get(OWN_TOKENIZER):
        return load_bert(SequenceClassifier, teacher)
    labels = model_folders.class_names(found, Path(teacher) / "config.json")
    return load_foreign(Path(teacher), task_of(labels, found.get("problem_type"), columns), key="teacher")


def _start_student(
    student: AnyStudent, task_teacher: TaskTeacher, rows: list[dict]
) -> tuple[Classifier, Tensor | None]:
    """The student before its training; one that is cut out of its teacher has a projection to the teacher's states."""
    teacher, task, tokenizer = task_teacher.model, task_teacher.task, task_teacher.tokenizer
    if isinstance(student, Architecture):
        if not isinstance(teacher, SequenceClassifier):
            raise UserError("student: no BERT teacher to cut it from (got a shape); allowed: a folder; fix: name one")
        check_tokens(teacher, teacher, tokenizer)
        examples = task_teacher.read(rows, "train")
        teacher.config.check_length(int(examples.lengths.max()), "max_length_tokens")
        return cut_classifier(teacher, student, "uniform", examples)
    started = student if isinstance(student, Classifier) else _load_student(student, task)
    _check_student(started, teacher, task)
    check_tokens(started, teacher, tokenizer)
    return started, None


def _check_student(student: Classifier, teacher: TaskModel, task: Task) -> None:
    """Raises UserError for a student that was made for another task than the teacher's."""
    facts: list[tuple[str, Any, Any]] = [
        ("texts of a row", 1 + getattr(student, "pair", task.is_pair), 1 + task.is_pair),
        ("outputs", len(student.labels), len(teacher.labels)),
        ("multilabel", student.config.problem_type == MULTILABEL, task.is_multilabel),
    ]
    if len(teacher.labels) > 1:  # a regression's one label may have any name
        names = enumerate(zip(student.labels, teacher.labels, strict=False))
        facts += [(f"class {number}", *of_both) for number, of_both in names]
    for what, found, allowed in facts:
        if found != allowed:
            problem = f"it was made for another task than the teacher's (got {what}: {found!s:.80})"
            raise UserError(f"student: {problem}; allowed: {allowed!s:.80}; fix: give a general student's folder")


def check_tokens(student: Classifier, teacher: TaskModel, tokenizer: Tokenizer) -> None:
    """Raises UserError if student and BERT teacher differ in the number of tokens, or if the tokenizer has more."""
    tokens = student.config.vocab_size
    if isinstance(teacher, SequenceClassifier) and tokens != (known := teacher.config.vocab_size):
        raise UserError(f"student: its vocabulary differs (got {tokens} tokens); allowed: {known}; fix: choose another")
    if (found := tokenizer.get_vocab_size()) > tokens:
        raise UserError(f"tokenizer: too many tokens (got {found}); allowed: {tokens}; fix: use the model's tokenizer")


def _load_student(folder: str | Path, task: Task) -> Classifier:
    """A classifier of a folder with its head, if that is for the task's classes; otherwise with a new head."""
    if (read_config(folder).get("architectures") or [""])[0] in model_folders.CLASSIFIERS:
        model = load_task_model(folder)
        same = model.labels == (task.labels or model.labels[:1])  # a regression's one label may have any name
        if same and (model.config.problem_type == MULTILABEL) == task.is_multilabel:
            return model
    return load_classifier(folder, task)


def _rows(rows: Sequence[Mapping[str, Any]] | pd.DataFrame, task: Task, label: str | None) -> list[dict]:
    """The rows in the form of prepare_task: texts, and class numbers or scores if `label` names their column."""
    records: Sequence[Mapping] = rows.to_dict("records") if isinstance(rows, pd.DataFrame) else list(rows)
    if not len(records):
        raise UserError("rows: none; fix: give at least one")
    found = []
    for number, row in enumerate(records):
        for column in task.columns:
            text = row.get(column) if isinstance(row, Mapping) else None
            if not isinstance(text, str) or not text.strip():
                raise UserError(f"rows[{number}].{column}: no text (got {text!r:.40}); fix: settings.text")
            if NO_TEXT.search(text):
                raise UserError(f"rows[{number}].{column}: NUL or half a surrogate pair (got {text!r:.40})")
        found.append({column: row[column] for column in task.columns})
        if label is not None:
            found[-1]["label"] = _gold(row.get(label), task, f"rows[{number}].{label}")
    return found


def _gold(value: Any, task: Task, where: str) -> Any:
    """A class number, a score, or a list of class numbers; classes may be given by name."""
    if task.is_multilabel and isinstance(value, (list, tuple)):
        if is_one_hot(value, task.labels):
            raise UserError(f"{where}: 0 and 1 for each class (got {value!r:.40}); allowed: the classes of the row")
        return [_gold(one, replace(task, kind="classification"), where) for one in value]
    if task.is_regression and isinstance(value, Real) and math.isfinite(value):
        return float(value)
    if task.kind == "classification":
        whole = int(value) if isinstance(value, float) and value.is_integer() else value  # beside NaN in a data frame
        if str(whole) in task.labels:  # a class may be named by a number; then no number stands for a class
            return task.labels.index(str(whole))
        is_number = isinstance(whole, Integral) and not any(map(NUMBER.fullmatch, task.labels))
        if is_number and int(whole) in range(len(task.labels)):
            return int(whole)
    allowed = "a number" if task.is_regression else ", ".join(task.labels)
    raise UserError(f"{where}: no label for the loss hard (got {value!r:.40}); allowed: {allowed:.100}")
