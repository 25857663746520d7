"""A table as text: the same cells on the terminal, in Markdown and on the page."""

from collections.abc import Sequence
from dataclasses import dataclass

ABSENT = "–"
COLLAPSED = "collapsed"
NO_BETTER = "≤ majority"  # a score that guessing the majority class reaches too
FLAGS = (COLLAPSED, NO_BETTER)
TERMINAL_COLUMNS = 100


@dataclass(frozen=True)
class Table:
    """Cells as they are shown. names: how many columns on the left hold names; the rest holds numbers.

    note: what a reader must know to understand the columns, in a sentence or two.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    names: int = 1
    note: str = ""


def fixed(value: float | None, digits: int) -> str:
    """A number with so many digits after the point; a dash for None."""
    return ABSENT if value is None else f"{value:,.{digits}f}"


def score(value: float | None) -> str:
    """A score of 0 to 1 (or -1 to 1), as GLUE papers print it."""
    return fixed(value, 3)


def count(value: int | None) -> str:
    return fixed(value, 0)


def percent(share: float | None, digits: int = 1) -> str:
    return ABSENT if share is None else f"{100 * share:.{digits}f} %"


def times(larger: float | None, smaller: float | None) -> str:
    """How many times the one is of the other; a dash where either is not known."""
    return ABSENT if larger is None or not smaller else f"{larger / smaller:.1f} ×"


def evenly(length: int, limit: int) -> list[int]:
    """At most `limit` indices spread over `length`, the first and the last among them."""
    if length <= limit:
        return list(range(length))
    return [round(i * (length - 1) / (limit - 1)) for i in range(limit)]


def as_markdown(table: Table) -> str:
    """The table in Markdown under a heading."""
    return f"## {table.title}\n\n{markdown_body(table)}"


def markdown_body(table: Table) -> str:
    """The table in Markdown and its note, without the title."""
    rule = ["---"] * table.names + ["---:"] * (len(table.columns) - table.names)
    lines = [f"| {' | '.join(map(_markdown_cell, cells))} |" for cells in (table.columns, *table.rows)]
    lines.insert(1, f"| {' | '.join(rule)} |")
    return "\n".join([*lines, *(["", table.note] if table.note else [])]) + "\n"


def as_text(table: Table, width: int = TERMINAL_COLUMNS) -> str:
    """The table in aligned columns of at most `width` characters; the longest names are shortened to fit."""
    lines = [table.columns, *table.rows]
    widths = _fit([max(len(line[i]) for line in lines) for i in range(len(table.columns))], table.names, width)
    return "\n".join([table.title, *(_aligned(line, widths, table.names) for line in lines)]) + "\n"


def _fit(widths: list[int], names: int, width: int) -> list[int]:
    """Narrows the widest name columns until all fit with two spaces between."""
    widths = list(widths)
    while sum(widths) + 2 * (len(widths) - 1) > width and max(widths[:names]) > 1:
        widths[widths.index(max(widths[:names]))] -= 1
    return widths


def _aligned(cells: Sequence[str], widths: list[int], names: int) -> str:
    left = [_shortened(cell, width).ljust(width) for cell, width in zip(cells[:names], widths, strict=False)]
    right = [cell.rjust(width) for cell, width in zip(cells[names:], widths[names:], strict=True)]
    return "  ".join([*left, *right]).rstrip()


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _markdown_cell(text: str) -> str:
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())
