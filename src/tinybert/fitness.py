"""What must fit together in params: lists against recipes, recipes against an embedded teacher.

Each function raises ValueError with the line that people read.
"""

from collections.abc import Iterable, Mapping

from tinybert.errors import UserError
from tinybert.layer_map import mapped_layers

STAGES = ("general", "domain", "intermediate", "prediction")


def refuse_repeats(key: str, names: tuple) -> None:
    """A name that a list holds twice would be a stage instance twice."""
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{key} lists {repeated[0]} twice; once is enough")


def refuse_strangers(key: str, names: Iterable[str], known: Iterable[str], where: str) -> None:
    """All `names` must be among the `known` ones."""
    for name in names:
        if name not in known:
            raise ValueError(f"{key} lists {name}, which is not among {where}: {', '.join(known)}")


def refuse_misfits(students: Mapping, teacher) -> None:
    """What a teacher from elsewhere is refused for once it is loaded is known of an embedded one at once.

    students: name -> recipe. teacher: the architecture section of the embedded teacher.
    """
    for name, student in students.items():
        for stage in STAGES:
            recipe = getattr(student, stage)
            losses = {loss for loss, weight in recipe.losses.items() if weight} if recipe else set()
            if losses & {"attention", "hidden"}:
                _refuse_map(f"students.{name}.layer_map", student, teacher.layers)
            if "attention" in losses and student.architecture.heads != teacher.heads:
                raise ValueError(
                    f"students.{name}.{stage}.losses.attention: the student has {student.architecture.heads} heads, "
                    f"the teacher {teacher.heads}; set architecture.heads to {teacher.heads} or use hidden instead"
                )


def _refuse_map(key: str, student, teacher_layers: int) -> None:
    try:
        mapped_layers(student.layer_map, student.architecture.layers, teacher_layers)
    except UserError as error:
        raise ValueError(f"{key}: {str(error).removeprefix('layer_map: ')}") from None
