"""Where teachers come from: the masked-LM teacher, and a task teacher that others fine-tuned."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from tinybert.config.compatibility import STAGES, check_misfits
from tinybert.models.bert import BertConfig, MaskedLM, SequenceClassifier
from tinybert.models.checkpoints import REGRESSION_LABEL
from tinybert.models.pretrained import CHECKPOINT_FILES, checkpoint_folder, load_finetuned, load_pretrained
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.hub import hub_folder

if TYPE_CHECKING:
    from tinybert.data.tasks import Task

POSITIONS = 512  # of an synthetic teacher, as BERT has


def start_teacher(teacher, *, vocab_size: int, seed: int) -> MaskedLM:
    """The teacher before its (further) pretraining, by the teacher section of params.

    New weights are drawn by `seed`. UserError when the checkpoint does not fit the tokenizer's `vocab_size`,
    or has no masked-LM head and gets no training either.
    """
    torch.manual_seed(seed)
    if teacher.source == "synthetic":
        architecture = teacher.synthetic.architecture
        return MaskedLM(BertConfig.of(architecture, vocab_size=vocab_size, max_position_embeddings=POSITIONS))
    if teacher.source == "hub":
        fix = (
            "check teacher.hub.model and teacher.hub.revision, or set teacher.source to local with teacher.local.folder"
        )
        source = hub_folder(teacher.hub, CHECKPOINT_FILES, key="teacher", fix=fix)
    else:
        source = paths.resolve(teacher.local.folder)
    model, has_head = load_pretrained(source)
    if model.config.vocab_size != vocab_size:
        raise UserError(
            f"teacher: its vocabulary has {model.config.vocab_size} pieces, its tokenizer {vocab_size}; "
            "put the tokenizer that belongs to the weights into the same folder"
        )
    if not has_head and teacher.pretraining.epochs == 0:
        raise UserError(
            f"teacher.pretraining.epochs: 0, but {source} has no masked-LM head; give it at least 1 epoch to learn one"
        )
    return model


def check_unfit_recipes(students: Mapping, teacher: BertConfig, *, stages: tuple[str, ...] = STAGES) -> None:
    """UserError where a recipe compares a student with what this teacher has not.

    students: name -> recipe. Those of all `stages` are looked at: a misfit of the last would else show after hours.
    """
    try:
        check_misfits(students, teacher.shape, stages=stages)
    except ValueError as error:
        raise UserError(f"params.yaml: {error}") from None


def finetuned_teacher(source, task: "Task", *, vocab_size: int) -> SequenceClassifier:
    """The task teacher of others that the section tasks.<task>.finetuned_teacher names, in evaluation mode.

    Its classes are in the task's order: by the names in its config.json where those are the task's, as they are
    where the names say nothing (LABEL_0). UserError when it does not fit the tokenizer's `vocab_size` or the task.
    """
    key = f"tasks.{task.name}.finetuned_teacher"
    teacher = load_finetuned(checkpoint_folder(source, key=key))
    if teacher.config.vocab_size != vocab_size:
        raise UserError(
            f"{key}: its vocabulary has {teacher.config.vocab_size} pieces, the tokenizer {vocab_size}; "
            "choose a model that was fine-tuned from the teacher, or the teacher it comes from"
        )
    labels = task.labels or (REGRESSION_LABEL,)
    if len(teacher.labels) != len(labels):
        raise UserError(
            f"{key}: it has {len(teacher.labels)} outputs, {task.name} needs {len(labels)}; "
            f"choose a model that was fine-tuned on {task.name}"
        )
    _order_classes(teacher, labels, key)
    return teacher


NAMELESS = re.compile(r"label_\d+")


def _order_classes(teacher: SequenceClassifier, labels: tuple[str, ...], key: str) -> None:
    """Puts the rows of the classifier into the order of `labels`, and calls them so.

    Names that say nothing are taken to be in the task's order.
    """
    found = [label.lower().replace(" ", "_").replace("-", "_") for label in teacher.labels]
    if sorted(found) == sorted(labels):
        order = torch.tensor([found.index(label) for label in labels])
        with torch.no_grad():
            for parameter in teacher.classifier.parameters():
                parameter.copy_(parameter[order])
    elif len(labels) > 1 and not all(NAMELESS.fullmatch(label) for label in found):
        raise UserError(
            f"{key}: its classes are {', '.join(teacher.labels)}, the task's {', '.join(labels)}; "
            "name all of them by id2label in its config.json, or choose another model"
        )
    teacher.labels = labels
