"""Which teacher layers each student layer imitates; plain lists, for params are checked where there is no torch."""

from tinybert.pipeline.errors import UserError


def uniform(student_layers: int, teacher_layers: int) -> list[int]:
    """g(m) = ceil(m·N/M): 3, 6, 9, 12 for 12 to 4 (TinyBERT, sec. 3; rounded up where M does not divide N)."""
    return [-(-layer * teacher_layers // student_layers) for layer in range(1, student_layers + 1)]


def top(student_layers: int, teacher_layers: int) -> list[int]:
    """g(m) = m + N − M: the teacher's last layers (TinyBERT, sec. 4.5)."""
    return [layer + teacher_layers - student_layers for layer in range(1, student_layers + 1)]


def bottom(student_layers: int, teacher_layers: int) -> list[int]:
    """g(m) = m: the teacher's first layers (TinyBERT, sec. 4.5)."""
    return list(range(1, student_layers + 1))


def blocks(student_layers: int, teacher_layers: int) -> list[list[int]]:
    """The teacher's layers cut into one block for each student layer, each ending where the uniform map points."""
    ends = uniform(student_layers, teacher_layers)
    return [list(range(start + 1, end + 1)) for start, end in zip([0, *ends], ends, strict=False)]


ONE_LAYER_MAPS = {"uniform": uniform, "top": top, "bottom": bottom}
BLOCK_MAPS = ("mean", "random", "learnable")
NAMED_MAPS = (*ONE_LAYER_MAPS, *BLOCK_MAPS)


def mapped_layers(layer_map: str | tuple[int, ...], student_layers: int, teacher_layers: int) -> list[list[int]]:
    """The teacher layers (1-based) that each student layer may imitate: one, or a block of them.

    layer_map: one of NAMED_MAPS, or a teacher layer for each student layer. UserError where the teacher lacks one.
    """
    if isinstance(layer_map, str):
        if student_layers > teacher_layers:
            raise UserError(
                f"layer_map: {layer_map} cannot map {student_layers} student layers to {teacher_layers} teacher "
                "layers; make the student shallower, or list a teacher layer for each student layer"
            )
        if layer_map in BLOCK_MAPS:
            return blocks(student_layers, teacher_layers)
        return [[layer] for layer in ONE_LAYER_MAPS[layer_map](student_layers, teacher_layers)]
    for layer in layer_map:
        if layer > teacher_layers:
            raise UserError(f"layer_map: {layer} is beyond the teacher's layers; choose from 1 to {teacher_layers}")
    return [[layer] for layer in layer_map]
