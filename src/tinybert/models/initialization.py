"""How students and teachers start: at random, from teacher layers, or from a published model."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

import torch

from tinybert.config.fields import BiLstmArchitecture, ModelSource
from tinybert.config.schema import Teacher
from tinybert.config.students import Init, Student, mapped_layers
from tinybert.models.bert import BertConfig, MaskedLM, SequenceClassifier
from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig, embeddings_from
from tinybert.models.checkpoints import (
    REGRESSION_LABEL,
    checkpoint_folder,
    load_bert,
    load_pretrained,
    read_weights,
)
from tinybert.models.outputs import Batch
from tinybert.models.subclone import InitializedStudent, subclone
from tinybert.pipeline.errors import UserError

# Beside the encoder in Jiao et al.'s general students: one projection, or one for the embeddings and each layer.
SHARED_PROJECTION, LAYER_PROJECTION = "fit_dense.weight", "fit_denses.{layer}.weight"
SYNTHETIC_POSITIONS = 512  # as BERT has
DEFAULT_LABEL = re.compile(r"label_\d+")


class LabelledTask(Protocol):
    """What a task teacher must fit: the task's name, and its classes in order, none for a regression."""

    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> tuple[str, ...]: ...


def initialize_student(
    student: Student, teacher: MaskedLM, *, sample: Callable[[], Iterable[Batch]]
) -> InitializedStudent:
    """Makes a student with the teacher's vocabulary and positions by its `architecture` and `init`.

    Random weights come from the global generator. From a teacher: the layers that init.teacher names, copied if the
    shapes agree (Sanh et al. 2019, Sun et al. 2019), else cut to the student's shape (models/subclone.py). From a
    folder or the Hub: any BERT encoder. A BiLSTM takes the teacher's word embeddings.

    Args:
        student: The student's config.
        teacher: The teacher of the general corpus.
        sample: Gives plain text for the cut.

    Raises:
        UserError: The shapes do not fit.
    """
    shape, init = student.architecture, student.init
    if shape.kind == "bilstm":
        return InitializedStudent(_bilstm(shape, teacher, from_teacher=bool(init.teacher)))
    positions = teacher.config.max_position_embeddings
    config = BertConfig.of(shape, vocab_size=teacher.config.vocab_size, max_position_embeddings=positions)
    if init.folder or init.hub:
        return _published_student(config, init, teacher_width=teacher.config.hidden_size)
    if not init.teacher:
        return InitializedStudent(MaskedLM(config))
    mapped = mapped_layers(init.teacher, config.num_hidden_layers, teacher.config.num_hidden_layers)
    return subclone(teacher, config, [layer for (layer,) in mapped], batches=sample())


def start_teacher(teacher: Teacher, *, vocab_size: int, seed: int) -> MaskedLM:
    """The masked-LM teacher before its (further) pretraining.

    Args:
        teacher: The section of params.
        vocab_size: Of the teacher's tokenizer.
        seed: Draws new weights: all of a synthetic teacher, the head that a checkpoint lacks.

    Raises:
        UserError: The checkpoint does not fit the tokenizer, or has no masked-LM head and gets no training.
    """
    torch.manual_seed(seed)
    if teacher.source == "synthetic":
        shape = teacher.synthetic.architecture
        return MaskedLM(BertConfig.of(shape, vocab_size=vocab_size, max_position_embeddings=SYNTHETIC_POSITIONS))
    if teacher.source == "hub":
        folder = checkpoint_folder(ModelSource(hub=teacher.hub), key="teacher")
    else:
        folder = checkpoint_folder(ModelSource(folder=teacher.local.folder), key="teacher.local")
    model, has_head = load_pretrained(folder)
    if model.config.vocab_size != vocab_size:
        raise UserError(
            f"teacher: its vocabulary is not the tokenizer's (got {model.config.vocab_size} pieces); allowed: "
            f"{vocab_size}; fix: put the tokenizer that belongs to the weights into the same folder"
        )
    if not has_head and teacher.pretraining.epochs == 0:
        raise UserError(
            f"teacher.pretraining.epochs: {folder} has no masked-LM head to use untrained (got 0); allowed: 1 or more; "
            "fix: give it at least 1 epoch"
        )
    return model


