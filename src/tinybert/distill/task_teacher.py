"""The task teacher as stages use it: a BERT with the students' tokens, a classifier with its own, or a table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from torch import Tensor

from tinybert.config.fields import ALL_FILES, Architecture, ModelSource, read_config, source_folder
from tinybert.config.schema import Params
from tinybert.config.students import TASK_PHASES, check_students
from tinybert.config.tasks import ReadyTeacher, Task
from tinybert.data.encoding import Encoded, encode, label_array, read_rows
from tinybert.data.tokenizer import folder_tokenizer, load_tokenizer
from tinybert.models import foreign
from tinybert.models.bert import ARCHITECTURE_FIELDS, SequenceClassifier
from tinybert.models.foreign import ForeignClassifier, PredictedTeacher, class_order, load_foreign, row_losses
from tinybert.models.initialization import check_vocabulary, finetuned_teacher
from tinybert.models.model_folders import TaskModel, load_bert, load_classifier
from tinybert.models.subcloning import subclone
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import one_line
from tinybert.pipeline.process import stream

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt")
CUT_TOKENS, CUT_ROWS = 65_536, 64  # that `cut_classifier` reads: of all rows, and rows of a batch


@dataclass(frozen=True)
class TaskTeacher:
    """A task's teacher and how it reads rows.

    Attributes:
        tokenizer: That of its student.
        max_length_tokens: Of a row, for every tokenizer.
        full_tokenizer: That of a BERT teacher whose student has a trimmed vocabulary.
    """

    model: TaskModel
    task: Task
    tokenizer: Tokenizer
    max_length_tokens: int
    full_tokenizer: Tokenizer | None = None

    @classmethod
    def load(cls, task: Task, seed: int | str, tokenizer: Tokenizer, *, max_length_tokens: int) -> "TaskTeacher":
        """The teacher that stage finetune_teacher left, for a student with this tokenizer."""
        folder = paths.task_model(task.name, seed, "teacher")
        if (folder / foreign.PREDICTIONS_FILE).is_file():
            return cls(PredictedTeacher.load(folder, task), task, tokenizer, max_length_tokens)
        if read_config(folder).get(foreign.OWN_TOKENIZER):
            return cls(load_foreign(folder, task, key=str(folder)), task, tokenizer, max_length_tokens)
        model, full = load_bert(SequenceClassifier, folder), load_tokenizer(folder)
        is_trimmed = full.get_vocab() != tokenizer.get_vocab()
        return cls(model, task, tokenizer, max_length_tokens, full if is_trimmed else None)

    def read_split(self, split: str) -> Encoded:
        """The rows of a split of the task, those it has outputs for, as the teacher reads them."""
        return self.read(self.known(read_rows(self.task, split), split), split)

    def read(self, rows: list[dict], split: str) -> Encoded:
        """The rows of a split as the teacher reads them: with its own tokenizer, or as numbers."""
        if isinstance(self.model, PredictedTeacher):
            places = [np.array([self.model.places[split, row["idx"]]]) for row in rows]
            labels = label_array((row["label"] for row in rows), self.task)
            return Encoded(places, [np.zeros(1, dtype=np.int64)] * len(rows), labels)
        own = self.full_tokenizer or self.tokenizer
        if isinstance(self.model, ForeignClassifier):
            own, mask = self.model.tokenizer.backend_tokenizer, self.model.tokenizer.mask_token or "[MASK]"
            rows = [row | {name: row[name].replace("[MASK]", mask) for name in self.task.columns} for row in rows]
        return encode(rows, self.task, own, max_length_tokens=self.max_length_tokens)

    def retokenized(self, split: str) -> float:
        """The share of a split's rows that the student reads as other tokens than a BERT with all tokens would."""
        rows = read_rows(self.task, split)
        (_, ours), theirs = self.read_both(rows, split, by_token=True), self.read(rows, split)
        return float(np.mean([not np.array_equal(*ids) for ids in zip(ours.input_ids, theirs.input_ids, strict=True)]))

    def known(self, rows: Iterable[dict], split: str = "train") -> list[dict]:
        """The rows that it has outputs for: all, unless only some predictions are known."""
        if not isinstance(self.model, PredictedTeacher):
            return list(rows)
        known = [row for row in rows if (split, row["idx"]) in self.model.places]
        if split == "train" and not known:
            problem = "no drawn row has a prediction; allowed: at least one"
            raise UserError(f"tasks.{self.task.name}.train_fraction: {problem}; fix: raise it to 1.0")
        return known

    def read_both(self, rows: list[dict], split: str = "train", *, by_token: bool = False) -> tuple[Encoded, Encoded]:
        """The known rows of a split as the student reads them, and as the teacher does.

        Args:
            by_token: The teacher reads the student's tokens, as losses that compare tokens need it. A trimmed
                vocabulary cuts rare words into more tokens than the teacher's own.
        """
        known = self.known(rows, split)
        examples = encode(known, self.task, self.tokenizer, max_length_tokens=self.max_length_tokens)
        if isinstance(self.model, SequenceClassifier) and not self.full_tokenizer:
            return examples, examples
        if self.full_tokenizer and by_token:
            numbers, vocabulary = self.full_tokenizer.get_vocab(), self.tokenizer.get_vocab()
            of_teacher = np.array([numbers[token] for token in sorted(vocabulary, key=vocabulary.__getitem__)])
            return examples, replace(examples, input_ids=[of_teacher[ids] for ids in examples.input_ids])
        return examples, self.read(known, split)


