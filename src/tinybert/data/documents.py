"""Documents as JSON lines: read in batches and mapped by threads, in order."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.json

from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import printable
from tinybert.pipeline.process import text_progress_bar

# Documents are read in batches of this size: long enough to outweigh handing it over, small enough to hold a few dozen.
BATCH_BYTES = 2**20
MOST_THREADS = 16
TEXT_ONLY = pyarrow.json.ParseOptions(
    explicit_schema=pa.schema([("text", pa.string())]), unexpected_field_behavior="ignore"
)

Result = TypeVar("Result")


@dataclass(frozen=True)
class DocumentBatch:
    """Consecutive documents of a JSON-lines file: their lines as they stand there, and their texts."""

    lines: list[bytes]
    texts: pa.StringArray


def map_documents(function: Callable[[DocumentBatch], Result], path: str | Path, *, title: str) -> Iterator[Result]:
    """Yields function(batch) for all batches of a JSON-lines file, in order, under a progress bar.

    Threads do the work, one for each usable CPU: Arrow, NumPy and tokenizers release Python's lock as they compute.
    Their number changes no result, and memory holds two batches for each.

    Raises:
        UserError: If the file is no JSON lines with texts.
    """
    threads = min(len(os.sched_getaffinity(0)), MOST_THREADS)

    def work(data: bytes) -> tuple[DocumentBatch, Result]:
        batch = _parse(path, data)
        return batch, function(batch)

    with ThreadPoolExecutor(threads) as pool, text_progress_bar(title, Path(path).stat().st_size) as progress:
        for future in _read_ahead((pool.submit(work, data) for data in _whole_lines(path)), 2 * threads):
            batch, result = future.result()
            progress.advance(sum(map(len, batch.lines)), documents=len(batch.lines))
            yield result


def _whole_lines(path: str | Path) -> Iterator[bytes]:
    with open(path, "rb") as handle:
        while data := handle.read(BATCH_BYTES):
            yield data + handle.readline()


def _parse(path: str | Path, data: bytes) -> DocumentBatch:
    lines = data.splitlines(keepends=True)
    options = pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    try:
        table = pyarrow.json.read_json(pa.BufferReader(data), read_options=options, parse_options=TEXT_ONLY)
        texts = table["text"].combine_chunks()
        texts.validate(full=True)
    except pa.ArrowException as error:
        reason = printable(str(error))
        raise UserError(
            f"{path}: no JSON lines with texts ({reason:.200}); run the stage that wrote it again"
        ) from None
    if len(texts) != len(lines) or texts.null_count:
        raise UserError(f"{path}: a document has no text; run the stage that wrote it again")
    return DocumentBatch(lines, texts)


def _read_ahead(futures: Iterable[Future], count: int) -> Iterator[Future]:
    """Yields the futures in order, each after `count` more have been started."""
    started: deque[Future] = deque()
    for future in futures:
        started.append(future)
        if len(started) > count:
            yield started.popleft()
    yield from started
