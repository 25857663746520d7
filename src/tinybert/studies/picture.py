"""The picture of a study: for each task a row a variant, a dot a seed, a stroke at the mean."""

from collections.abc import Mapping
from html import escape
from statistics import mean

WIDTH, ROW, HEAD, LEFT, RIGHT = 640, 26, 34, 190, 60
# The file stands alone beside the Markdown, so that it brings its own colours, light and dark.
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #3a4148 } .title { font-weight: 600 }
line { stroke: #d9dde1 } .mean { stroke: #c2570c; stroke-width: 3 } circle { fill: #2563a8; fill-opacity: .75 }
@media (prefers-color-scheme: dark) { text { fill: #c4cad0 } line { stroke: #4a525a } circle { fill: #7db3ec }
  .mean { stroke: #f0a068 } }
"""


def dot_chart(title: str, panels: Mapping[str, Mapping[str, list[float]]]) -> str:
    """A whole SVG file. panels: heading -> variant -> the score of each seed."""
    parts, y = [], 0
    for heading, variants in panels.items():
        parts += _panel(heading, variants, y)
        y += HEAD + ROW * len(variants)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 10}" role="img"'
    return f'{head} aria-label="{escape(title)}"><style>{STYLE}</style>{"".join(parts)}</svg>\n'


def _panel(heading: str, variants: Mapping[str, list[float]], top: int) -> list[str]:
    every = [score for scores in variants.values() for score in scores]
    low, span = min(every), max(every) - min(every) or 1.0

    def place(score: float) -> str:
        return f"{LEFT + (score - low) / span * (WIDTH - LEFT - RIGHT):.1f}"

    parts = [f'<text class="title" x="8" y="{top + 22}">{escape(heading)}</text>']
    for number, (name, scores) in enumerate(variants.items()):
        y = top + HEAD + ROW * number + ROW / 2
        middle = place(mean(scores))
        parts += [
            f'<text x="{LEFT - 14}" y="{y + 4}" text-anchor="end">{escape(name)}</text>',
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>',
            f'<line class="mean" x1="{middle}" x2="{middle}" y1="{y - 8}" y2="{y + 8}"/>',
            *(f'<circle cx="{place(score)}" cy="{y}" r="4"/>' for score in scores),
            f'<text x="{WIDTH - RIGHT + 10}" y="{y + 4}">{mean(scores):.3f}</text>',
        ]
    return parts