def start_task_teacher(
    task: Task, tokenizer: Tokenizer | None, source: ModelSource | Path, *, key: str = "teacher"
) -> TaskModel:
    """The ready teacher of a task, or one before fine-tuning, whose head comes from the global generator.

    A BERT with the project's vocabulary is computed by our own class. UserError if the model does not fit the task.

    Args:
        tokenizer: The project's; None: not trained yet, a BERT is assumed to share it.
        source: The task's `finetuned_teacher`, or what it starts from: a third party's model, or `teacher`'s folder.
        key: Of the source in params.yaml.
    """
    is_ready = isinstance(source, ReadyTeacher)
    folder = source if isinstance(source, Path) else source_folder(source, key=key, files=ALL_FILES)
    if isinstance(source, ModelSource) and not has_tokens_of(tokenizer, folder):
        return load_foreign(folder, task, key=key, with_head=is_ready)
    model = finetuned_teacher(folder, task, key=key) if is_ready else load_classifier(folder, task)
    if tokenizer and isinstance(model, SequenceClassifier):
        own = any((folder / name).is_file() for name in TOKENIZER_FILES)  # then it has the same tokens
        check_vocabulary(model.config, tokenizer.get_vocab_size(), key, may_be_padded=own)
    return model


def cut_classifier(
    teacher: SequenceClassifier, shape: Architecture, layers: str | tuple[int, ...], rows: Encoded
) -> tuple[SequenceClassifier, Tensor]:
    """Cuts a task student out of its task's teacher by `subclone`; without any training it scores close to it.

    Args:
        teacher: Left in evaluation mode.
        shape: The student's.
        layers: A name of ONE_LAYER_MAPS, or the teacher layer (1-based) that each student layer replaces.
        rows: Of the task, by the teacher's tokenizer; those that are read are drawn, up to CUT_TOKENS in all.

    Returns:
        The student with the teacher's classes, in training mode, and the projection of its states to the teacher's,
        (teacher width, student width).
    """
    drawn = stream(0, "cut").permutation(len(rows))
    drawn = drawn[: max(1, int(np.searchsorted(rows.lengths[drawn].cumsum(), CUT_TOKENS)))]
    batches = [rows.batch(drawn[start : start + CUT_ROWS]) for start in range(0, len(drawn), CUT_ROWS)]
    cut = subclone(teacher, teacher.config.resized(shape), layers, batches=batches)
    assert isinstance(cut.model, SequenceClassifier) and cut.projection is not None
    return cut.model, cut.projection


def check_teacher(teacher: TaskModel, key: str, params: Params) -> None:
    """Raises UserError if students cannot learn from the third-party model that `key` of params names."""
    if isinstance(teacher, ForeignClassifier):
        check_row_losses(teacher.model.config.to_dict(), key, params)
    if isinstance(teacher, (ForeignClassifier, SequenceClassifier)):
        students = {name: params.students[name] for name in params.tasks.students}
        check_students(students, teacher.config.shape, TASK_PHASES)


def check_config(folder: Path, task: Task | None, key: str, params: Params) -> None:
    """Checks what config.json alone shows of a third-party model: its layers, and its classes if it is for a task."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # of many types, by family
        reason = one_line(error)
        raise UserError(f"{key}: config.json cannot be read ({reason:.200}); fix: choose another model") from None
    if task:
        theirs = [str(name) for _, name in sorted(config.id2label.items())]
        class_order(theirs, task, key=key, stated=config.problem_type)
    sizes: dict[str, Any] = {ours: getattr(config, theirs, 0) for ours, theirs in ARCHITECTURE_FIELDS.items()}
    students = {name: params.students[name] for name in params.tasks.students}
    check_students(students, Architecture.model_construct(**sizes), TASK_PHASES)


def check_row_losses(config: Mapping[str, Any], key: str, params: Params) -> None:
    """Raises UserError if students learn more than rows from a model with its own vocabulary, by its config.json."""
    family = f"a {config.get('model_type', 'bert')!s:.40} with its own vocabulary"
    params.check_row_teacher(key, family, row_losses(config))


def has_tokens_of(tokenizer: Tokenizer | None, folder: Path) -> bool:
    """Whether a folder holds a BERT with this vocabulary, or with none of its own."""
    if read_config(folder).get("model_type", "bert") != "bert":
        return False
    if tokenizer is None or not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return True
    try:
        return folder_tokenizer(folder).get_vocab() == tokenizer.get_vocab()
    except UserError:  # no WordPiece
        return False
