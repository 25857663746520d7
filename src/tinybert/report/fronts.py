"""Score against size and latency: the systems of a task, and which of them no other beats in both."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from tinybert.glue.tasks import TASKS
from tinybert.report.charts import BOTTOM, COLOURS, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, Chart, horizontal_rule
from tinybert.report.results import Results, latency_ms, onnx_models

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


def systems(results: Results, task: str) -> dict[str, list[System]]:
    """What the systems of a task cost: in megabytes, and in milliseconds a row, where latencies were measured."""
    batch_size = max(results.params.quantization.latency.batch_sizes)
    sizes, times = [], []
    for owner, model, form, found in onnx_models(results):
        if owner != task:
            continue
        score = found["dev"][TASKS[task].headline]
        sizes.append(System(model, form, score, found["size_mb"]["raw"]))
        if (batch_ms := latency_ms(results, task, model, form, f"dev_batch_{batch_size}")) is not None:
            times.append(System(model, form, score, batch_ms / batch_size))
    kinds = {"MB": sizes, f"ms a row of the dev split, batches of {batch_size}": times}
    return {kind: each for kind, each in kinds.items() if each}


def on_front(results: Results, task: str, model: str, form: str, *, with_latency: bool) -> str:
    """By which costs the system is on the front: "size", "speed", both, or nothing."""
    names = ("size", "speed") if with_latency else ("size",)
    kinds = zip(names, systems(results, task).values(), strict=False)
    return ", ".join(name for name, each in kinds if any((at.model, at.form) == (model, form) for at in front(each)))


def front_charts(results: Results) -> list[Chart]:
    """For each task score over size and over latency, the front drawn as a line."""
    charts = []
    for task in results.params.glue.tasks:
        for kind, each in systems(results, task).items():
            models = list(dict.fromkeys(system.model for system in each))
            colours = {model: number % COLOURS for number, model in enumerate(models)}
            charts.append(
                Chart(f"{task}: {TASKS[task].headline} over {kind}", list(colours.items()), _svg(each, colours))
            )
    return charts


def _svg(all_systems: list[System], colours: dict[str, int]) -> str:
    scores, costs = ([getattr(system, name) for system in all_systems] for name in ("score", "cost"))
    vertical = Axis(min(scores), max(scores), HEIGHT - BOTTOM, TOP, logarithmic=False)
    horizontal = Axis(min(costs), max(costs), LEFT + 6, WIDTH - RIGHT - 6, logarithmic=min(costs) > 0)
    best = front(all_systems)
    label = "best front, cheapest first: " + "; ".join(map(_described, best))
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">']
    parts += [horizontal_rule(value, vertical.place(value)) for value in vertical.ticks()]
    parts += [
        f'<text x="{horizontal.place(cost):.0f}" y="{HEIGHT - 10}" text-anchor="{anchor}">{cost:.3g}</text>'
        for cost, anchor in ((min(costs), "start"), (max(costs), "end"))
    ]
    line = " ".join(f"{horizontal.place(at.cost):.1f},{vertical.place(at.score):.1f}" for at in best)
    parts.append(f'<polyline class="front" points="{line}"/>')
    for system in all_systems:
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
