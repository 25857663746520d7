"""Which teacher layers each student imitates, as pictures and as a table."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from tinybert.config.students import LOSSES, MAPPED_LOSSES, StageLosses, Student, mapped_layers
from tinybert.report.charts import MAP_PREFIX, WIDTH, Chart
from tinybert.report.results import Results
from tinybert.report.table import Table, fixed

LEARNABLE, RANDOM = "learnable", "random"
BOX_WIDTH, BOX_HEIGHT, ROW = 84, 16, 22
TEACHER_X, STUDENT_X = 8, WIDTH - 8 - BOX_WIDTH
HEAD = 24
THINNEST, THICKEST = 0.6, 4.0

Edge = tuple[int, int, float]  # student layer, teacher layer, weight; layer 0 is the embedding output


@dataclass(frozen=True)
class LayerMap:
    """What a student imitates layer by layer. stages: those that read this very map, "intermediate: cola, mrpc"."""

    student: str
    stages: str
    kind: str
    student_layers: int
    teacher_layers: int
    edges: tuple[Edge, ...]


def layer_maps(results: Results) -> list[LayerMap]:
    """The maps of all students in use; a stage that trained nothing, or reads no mapped layer, has none."""
    stages: dict[tuple, dict[str, list[str]]] = {}
    for name in _students(results):
        student = results.params.students[name]
        for section, task, instance, teacher_layers in _stages(results, name):
            recipe = getattr(student, section)
            if recipe is None or not _mapped_losses(recipe) or not results.value(*instance, "steps"):
                continue
            learnt = results.metrics[instance].get("layer_map", {})
            edges = tuple(_edges(student, recipe, teacher_layers, learnt))
            key = (name, _kind(student, recipe), student.architecture.layers, teacher_layers, edges)
            stages.setdefault(key, {}).setdefault(section, []).extend(task)
    return [LayerMap(key[0], _named(sections), *key[1:]) for key, sections in stages.items()]


def _named(sections: dict[str, list[str]]) -> str:
    return "; ".join(f"{section}: {', '.join(tasks)}" if tasks else section for section, tasks in sections.items())


def _students(results: Results) -> list[str]:
    params = results.params
    return list(dict.fromkeys((*params.domain.students, *params.general.students, *params.tasks.students)))


def _stages(results: Results, name: str) -> Iterator[tuple[str, list[str], tuple[str, str], int]]:
    """(section of the recipe, its task if any, stage instance, the teacher's layers) of each stage of a student."""
    params = results.params
    text_teacher = results.value("prepare_teacher", "", "layers")
    for section, students in (("general", params.general.students), ("domain", params.domain.students)):
        if name in students:
            yield section, [], (f"{section}_distill", name), text_teacher
    for section in ("intermediate", "prediction"):
        for task in params.tasks.run if name in params.tasks.students else ():
            instance = (f"task_distill_{section}", f"{task}-{name}")
            yield section, [task], instance, results.value("finetune_teacher", task, "layers")


def _mapped_losses(recipe: StageLosses) -> set[str]:
    return {name for name, weight in recipe.weighted_losses.items() if weight} & set(MAPPED_LOSSES)


def _kind(student: Student, recipe: StageLosses) -> str:
    chosen = recipe.layer_map or student.layer_map
    if isinstance(chosen, tuple):
        return "listed"
    return chosen if isinstance(chosen, str) else LEARNABLE


def _edges(student: Student, recipe: StageLosses, teacher_layers: int, learnt: dict[str, float]) -> Iterator[Edge]:
    """learnt: the last weights of a learnable map, by column of the curve."""
    kind, layers = _kind(student, recipe), student.architecture.layers
    chosen = recipe.layer_map or student.layer_map
    blocks = mapped_layers(chosen if isinstance(chosen, tuple) else kind, layers, teacher_layers)
    if recipe.weighted_losses.get("embedding"):
        yield 0, 0, 1.0
    for student_layer in sorted(layers_read(_mapped_losses(recipe), layers)):
        block = blocks[student_layer - 1]
        for teacher_layer in block:
            weight = learnt.get(f"{MAP_PREFIX}{student_layer}_{teacher_layer}", 1 / len(block))
            yield student_layer, teacher_layer, weight


def layers_read(losses: set[str], layers: int) -> set[int]:
    """The student layers, of 1 to `layers`, that the mapped `losses` read; as Objective.student_spec has it."""
    return {layer for loss in losses for layer in LOSSES[loss].student_layers(layers)}


def layer_map_table(maps: list[LayerMap]) -> Table:
    """The weight of each teacher layer for each student layer that a loss reads."""
    rows = [
        (found.student, found.stages, found.kind, _layer(student), _layer(teacher), fixed(weight, 3))
        for found in maps
        for student, teacher, weight in found.edges
    ]
    columns = ("student", "stages", "map", "student layer", "teacher layer", "weight")
    note = (
        "Layer 1 is the lowest. Of a learnable map the weights at the end of training; of a random one the chance of "
        "each layer to be drawn, anew at each step (broken lines)."
    )
    return Table("Weights of the layer maps", columns, rows, names=5, note=note)


def _layer(number: int) -> str:
    return str(number) if number else "embedding"


def layer_map_charts(maps: list[LayerMap]) -> list[Chart]:
    """Teacher layers on the left, student layers on the right; the thicker a line, the larger its weight."""
    return [Chart(f"{found.student}: {found.kind} ({found.stages})", [], _svg(found)) for found in maps]


def _svg(found: LayerMap) -> str:
    height = HEAD + ROW * (found.teacher_layers + 1)
    label = "; ".join(
        f"student {_layer(student)} imitates teacher {_layer(teacher)} with weight {fixed(weight, 2)}"
        for student, teacher, weight in found.edges
    )
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">']
    parts += [_title(TEACHER_X, "teacher"), _title(STUDENT_X, "student")]
    parts += [_edge(edge, found) for edge in found.edges]
    parts += [_box(TEACHER_X, _teacher_y(layer, found), layer) for layer in range(found.teacher_layers + 1)]
    parts += [_box(STUDENT_X, _student_y(layer, found), layer) for layer in range(found.student_layers + 1)]
    return "".join([*parts, "</svg>"])


def _teacher_y(layer: float, found: LayerMap) -> float:
    """The middle of a layer's box; the lowest layer stands at the bottom."""
    return HEAD + ROW * (found.teacher_layers - layer + 0.5)


def _student_y(layer: int, found: LayerMap) -> float:
    """The same; a student's layers are spread over the teacher's height."""
    return _teacher_y(layer * found.teacher_layers / found.student_layers, found)


def _title(x: float, text: str) -> str:
    return f'<text x="{x + BOX_WIDTH / 2}" y="{HEAD - 8}" text-anchor="middle">{text}</text>'


def _box(x: float, y: float, layer: int) -> str:
    return (
        f'<rect class="layer" x="{x}" y="{y - BOX_HEIGHT / 2:.1f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="3"/>'
        f'<text x="{x + BOX_WIDTH / 2}" y="{y + 4:.1f}" text-anchor="middle">'
        f"{f'layer {layer}' if layer else 'embedding'}</text>"
    )


def _edge(edge: Edge, found: LayerMap) -> str:
    student, teacher, weight = edge
    width = THINNEST + (THICKEST - THINNEST) * weight
    style = "map drawn" if found.kind == RANDOM and weight < 1 else "map"
    return (
        f'<line class="{style}" x1="{TEACHER_X + BOX_WIDTH}" y1="{_teacher_y(teacher, found):.1f}" x2="{STUDENT_X}" '
        f'y2="{_student_y(student, found):.1f}" stroke-width="{width:.2f}">'
        f"<title>{fixed(weight, 3)}</title></line>"
    )
