"""What must fit together in params: lists against recipes, recipes against a teacher.

Each function raises ValueError with the line that people read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tinybert.config.teacher_layers import mapped_layers
from tinybert.pipeline.errors import UserError

STAGES = ("general", "domain", "intermediate", "prediction")
LOGIT_LOSSES = ("hard", "prediction", "logit_mse")
SCORE_LOSSES = ("attention", "attention_kl")  # compare head by head
RELATION_LOSSES = ("query_key_relation", "value_relation")
UNMAPPED_LOSSES = (*LOGIT_LOSSES, "embedding")  # read no layer that a layer map gives


@dataclass(frozen=True)
class Shape:
    """What recipes ask of a teacher."""

    layers: int
    width: int
    heads: int
    feed_forward: int


def check_repeats(key: str, names: tuple) -> None:
    """A name that a list holds twice would be a stage instance twice."""
    seen = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{key} lists {name} twice; once is enough")
        seen.add(name)


def check_strangers(key: str, names: Iterable[str], known: Iterable[str], where: str) -> None:
    """All `names` must be among the `known` ones."""
    for name in names:
        if name not in known:
            raise ValueError(f"{key} lists {name}, which is not among {where}: {', '.join(known)}")


def check_unfit_losses(stage: str, losses: Mapping[str, float], architecture) -> None:
    """Inner layers can be compared between models that have them, and [CLS] below the top only where there is one."""
    for name, weight in losses.items():
        if not weight:
            continue
        if architecture.kind == "bilstm" and stage in ("general", "domain"):
            raise ValueError(f"{stage}: a BiLSTM has no masked-LM head to learn on text; set {stage} to null")
        if name in LOGIT_LOSSES:
            continue
        if architecture.kind == "bilstm":
            raise ValueError(
                f"{stage}.losses.{name}: a BiLSTM has no layers to compare with a BERT's; "
                "use prediction, logits or hard instead"
            )
        if name == "pkd" and architecture.layers == 1:
            raise ValueError(f"{stage}.losses.pkd: reads all layers but the last, and there is one; use hidden instead")


def check_misfits(students: Mapping, teacher: Shape, *, stages: tuple[str, ...] = STAGES) -> None:
    """Every loss of every recipe must find in the teacher what it compares with, before anything is trained.

    students: name -> recipe.
    """
    for name, student in students.items():
        if "general" in stages and student.init.teacher:
            _check_unfit_start(f"students.{name}", student, teacher)
        for stage in stages:
            if recipe := getattr(student, stage):
                losses = {loss for loss, weight in recipe.weighted_losses.items() if weight}
                _check_unfit_losses(f"students.{name}", stage, losses, student, teacher)


def _check_unfit_start(key: str, student, teacher: Shape) -> None:
    shape = student.architecture
    if shape.kind == "bilstm":
        check_wide_embedding(shape.embedding, teacher.width, key=f"{key}.")
        return
    _check_map(f"{key}.init.teacher", student.init.teacher, student, teacher.layers)
    check_uncuttable(Shape(shape.layers, shape.width, shape.heads, shape.feed_forward), teacher, key=f"{key}.")


def check_wide_embedding(size: int, teacher_width: int, *, key: str = "") -> None:
    """A BiLSTM's embedding is cut out of the teacher's."""
    if size > teacher_width:
        raise ValueError(
            f"{key}architecture.embedding: {size} is above the width {teacher_width} of the teacher's embeddings; "
            f"choose {teacher_width} or less, or set init to random"
        )


def check_uncuttable(student: Shape, teacher: Shape, *, key: str = "") -> None:
    """A student that starts from the teacher's layers is cut out of them, head by head."""
    for name in ("width", "feed_forward"):
        ours, theirs = getattr(student, name), getattr(teacher, name)
        if ours > theirs:
            raise ValueError(
                f"{key}init.teacher: architecture.{name} is {ours}, the teacher has {theirs} to cut from; "
                f"set architecture.{name} to {theirs} or less, or init to random"
            )
    width, heads, widest = student.width, student.heads, teacher.width // teacher.heads
    if heads > teacher.heads or width // heads > widest:
        fitting = [str(n) for n in range(1, teacher.heads + 1) if width % n == 0 and width // n <= widest]
        fix = f"set architecture.heads to {' or '.join(fitting)}" if fitting else "change architecture.width"
        raise ValueError(
            f"{key}init.teacher: architecture.width {width} in {heads} heads (architecture.heads) cannot be cut from "
            f"the teacher's {teacher.heads} heads of {widest}; {fix}, or set init to random"
        )


def _check_unfit_losses(key: str, stage: str, losses: set[str], student, teacher: Shape) -> None:
    if losses - set(UNMAPPED_LOSSES):
        own = getattr(student, stage).layer_map
        layers = own or student.layer_map
        named = layers if isinstance(layers, (str, tuple)) else "learnable"
        _check_map(f"{key}.{stage}.layer_map" if own else f"{key}.layer_map", named, student, teacher.layers)
    for name in sorted(losses & set(SCORE_LOSSES)):
        if student.architecture.heads != teacher.heads:
            raise ValueError(
                f"{key}.{stage}.losses.{name}: the student has {student.architecture.heads} heads, the teacher "
                f"{teacher.heads}; set architecture.heads to {teacher.heads}, or use query_key_relation and "
                "value_relation instead"
            )
    for name in sorted(losses & set(RELATION_LOSSES)):
        heads = getattr(student, stage).relation_heads
        if student.architecture.width % heads or teacher.width % heads:
            raise ValueError(
                f"{key}.{stage}.losses.{name}: relation_heads {heads} must divide the student's width "
                f"{student.architecture.width} and the teacher's {teacher.width}"
            )


def _check_map(key: str, layers, student, teacher_layers: int) -> None:
    try:
        mapped_layers(layers, student.architecture.layers, teacher_layers)
    except UserError as error:
        raise ValueError(f"{key}: {str(error).removeprefix('layer_map: ')}") from None
