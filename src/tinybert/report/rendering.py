"""How results are written: numbers as text, tables as HTML, Markdown and plain text, templates filled in."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tinybert.pipeline.files import one_line

ABSENT = "–"
COLLAPSED = "collapsed"
NO_BETTER = "≤ majority"  # the majority class scores as well
# What opens or closes a construct of Markdown, HTML or a formula within a line.
SPECIAL = re.compile(r"([\\`*_\[\]<>|~&#!$])")
TERMINAL_CELL = 16  # characters of a cell's line on the terminal


def render(template: str, **context: Any) -> str:
    """Fills in a template of this package; if its name ends in .html.j2, texts are escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        autoescape=template.endswith(".html.j2"),  # for what it imports too
    )  # fmt: skip
    environment.filters |= {"fixed": fixed, "percent": percent, "signed": signed, "plain": markdown_escape}
    environment.filters["file"] = lambda path: markdown_escape(Path(path).name)  # cards are published, folders are not
    environment.globals["interval"] = interval
    return environment.get_template(template).render(context)


def fixed(value: float | None, digits: int = 3) -> str:
    """A number with so many digits after the point; a dash if there is none."""
    return ABSENT if value is None or math.isnan(value) else f"{value:,.{digits}f}"


def percent(share: float | None, digits: int = 1) -> str:
    return ABSENT if share is None or math.isnan(share) else f"{100 * share:.{digits}f} %"


def spread(mean: float, std: float, digits: int = 3) -> str:
    """A mean over seeds ± the standard deviation of the sample, which a single seed does not have."""
    return fixed(mean, digits) if math.isnan(std) else f"{fixed(mean, digits)} ± {fixed(std, digits)}"


def signed(difference: float) -> str:
    """A difference of scores with its sign; what rounds to zero has none."""
    return ABSENT if math.isnan(difference) else f"{round(difference, 3) + 0.0:+.3f}"


def interval(low: float, high: float) -> str:
    return ABSENT if math.isnan(low) else f"{signed(low)} to {signed(high)}"


def markdown_escape(text: str) -> str:
    """The text in one line of Markdown that shows it as it is."""
    return SPECIAL.sub(r"\\\1", one_line(text))


class TextTable(NamedTuple):
    """Cells as they are shown: texts in the first `names` columns, numbers in the others."""

    cells: pd.DataFrame
    names: int

    def without(self, *beginnings: str) -> "TextTable":
        """The table without the columns whose headings begin with these texts; leading text columns must stay."""
        kept = [not str(heading).startswith(beginnings) for heading in self.cells]
        return TextTable(self.cells.loc[:, kept], self.names)

    def markdown(self) -> str:
        return self._tabulated("pipe", lambda text: " ".join(re.sub(r"([\\|<])", r"\\\1", text).split()))

    def text(self) -> str:
        """The table for a terminal; long cells are wrapped."""
        return self._tabulated("plain", lambda text: "\n".join(wrap(text, TERMINAL_CELL)))

    def _tabulated(self, form: str, shown: Any) -> str:
        align = ["left" if number < self.names else "right" for number in range(self.cells.shape[1])]
        cells = self.cells.map(shown).rename(columns=shown)
        return cells.to_markdown(index=False, disable_numparse=True, colalign=align, tablefmt=form)


def table(frame: pd.DataFrame, names: Sequence[str], columns: Mapping[str, tuple]) -> TextTable:
    """Formats a frame; a column without any value is left out.

    Args:
        frame: The numbers and texts, one row for each row of the table. Numbers that no row has may lack their column.
        names: The leading columns, whose texts are shown as they are.
        columns: Heading -> a function that makes the cell, and the frame's columns whose values it is given.
    """
    unknown = pd.Series(math.nan, frame.index)
    cells = pd.DataFrame({name: frame[name] for name in names}, dtype=str)
    for heading, (form, *keys) in columns.items():
        shown = list(map(form, *(frame.get(key, unknown) for key in keys)))
        if set(shown) - {ABSENT, ""}:
            cells[heading] = shown
    return TextTable(cells, len(names))
