"""Documents as JSON lines: read in batches and mapped by threads, in order."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

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


class DocumentBatch(NamedTuple):
    """Consecutive documents of a JSON-lines file: their unchanged lines, and their texts."""

    lines: list[bytes]
    texts: pa.StringArray


def map_documents(function: Callable[[DocumentBatch], Result], path: str | Path, *, title: str) -> Iterator[Result]:
    """Yields function(batch) for all batches of a JSON-lines file, in order, under a progress bar.

    Threads do the work, one for each usable CPU: Arrow, NumPy and tokenizers release Python's lock as they compute.
    Their number changes no result, and memory holds two batches for each.
    """
    threads = min(len(os.sched_getaffinity(0)), MOST_THREADS)
    size_bytes = Path(path).stat().st_size

    def work(data: bytes) -> tuple[DocumentBatch, Result]:
        batch = _parse(path, data)
        return batch, function(batch)

    with (
        open(path, "rb") as file,
        ThreadPoolExecutor(threads) as pool,
        text_progress_bar(title, size_bytes) as progress,
    ):
        chunks = (data + file.readline() for data in iter(lambda: file.read(BATCH_BYTES), b""))
        futures = (pool.submit(work, data) for data in chunks)
        started = deque(islice(futures, 2 * threads))
        while started:
            batch, result = started.popleft().result()
            started.extend(islice(futures, 1))
            progress.advance(sum(map(len, batch.lines)), documents=len(batch.lines))
            yield result


def _parse(path: str | Path, data: bytes) -> DocumentBatch:
    lines = data.splitlines(keepends=True)
    options = pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    try:
        table = pyarrow.json.read_json(pa.BufferReader(data), read_options=options, parse_options=TEXT_ONLY)
        texts = table["text"].combine_chunks()
        texts.validate(full=True)
    except pa.ArrowException as error:
        found = f"no JSON lines with texts ({printable(str(error)):.200})"
        raise UserError(f"{path}: {found}; fix: run the stage that wrote it again") from None
    if len(texts) != len(lines) or texts.null_count:
        raise UserError(f"{path}: a document has no text; fix: run the stage that wrote it again")
    return DocumentBatch(lines, texts)
