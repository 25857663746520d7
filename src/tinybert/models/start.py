"""How a student starts: at random, from teacher layers, or from a folder."""

from dataclasses import replace

import torch

from tinybert import paths
from tinybert.errors import UserError
from tinybert.layer_map import mapped_layers
from tinybert.models.bert import BertConfig, MaskedLM
from tinybert.models.pretrained import load_pretrained


def architecture_config(architecture, *, vocab_size: int, max_position_embeddings: int) -> BertConfig:
    """The BertConfig of an `architecture` section of params."""
    return BertConfig(
        vocab_size=vocab_size,
        hidden_size=architecture.width,
        num_hidden_layers=architecture.layers,
        num_attention_heads=architecture.heads,
        intermediate_size=architecture.feed_forward,
        max_position_embeddings=max_position_embeddings,
        hidden_dropout_prob=architecture.dropout,
        attention_probs_dropout_prob=architecture.dropout,
    )


def start_student(architecture, start: str, *, teacher: MaskedLM, layer_map: str | tuple[int, ...]) -> MaskedLM:
    """A masked-LM student with the teacher's vocabulary and positions.

    start: "random" (from the global generator), "teacher_layers" (everything of the teacher, with the
    layers that `layer_map` names; Sanh et al. 2019, Sun et al. 2019), or the path of a model folder.
    UserError where shapes do not fit.
    """
    config = architecture_config(
        architecture,
        vocab_size=teacher.config.vocab_size,
        max_position_embeddings=teacher.config.max_position_embeddings,
    )
    if start == "random":
        return MaskedLM(config)
    if start == "teacher_layers":
        return _from_teacher_layers(config, teacher, layer_map)
    return _from_folder(config, start)


def _from_teacher_layers(config: BertConfig, teacher: MaskedLM, layer_map: str | tuple[int, ...]) -> MaskedLM:
    for name in ("hidden_size", "intermediate_size", "num_attention_heads"):
        ours, theirs = getattr(config, name), getattr(teacher.config, name)
        if ours != theirs:
            raise UserError(
                f"start: teacher_layers needs the teacher's shape: {name} is {ours}, the teacher's {theirs}; "
                "change the architecture, or set start to random"
            )
    student = MaskedLM(config)
    layers = mapped_layers(layer_map, config.num_hidden_layers, teacher.config.num_hidden_layers)
    weights = teacher.state_dict()
    chosen = {name: tensor for name, tensor in weights.items() if ".encoder.layer." not in name}
    for number, layer in enumerate(layers):
        source = f"bert.encoder.layer.{layer - 1}."
        chosen |= {
            f"bert.encoder.layer.{number}.{name.removeprefix(source)}": tensor
            for name, tensor in weights.items()
            if name.startswith(source)
        }
    with torch.no_grad():
        student.load_state_dict(chosen)
    return student


def _from_folder(config: BertConfig, start: str) -> MaskedLM:
    folder = paths.given(start)
    if not folder.is_dir():
        raise UserError(f"start: {start!r} is no folder; random, teacher_layers or the path of one is allowed")
    stored, _ = load_pretrained(folder)
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
        ours, theirs = getattr(config, name), getattr(stored.config, name)
        if ours != theirs:
            raise UserError(f"start: {start} has {name} {theirs}, {ours} is needed; change the architecture or start")
    student = MaskedLM(replace(config, max_position_embeddings=stored.config.max_position_embeddings))
    student.load_state_dict(stored.state_dict())
    return student
