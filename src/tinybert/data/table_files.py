"""Tables of the user, read row by row: CSV, TSV, JSON lines or Parquet, each plain or .gz, or a dataset of the Hub."""

import csv
import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tinybert.config.tasks import HubTable, TableData
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import LINE_LIMIT_BYTES, one_line, parse_json, printable, read_lines
from tinybert.pipeline.hub import hub_access, hub_dataset

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
OTHER_SEPARATORS = {".csv": ";\t|", ".tsv": ",;|"}  # in the only name of a header that was not split
BATCH_ROWS = 10_000
Row = tuple[str, dict[str, Any]]  # where it stands, such as "line 7", and its cells by column


@dataclass(frozen=True)
class Table:
    """A file, or a split of a dataset on the Hub.

    Attributes:
        name: The file or the split.
        key: The key of params.yaml that names it; errors begin with it.
        hub: The dataset that the split is of.
    """

    name: str
    key: str
    hub: HubTable | None = None

    @property
    def path(self) -> Path:
        return paths.resolve(self.name)

    @property
    def ending(self) -> str:
        """Of the file, in lower case and without .gz; empty for a split of the Hub."""
        return "" if self.hub else Path(self.path.name.lower().removesuffix(".gz")).suffix

    def columns(self) -> tuple[str, ...]:
        """The names of its columns; those of the first row of JSON lines. UserError if it has no rows."""
        if self.hub and len(self._split):
            return tuple(self._split.column_names)
        for _, cells in self._all_rows():
            return tuple(cells)
        raise self.error("no rows; fix: name a table that has some")

    def has_values(self, column: str) -> bool:
        """Whether any row has something in this column, which may be absent."""
        wanted = (column,) if column in self.columns() else None
        return any(cells.get(column) not in (None, "", []) for _, cells in self._all_rows(wanted))

    def class_names(self, column: str) -> tuple[str, ...] | None:
        """The classes that a dataset of the Hub numbers in a column, in its order."""
        kind = self._split.features.get(column) if self.hub else None
        names = getattr(getattr(kind, "feature", kind), "names", None)
        return tuple(names) if names else None

    def check_columns(self, wanted: tuple[str, ...]) -> None:
        """UserError that names the columns there are, if one that is wanted is not among them."""
        found = self.columns()
        for column in wanted:
            if column not in found:
                advice = self._advice(found, "name one of these, in quotes, or add the column")
                raise self.error(f"no column {column!r:.80}; allowed: {_names(found)}; fix: {advice}")

    def rows(self, wanted: tuple[str, ...]) -> Iterator[Row]:
        """Yields the rows with these columns; cells of CSV and TSV are text, others values of any type."""
        self.check_columns(wanted)
        for where, cells in self._all_rows(wanted):
            if absent := [column for column in wanted if column not in cells]:
                raise self.error(f"{where}: no column {absent[0]!r:.80}; fix: add it to each row")
            yield where, {column: cells[column] for column in wanted}

    def error(self, problem: str) -> UserError:
        """The error line of a mistake in the table."""
        name = f"{self.hub.dataset}, split {self.name}" if self.hub else self.path
        return UserError(printable(f"{self.key}: {name}: {problem}"))

    def _advice(self, found: Sequence[str], otherwise: str) -> str:
        """The fix for fields that do not fit: a header of one name with other separators in it was not split."""
        is_unsplit = len(found) == 1 and any(mark in found[0] for mark in OTHER_SEPARATORS.get(self.ending, ""))
        return "separate fields by commas in .csv, by tabs in .tsv" if is_unsplit else otherwise

    def _all_rows(self, wanted: tuple[str, ...] | None = None) -> Iterator[Row]:
        """All rows; of Parquet only the wanted columns are read, and without any one empty row stands for all."""
        if self.hub:
            return self._hub_rows(wanted)
        if not self.path.is_file():
            raise UserError(f"{self.key}: {self.path} does not exist; fix: correct the path")
        if self.ending not in FORMATS:
            raise self.error(f"unknown format; allowed: {', '.join(FORMATS)}, each also .gz; fix: convert the file")
        if self.ending == ".parquet":
            return self._parquet_rows(wanted)
        return self._json_rows() if self.ending == ".jsonl" else self._delimited_rows(quoted=self.ending == ".csv")

    def _delimited_rows(self, *, quoted: bool) -> Iterator[Row]:
        """CSV by Python's csv module; TSV has no quotes, so that a tab or a line end always ends a field."""
        numbered = read_lines(self.path, key=self.key)
        csv.field_size_limit(LINE_LIMIT_BYTES)
        reader = csv.reader((f"{line}\n" for _, line in numbered), strict=True)
        split = ((reader.line_num, fields) for fields in reader)
        if not quoted:
            split = ((number, line.split("\t") if line else []) for number, line in numbered)
        header, number = None, 0
        try:
            for number, fields in split:
                if header is None and any(fields):
                    header = [name.strip() for name in fields]
                    named = list(filter(None, header))
                    if len(set(named)) < len(named):
                        raise self.error(f"line {number}: two columns have one name: {_names(header)}; fix: rename one")
                elif header is None:
                    continue
                elif len(fields) == len(header):
                    yield f"line {number}", dict(zip(header, fields, strict=True))
                elif any(fields):
                    counts = f"{len(fields)} fields; {len(header)} are expected: {_names(header)}"
                    advice = self._advice(header, "quote fields with separators" if quoted else "correct its tabs")
                    raise self.error(f"line {number}: {counts}; fix: {advice}")
        except csv.Error as error:
            problem = f"no CSV ({error}, at line {reader.line_num})"  # a quote that is not closed takes further lines
            fix = "correct its quotes, or save it with commas and LF line ends"
            raise self.error(f"line {number + 1}: {problem}; fix: {fix}") from None

    def _json_rows(self) -> Iterator[Row]:
        for number, line in read_lines(self.path, key=self.key):
            if line.strip():
                try:
                    cells, problem = parse_json(line), "must be a JSON object"
                except ValueError as error:
                    cells, problem = None, f"no JSON, {one_line(error)}"
                if not isinstance(cells, dict):
                    raise self.error(f"line {number}: {problem} (got {line!r:.60}); fix: one JSON object a line")
                yield f"line {number}", cells

    def _parquet_rows(self, wanted: tuple[str, ...] | None) -> Iterator[Row]:
        import pyarrow
        from pyarrow import parquet

        try:
            # Parquet is read from its end, which a packed file has only once it is unpacked.
            is_packed = self.path.name.lower().endswith(".gz")
            source = pyarrow.BufferReader(gzip.decompress(self.path.read_bytes())) if is_packed else self.path
            with parquet.ParquetFile(source) as file:
                found = file.schema_arrow.names
                if len(set(found)) < len(found):
                    raise self.error(f"two columns have one name: {_names(found)}; fix: rename one")
                rows: Iterable[dict] = [dict.fromkeys(found)] if file.metadata.num_rows else []
                if wanted is not None:
                    batches = file.iter_batches(BATCH_ROWS, columns=list(wanted))
                    rows = (cells for batch in batches for cells in batch.to_pylist())
                yield from ((f"row {number}", cells) for number, cells in enumerate(rows, start=1))
        except UserError:
            raise
        except (pyarrow.ArrowException, OSError, EOFError, ValueError, ArithmeticError, zlib.error) as error:
            raise self.error(f"cannot be read ({one_line(error):.100}); fix: replace the file") from None

    @cached_property
    def _split(self) -> Any:
        assert self.hub
        fix = f"check {self.key.rpartition('.')[0]}.hub, or name local files"
        dataset, config, revision = self.hub.dataset, self.hub.config, self.hub.revision
        with hub_access(f"{self.key}: hub", f"{dataset} ({config or 'default'}, {self.name}, {revision})", fix=fix):
            return hub_dataset(dataset, config, revision, split=self.name)

    def _hub_rows(self, wanted: tuple[str, ...] | None) -> Iterator[Row]:
        """Numbered classes come as their names, and as nothing if they are unknown (-1)."""
        rows = self._split.select_columns(list(wanted)) if wanted else self._split
        classes = {column: found for column in rows.column_names if (found := self.class_names(column))}

        def name_of(column: str, number: Any) -> Any:
            if isinstance(number, list):
                return [name_of(column, one) for one in number]
            return None if number is None or number < 0 else classes[column][number]

        for number, cells in enumerate(rows, start=1):
            yield f"row {number}", cells | {column: name_of(column, cells[column]) for column in classes}


def tables_of(task: str, data: TableData) -> dict[str, Table]:
    """The tables of a task's splits, by split."""
    return {split: Table(name, f"tasks.{task}.data.{split}", data.hub) for split, name in data.splits.items()}


def _names(columns: Sequence[str]) -> str:
    return f"{', '.join(map(str, filter(None, columns))):.200}"