def finetuned_teacher(source: ModelSource, task: LabelledTask, *, vocab_size: int) -> SequenceClassifier:
    """A published task teacher, in evaluation mode, with its classes in the task's order.

    They are ordered by the names in its config.json if those are the task's, and taken as they are if the names mean
    nothing (LABEL_0).

    Args:
        source: The section tasks.<task>.finetuned_teacher.
        task: The task.
        vocab_size: Of the teacher's tokenizer.

    Raises:
        UserError: The model does not fit the tokenizer or the task.
    """
    key = f"tasks.{task.name}.finetuned_teacher"
    teacher = load_bert(SequenceClassifier, checkpoint_folder(source, key=key))
    if teacher.config.vocab_size != vocab_size:
        raise UserError(
            f"{key}: its vocabulary is not the tokenizer's (got {teacher.config.vocab_size} pieces); allowed: "
            f"{vocab_size}; fix: choose a model that was fine-tuned from the teacher, or the teacher it comes from"
        )
    labels = task.labels or (REGRESSION_LABEL,)
    if len(teacher.labels) != len(labels):
        raise UserError(
            f"{key}: wrong number of outputs (got {len(teacher.labels)}); allowed: {len(labels)}; "
            f"fix: choose a model that was fine-tuned on {task.name}"
        )
    _order_classes(teacher, labels, key)
    return teacher


def _bilstm(shape: BiLstmArchitecture, teacher: MaskedLM, *, from_teacher: bool) -> BiLstmClassifier:
    """A BiLSTM whose head is a placeholder: each task draws its own."""
    config = BiLstmConfig(
        vocab_size=teacher.config.vocab_size,
        embedding_size=shape.embedding,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        intermediate_size=shape.feed_forward,
        dropout=shape.dropout,
        pad_token_id=teacher.config.pad_token_id,
    )
    student = BiLstmClassifier(config, (REGRESSION_LABEL,), pair=False)
    if from_teacher:
        words = teacher.bert.embeddings.word_embeddings.weight
        with torch.no_grad():
            student.encoder.word_embeddings.weight.copy_(embeddings_from(words, shape.embedding))
    return student


def _published_student(config: BertConfig, init: Init, *, teacher_width: int) -> InitializedStudent:
    """A published general student, with its positions and its projection if that fits; ours have no bias."""
    folder = checkpoint_folder(init, key="init")
    stored, _ = load_pretrained(folder)
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
        ours, theirs = getattr(config, name), getattr(stored.config, name)
        if ours != theirs:
            model = init.hub.model if init.hub else init.folder
            raise UserError(f"init: {model}: wrong {name} (got {theirs}); allowed: {ours}; fix: change one of them")
    student = MaskedLM(replace(config, max_position_embeddings=stored.config.max_position_embeddings))
    student.load_state_dict(stored.state_dict())
    weights = read_weights(folder / "model.safetensors")
    names = [LAYER_PROJECTION.format(layer=layer) for layer in range(config.num_hidden_layers + 1)]
    names = names if names[0] in weights else [SHARED_PROJECTION]
    found = [weights[name].float() for name in names if name in weights]
    if len(found) < len(names) or any(part.shape != (teacher_width, config.hidden_size) for part in found):
        return InitializedStudent(student)
    return InitializedStudent(student, torch.stack(found).squeeze(0))


def _order_classes(teacher: SequenceClassifier, labels: tuple[str, ...], key: str) -> None:
    """Reorders and renames the classifier's rows to `labels`."""
    found = [label.lower().replace(" ", "_").replace("-", "_") for label in teacher.labels]
    if sorted(found) == sorted(labels):
        order = torch.tensor([found.index(label) for label in labels])
        with torch.no_grad():
            for parameter in teacher.classifier.parameters():
                parameter.copy_(parameter[order])
    elif len(labels) > 1 and not all(DEFAULT_LABEL.fullmatch(label) for label in found):
        raise UserError(
            f"{key}: unknown classes (got {', '.join(teacher.labels)}); allowed: {', '.join(labels)}; "
            "fix: name all of them by id2label in its config.json, or choose another model"
        )
    teacher.labels = labels
