"""Score against size and latency: the systems of a task, and which of them no other beats in both."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from tinybert.data.tasks import TASKS
from tinybert.report.charts import BOTTOM, COLOURS, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, Chart, horizontal_rule
from tinybert.report.results import Results, latency_ms, onnx_models

UNITS = {"size": "MB", "speed": "ms a dev row"}
SHAPES = {"fp32": "circle", "dynamic": "triangle", "qdq": "square", "qoperator": "diamond"}


@dataclass(frozen=True)
class System:
    """A model in one ONNX form. cost: megabytes or milliseconds."""

    model: str
    form: str
    score: float
    cost: float


def front(systems: Sequence[System]) -> list[System]:
    """Those that no other equals or beats in both score and cost, cheapest first; of equals the first."""
    best, found = -math.inf, []
    for system in sorted(systems, key=lambda system: (system.cost, -system.score)):
        if system.score > best:
            best = system.score
            found.append(system)
    return found


def systems_by_cost(results: Results, task: str) -> dict[str, list[System]]:
    """The systems of a task by "size" (MB) and "speed" (milliseconds a dev row), the latter where it was measured."""
    by_cost: dict[str, list[System]] = {}
    for owner, model, form, found in onnx_models(results):
        if owner != task:
            continue
        score = found["dev"][TASKS[task].headline]
        by_cost.setdefault("size", []).append(System(model, form, score, found["size_mb"]["raw"]))
        if (time_ms := row_ms(results, task, model, form)) is not None:
            by_cost.setdefault("speed", []).append(System(model, form, score, time_ms))
    return by_cost


def row_ms(results: Results, task: str, model: str, form: str) -> float | None:
    """Milliseconds a dev row, in batches of the largest size; None where it was not measured."""
    batch_size = max(results.params.quantization.latency.batch_sizes)
    batch_ms, measured = latency_ms(results, task, model, form, f"dev_batch_{batch_size}"), results.latency(task, model)
    return batch_ms / min(batch_size, measured["dev_examples"]) if measured and batch_ms is not None else None


def fronts(results: Results, task: str) -> dict[tuple[str, str], list[str]]:
    """(model, form) -> by which costs it is on the front."""
    found: dict[tuple[str, str], list[str]] = {}
    for cost, systems in systems_by_cost(results, task).items():
        for system in front(systems):
            found.setdefault((system.model, system.form), []).append(cost)
    return found


def front_charts(results: Results) -> list[Chart]:
    """For each task score over size and over latency, the front drawn as a line."""
    charts = []
    for task in results.params.tasks.run:
        for cost, systems in systems_by_cost(results, task).items():
            models = list(dict.fromkeys(system.model for system in systems))
            colours = {model: number % COLOURS for number, model in enumerate(models)}
            title = f"{task}: {TASKS[task].headline} over {UNITS[cost]}"
            charts.append(Chart(title, list(colours.items()), _svg(systems, colours)))
    return charts


def shape_legend() -> list[tuple[str, str]]:
    """(form, a small picture of its mark) for each ONNX form."""
    place = 'viewBox="-6 -6 12 12" class="shape" aria-hidden="true"'
    return [(form, f"<svg {place}>{_mark(shape, 0, 0, COLOURS - 1, form)}</svg>") for form, shape in SHAPES.items()]


def _svg(systems: list[System], colours: dict[str, int]) -> str:
    scores, costs = ([getattr(system, name) for system in systems] for name in ("score", "cost"))
    vertical = Axis(min(scores), max(scores), HEIGHT - BOTTOM, TOP, logarithmic=False)
    horizontal = Axis(min(costs), max(costs), LEFT + 6, WIDTH - RIGHT - 6, logarithmic=min(costs) > 0)
    best = front(systems)
    label = "best front, cheapest first: " + "; ".join(map(_described, best))
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">']
    parts += [horizontal_rule(value, vertical.place(value)) for value in vertical.ticks()]
    parts += [
        f'<text x="{horizontal.place(cost):.0f}" y="{HEIGHT - 10}" text-anchor="{anchor}">{cost:.3g}</text>'
        for cost, anchor in ((min(costs), "start"), (max(costs), "end"))
    ]
    line = " ".join(f"{horizontal.place(at.cost):.1f},{vertical.place(at.score):.1f}" for at in best)
    parts.append(f'<polyline class="front" points="{line}"/>')
    for system in systems:
        place = horizontal.place(system.cost), vertical.place(system.score)
        parts.append(_mark(SHAPES[system.form], *place, colours[system.model], _described(system)))
    return "".join([*parts, "</svg>"])


def _described(system: System) -> str:
    return f"{system.model} {system.form}: {system.score:.3f} at {system.cost:.3g}"


def _mark(shape: str, x: float, y: float, colour: int, title: str) -> str:
    """A mark of radius 4 that shows its title when pointed at."""
    corners = {"triangle": ((0, -5), (5, 4), (-5, 4)), "square": ((-4, -4), (4, -4), (4, 4), (-4, 4)),
               "diamond": ((0, -5), (5, 0), (0, 5), (-5, 0))}  # fmt: skip
    drawn = f'class="mark c{colour}"><title>{escape(title)}</title>'
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {drawn}</circle>'
    points = " ".join(f"{x + right:.1f},{y + down:.1f}" for right, down in corners[shape])
    return f'<polygon points="{points}" {drawn}</polygon>'
