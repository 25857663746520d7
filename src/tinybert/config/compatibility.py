"""Compatibility checks of a student and its teacher; each check is in this module only.

The schema calls them if the teacher's shape is in params.yaml; otherwise models and distill call them when it is known.
"""

from collections.abc import Collection, Mapping

from tinybert.config.fields import Architecture, StudentArchitecture
from tinybert.config.students import MAPPED_LOSSES, RELATION_LOSSES, SCORE_LOSSES, STAGES, Student, mapped_layers
from tinybert.pipeline.errors import UserError


def check_students(students: Mapping[str, Student], teacher: Architecture, stages: Collection[str] = STAGES) -> None:
    """Checks that the teacher has what the losses of these stages compare; UserError for the first mismatch."""
    for name, student in students.items():
        key, shape = f"students.{name}.", student.architecture
        if "general" in stages and student.init.teacher:
            if shape.kind == "bert":
                mapped_layers(student.init.teacher, shape.layers, teacher.layers, key=f"{key}init.teacher")
            check_subclone(shape, teacher, key=key)
        for stage, losses in student.stages.items():
            if stage not in stages:
                continue
            if losses.active_losses.keys() & set(MAPPED_LOSSES):
                layer_map = losses.layer_map or student.layer_map
                chosen = layer_map if isinstance(layer_map, (str, tuple)) else "learnable"
                owner = f"{key}{stage}." if losses.layer_map else key
                mapped_layers(chosen, shape.layers, teacher.layers, key=f"{owner}layer_map")
            check_losses(losses.active_losses, losses.relation_heads, shape, teacher, key=f"{key}{stage}.")


def check_losses(
    losses: Collection[str],
    relation_heads: int | None,
    student: StudentArchitecture,
    teacher: Architecture,
    key: str = "",
) -> None:
    """Checks the heads that the losses compare; a BiLSTM has no such losses."""
    for name in sorted(set(losses) & set(SCORE_LOSSES)):
        if student.kind == "bert" and student.heads != teacher.heads:
            raise UserError(
                f"{key}losses.{name}: the student has {student.heads} heads, the teacher {teacher.heads}; fix: set "
                f"architecture.heads to {teacher.heads}, or use query_key_relation and value_relation instead"
            )
    for name in sorted(set(losses) & set(RELATION_LOSSES)):
        if relation_heads is None or student.width % relation_heads or teacher.width % relation_heads:
            raise UserError(
                f"{key}losses.{name}: relation_heads {relation_heads} must divide the student's width "
                f"{student.width} and the teacher's {teacher.width}"
            )


def check_subclone(student: StudentArchitecture, teacher: Architecture, *, key: str = "") -> None:
    """Checks that a student can be cut out of the teacher, head by head; UserError whose key begins with `key`."""
    if student.kind == "bilstm":
        check_embedding(student.embedding, teacher.width, key=key)
        return
    for name in ("width", "feed_forward"):
        ours, theirs = getattr(student, name), getattr(teacher, name)
        if ours > theirs:
            raise UserError(
                f"{key}init.teacher: architecture.{name} is {ours}, the teacher has {theirs} to cut from; "
                f"fix: set architecture.{name} to {theirs} or less, or init to random"
            )
    width, heads, widest = student.width, student.heads, teacher.width // teacher.heads
    if heads > teacher.heads or width // heads > widest:
        fitting = [str(n) for n in range(1, teacher.heads + 1) if width % n == 0 and width // n <= widest]
        fix = f"set architecture.heads to {' or '.join(fitting)}" if fitting else "change architecture.width"
        raise UserError(
            f"{key}init.teacher: architecture.width {width} in {heads} heads (architecture.heads) cannot be cut from "
            f"the teacher's {teacher.heads} heads of {widest}; fix: {fix}, or set init to random"
        )


def check_embedding(size: int, teacher_width: int, *, key: str = "") -> None:
    """Checks that a BiLSTM's word embeddings of `size` can be cut out of the teacher's; UserError if not."""
    if size > teacher_width:
        raise UserError(
            f"{key}architecture.embedding: {size} is above the width {teacher_width} of the teacher's embeddings; "
            f"fix: choose {teacher_width} or less, or set init to random"
        )
