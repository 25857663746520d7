"""How a student starts: at random, from teacher layers, or from a model of others."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from tinybert.config.teacher_layers import mapped_layers
from tinybert.models.bert import BertConfig, MaskedLM
from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig, embeddings_from
from tinybert.models.checkpoints import REGRESSION_LABEL, read_weights
from tinybert.models.outputs import Batch
from tinybert.models.pretrained import checkpoint_folder, load_pretrained
from tinybert.models.subclone import subclone
from tinybert.pipeline.errors import UserError

# Beside the encoder in Jiao's general students: one projection, or one for the embeddings and each layer.
RELEASED_PROJECTION, RELEASED_PROJECTIONS = "fit_dense.weight", "fit_denses.{layer}.weight"


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
