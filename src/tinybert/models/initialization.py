"""How students and teachers start: at random, from teacher layers, or from a published model."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from tinybert.config.compatibility import check_students
from tinybert.config.students import STAGES, mapped_layers
from tinybert.models.bert import BertConfig, MaskedLM, SequenceClassifier
from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig, embeddings_from
from tinybert.models.checkpoints import (
    CHECKPOINT_FILES,
    REGRESSION_LABEL,
    checkpoint_folder,
    load_bert,
    load_pretrained,
    read_weights,
)
from tinybert.models.outputs import Batch
from tinybert.models.subclone import subclone
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.hub import hub_folder

# Beside the encoder in Jiao's general students: one projection, or one for the embeddings and each layer.
RELEASED_PROJECTION, RELEASED_PROJECTIONS = "fit_dense.weight", "fit_denses.{layer}.weight"

POSITIONS = 512  # of an synthetic teacher, as BERT has
NAMELESS = re.compile(r"label_\d+")


@dataclass(frozen=True)
class InitializedStudent:
    """A student before its training, and, where it is cut out of the teacher or brings one, the projection W that
    leads back: (teacher width, student width), or one for the embeddings and each layer: (1 + layers, ...).
    """

    model: MaskedLM | BiLstmClassifier
    projection: Tensor | None = None


def initialize_student(recipe, teacher: MaskedLM, *, sample: Callable[[], Iterable[Batch]]) -> InitializedStudent:
    """A student with the teacher's vocabulary and positions, by the architecture and start of its recipe.

    Random weights come from the global generator. From a teacher: the layers that start.teacher names, as they are
    where the shapes agree (Sanh et al. 2019, Sun et al. 2019), else cut to the student's (models/subclone.py), by
    what they do on `sample`. From a folder or the Hub: any BERT encoder. A BiLSTM takes the teacher's word embeddings.
    UserError where shapes do not fit.
    """
    if recipe.architecture.kind == "bilstm":
        return InitializedStudent(_bilstm(recipe, teacher))
    config = BertConfig.of(
        recipe.architecture,
        vocab_size=teacher.config.vocab_size,
        max_position_embeddings=teacher.config.max_position_embeddings,
    )
    if recipe.init.folder or recipe.init.hub:
        return _released(config, recipe.init, teacher_width=teacher.config.hidden_size)
    if not recipe.init.teacher:
        return InitializedStudent(MaskedLM(config))
    mapped = mapped_layers(recipe.init.teacher, config.num_hidden_layers, teacher.config.num_hidden_layers)
    cut = subclone(teacher, config, [layer for (layer,) in mapped], batches=sample())
    return InitializedStudent(cut.student, cut.projection)


def _bilstm(recipe, teacher: MaskedLM) -> BiLstmClassifier:
    """Its head is drawn anew for each task."""
    shape = recipe.architecture
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
    if recipe.init.teacher:
        words = teacher.bert.embeddings.word_embeddings.weight
        with torch.no_grad():
            student.encoder.word_embeddings.weight.copy_(embeddings_from(words, shape.embedding))
    return student


def _released(config: BertConfig, init, *, teacher_width: int) -> InitializedStudent:
    """A general student of others. Its projection, where it fits, comes without its bias: ours have none."""
    folder = checkpoint_folder(init, key="init")
    stored, _ = load_pretrained(folder)
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
        ours, theirs = getattr(config, name), getattr(stored.config, name)
        if ours != theirs:
            key, model = ("init.hub", init.hub.model) if init.hub else ("init.folder", init.folder)
            raise UserError(f"{key}: {model} has {name} {theirs}, {ours} is needed; change the architecture or init")
    student = MaskedLM(replace(config, max_position_embeddings=stored.config.max_position_embeddings))
    student.load_state_dict(stored.state_dict())
    return InitializedStudent(student, _released_projection(folder, config, teacher_width))


def _released_projection(folder: Path, config: BertConfig, teacher_width: int) -> Tensor | None:
    weights = read_weights(folder / "model.safetensors")
    names = [RELEASED_PROJECTIONS.format(layer=layer) for layer in range(config.num_hidden_layers + 1)]
    names = names if names[0] in weights else [RELEASED_PROJECTION]
    found = [weights[name].float() for name in names if name in weights]
    if len(found) < len(names) or any(part.shape != (teacher_width, config.hidden_size) for part in found):
        return None
    return torch.stack(found).squeeze(0)


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
        check_students(students, teacher.shape, stages)
    except UserError as error:
        raise UserError(f"params.yaml: {error}") from None


def finetuned_teacher(source, task, *, vocab_size: int) -> SequenceClassifier:
    """The task teacher of others that the section tasks.<task>.finetuned_teacher names, in evaluation mode.

    Its classes are in the task's order: by the names in its config.json where those are the task's, as they are
    where the names say nothing (LABEL_0). UserError when it does not fit the tokenizer's `vocab_size` or the task.
    """
    key = f"tasks.{task.name}.finetuned_teacher"
    teacher = load_bert(SequenceClassifier, checkpoint_folder(source, key=key))
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
