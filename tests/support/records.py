"""Checks numbers of Markdown tables against the records in results/.

A comment right above a table names the record and, for each column of numbers, a JSON file of the record and a key in
it:

    <!-- from results/minilm:
    teacher = metrics/evaluate/{row}-tinybert4/* dev.teacher.{headline}
    student = metrics/evaluate/{row}-tinybert4/* dev.student.{headline}
    above-majority retention = summary_metrics {row}.tinybert4.retention_above_majority
    INT8 file = metrics/quantize/{row}-tinybert4 int8-dynamic.size_mb.raw
    -->

{row} is the first word of a row's first cell (SST-2 gives sst2), {headline} that task's first metric. * stands for the
seeds: a number is the mean over them, after ± the standard deviation (n - 1). % and M scale it. A comment that begins
"from results/minilm, cola from results/minilm_cola" takes the row of CoLA from another record; more may follow.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev

from tinybert.config.tasks import TASKS

BEGIN = re.compile(r"<!--\s*from\b")
RECORD = r"results/[a-z0-9_-]+"
MARKER = re.compile(
    rf"<!-- from ({RECORD})((?:,\s\w+ from {RECORD})*):\n(.*?)\n-->\n\n?((?:\|[^\n]*(?:\n|$))+)", re.DOTALL
)
OTHER = re.compile(rf"(\w+) from ({RECORD})")
COLUMN = re.compile(r"(.+?) = (\S+) (\S+)")
NUMBER = r"[-−+]?(?:\d[\d,]*)?(?:\.\d+|\d)"
CELL = re.compile(rf"({NUMBER})(?: ± ({NUMBER}))?(?: ?(%|M|MB|s))?")
SCALES = {"%": 100, "M": 1e-6}


def mistakes(document: Path, root: Path) -> list[str]:
    """Returns a line for each number of a marked table that is not what the record gives, and each broken marker.

    Args:
        document: A Markdown file.
        root: The folder that holds results/.
    """
    text, found = document.read_text(encoding="utf-8"), []
    markers = list(MARKER.finditer(text))
    if len(markers) != len(BEGIN.findall(text)):
        found.append("a marker is malformed, or no table follows it")
    for marker in markers:
        record, others, columns, table = marker.groups()
        records = {"": root / record} | {row: root / other for row, other in OTHER.findall(others)}
        if lacking := [folder for folder in records.values() if not folder.is_dir()]:
            found.append(f"{lacking[0].relative_to(root)}: no such record")
            continue
        found += table_mistakes(columns.splitlines(), table.splitlines(), records)
    return [f"{document.name}: {mistake}" for mistake in found]


def table_mistakes(columns: list[str], table: list[str], records: dict[str, Path]) -> Iterator[str]:
    """Yields the mistakes of one table; `columns` are the marker's lines, `records` those of rows, "" of all others."""
    parsed = [COLUMN.fullmatch(line.strip()) for line in columns]
    yield from (f"not COLUMN = FILE KEY: {line}" for line, match in zip(columns, parsed, strict=True) if not match)
    sources = {match[1]: (match[2], match[3]) for match in parsed if match}
    header, _, *rows = (split_row(line) for line in table)
    yield from (f"no column {name}" for name in sources.keys() - set(header))
    if not rows:
        yield "a table without rows"
    for row in rows:
        if len(row) != len(header):
            yield f"{row[0]}: {len(row)} cells below {len(header)} headings"
        for name, cell in zip(header[1:], row[1:], strict=False):
            if name not in sources:
                if re.search(r"\d", cell):
                    yield f"{row[0]}, {name}: {cell} has no source in the marker"
            elif mistake := cell_mistake(cell, row[0], sources[name], records):
                yield f"{row[0]}, {name}: {mistake}"


def split_row(line: str) -> list[str]:
    """The cells of a table's line without emphasis and code marks."""
    return [cell.strip().strip("*`") for cell in line.strip().strip("|").split("|")]


def cell_mistake(cell: str, label: str, source: tuple[str, str], records: dict[str, Path]) -> str:
    """What is wrong with a cell; empty if its numbers are those of the record."""
    printed = CELL.fullmatch(cell)
    if not printed:
        return f"no number (got {cell!r})"
    row = re.sub(r"[^a-z0-9_]", "", label.lower().partition(" ")[0])
    record = records.get(row, records[""])
    names = {"{row}": row, "{headline}": TASKS[row].headline if row in TASKS else "{headline}"}
    file, key = (re.sub(r"{\w+}", lambda found: names.get(found[0], found[0]), part) for part in source)
    try:
        values = [number_at(path, key) for path in sorted(record.glob(f"{file}.json"))]
        expected = [mean(values), stdev(values)] if printed[2] else [mean(values)]
    except (KeyError, TypeError, ValueError) as error:  # StatisticsError is a ValueError
        return f"{file}, {key}: no data ({error})"
    scale = SCALES.get(printed[3], 1)
    for text, value in zip(printed.groups(), expected, strict=False):
        if not is_rounded(text, scale * value):
            return f"{text} is printed, the record has {scale * value:.6g} ({file}, {key})"
    return ""


def number_at(path: Path, key: str) -> float:
    """The number at a dotted key of a JSON file."""
    value = json.loads(path.read_text(encoding="utf-8"))
    for part in key.split("."):
        value = value[part]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"got {value!r}")
    return value


def is_rounded(text: str, value: float) -> bool:
    """Whether the text is the value rounded to its own digits; of a tie both neighbors are right."""
    digits = len(text.partition(".")[2])
    number = float(text.replace("−", "-").replace(",", ""))
    return abs(number - value) <= 0.5 * 10**-digits + 1e-9
