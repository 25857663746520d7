"""The domain subset: documents that contain terms of a small dictionary, found in Arrow batches by threads."""

import os
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import compress, islice
from pathlib import Path
from typing import NamedTuple

import ahocorasick_rs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from tinybert.config.schema import Filter
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_file, printable
from tinybert.pipeline.process import text_progress_bar

# Size of a batch of documents: large enough to outweigh its hand-over, small enough to hold a few dozen in memory.
BATCH_BYTES = 2**20
MOST_THREADS = 16
TEXT_ONLY = pyarrow.json.ParseOptions(
    explicit_schema=pa.schema([("text", pa.string())]), unexpected_field_behavior="ignore"
)
# Bytes of UTF-8 that are word characters by themselves; those of longer characters need a look at the character.
WORD_BYTES = np.array([chr(byte).isalnum() or chr(byte) == "_" for byte in range(128)] + [False] * 128)


class Filtered(NamedTuple):
    """What the filter makes of one batch of documents."""

    lines: bytes  # of the documents that are kept, as they stand in the file
    found: Counter  # under "documents", "words", (subject,) and (subject, term); the last two count documents
    kept: Counter  # the same of what is kept
    most_hits: int
    highest_density: float


class Rule:
    """The rule of params.filter, applied batch by batch.

    All terms are found in one pass over the UTF-8 bytes of a batch (Aho and Corasick 1975); the characters around them
    then decide which are whole words. A word character is one that `\\w` of Python's re matches.
    """

    def __init__(self, settings: Filter) -> None:
        self.settings = settings
        named = [(subject, term) for subject, terms in settings.subjects.items() for term in terms]
        terms = list(dict.fromkeys(self._plain(term) for _, term in named))
        self.columns = {name: terms.index(self._plain(name[1])) for name in named}
        characters = "".join(terms)
        # Whole words that hold word characters alone cannot overlap: the longest at each place is a hit, or none is.
        self.overlap = settings.matching == "substring" or not all(map(_is_word, characters))
        kind = ahocorasick_rs.MatchKind.Standard if self.overlap else ahocorasick_rs.MatchKind.LeftmostLongest
        self.searcher = ahocorasick_rs.BytesAhoCorasick([term.encode() for term in terms], matchkind=kind)
        # `_plain` is slow: for ASCII words few texts need it, as lower-casing ASCII is enough for the others.
        self.is_quick = characters.isascii() and " " not in characters
        self.rewritten = f"[{_unusual_characters()}]" if self.is_quick else "(?s)."

    def __call__(self, lines: list[bytes], texts: pa.StringArray) -> Filtered:
        """Decides which documents of a batch, given as lines and as texts, are kept, and counts their terms."""
        hits, has_term, words = self._find(texts)
        density = 1000 * hits / np.maximum(words, 1)
        keeps = (hits >= self.settings.min_hits) & (density >= self.settings.min_hits_per_1000_words)
        amounts: dict[str | tuple[str, ...], np.ndarray] = {"documents": np.ones_like(hits), "words": words}
        for subject, terms in self.settings.subjects.items():
            columns = has_term[:, [self.columns[subject, term] for term in terms]]
            amounts[subject,] = columns.max(axis=1)
            amounts |= {(subject, term): column for term, column in zip(terms, columns.T, strict=True)}
        found = Counter({name: int(amount.sum()) for name, amount in amounts.items()})
        kept = Counter({name: int(amount[keeps].sum()) for name, amount in amounts.items()})
        return Filtered(b"".join(compress(lines, keeps)), found, kept, int(hits.max()), float(density.max()))

    def _find(self, texts: pa.StringArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Hits (documents,), whether a term occurs (documents, terms) and words (documents,)."""
        content, bounds = _joined(texts)
        if not (self.is_quick and content.isascii()):
            chosen = pc.match_substring_regex(texts, self.rewritten)
            plain = pa.array([self._plain(text) for text in texts.filter(chosen).to_pylist()], type=pa.string())
            content, bounds = _joined(pc.replace_with_mask(texts, chosen, plain))
        content = content.lower() if self.settings.ignore_case else content
        is_blank = np.frombuffer(content, dtype=np.uint8) <= ord(" ")
        is_before_word = (is_blank[:-1] > is_blank[1:]).view(np.int8)
        words = np.add.reduceat(is_before_word, bounds[:-1], dtype=np.int64)

        matches = np.array(self.searcher.find_matches_as_indexes(content, overlapping=self.overlap), dtype=np.int64)
        terms, starts, ends = matches.reshape(-1, 3).T
        if self.settings.matching == "whole_word":
            whole = ~(_touches(content, starts - 1, "before") | _touches(content, ends, "after"))
            terms, starts = terms[whole], starts[whole]
        documents = np.searchsorted(bounds, starts - 1, side="right") - 1
        has_term = np.zeros((len(texts), max(self.columns.values()) + 1), dtype=bool)
        has_term[documents, terms] = True
        # Terms that begin at the same place ("king", "king of spain") are one hit.
        _, first = np.unique(starts, return_index=True)
        return np.bincount(documents[first], minlength=len(texts)), has_term, words

    def _plain(self, text: str) -> str:
        """The text as it is compared: single spaces, and lower case if case is ignored."""
        text = " ".join(text.split())
        return text.casefold() if self.settings.ignore_case else text


def filter_file(source: str | Path, target: str | Path, settings: Filter) -> dict[str, dict]:
    """Writes those lines of the JSON-lines file `source` to `target` whose documents `settings` keeps.

    A hit is a place in the text where a term begins; a document is kept if it has min_hits of them and at least
    min_hits_per_1000_words. Titles are not searched. Memory holds a few batches of documents for each thread.

    The lines keep their order whatever the number of threads. If none is kept, that is an error, and no file is left.

    Returns:
        found, kept and kept_share of documents, words, each subject's documents and each term's documents.
    """
    found: Counter = Counter()
    kept: Counter = Counter()
    most_hits, highest_density = 0, 0.0
    with atomic_file(target, "wb") as handle:
        for batch in _map_batches(Rule(settings), source):
            handle.write(batch.lines)
            found.update(batch.found)
            kept.update(batch.kept)
            most_hits, highest_density = max(most_hits, batch.most_hits), max(highest_density, batch.highest_density)
        if not found["documents"]:
            raise UserError("filter: there are no documents to filter; the corpus is empty")
        if not kept["documents"]:
            raise UserError(
                f"filter: none of {found['documents']} documents is kept; filter.min_hits is {settings.min_hits} (at "
                f"most {most_hits} hits in one document), filter.min_hits_per_1000_words is "
                f"{settings.min_hits_per_1000_words} (at most {highest_density:.2f}): lower them or add terms to "
                f"filter.subjects"
            )

    def tally(name: str | tuple[str, ...]) -> dict:
        share = kept[name] / found[name] if found[name] else 0.0
        return {"found": found[name], "kept": kept[name], "kept_share": share}

    subjects = {
        subject: tally((subject,)) | {"terms": {term: tally((subject, term)) for term in terms}}
        for subject, terms in settings.subjects.items()
    }
    return {"documents": tally("documents"), "words": tally("words"), "subjects": subjects}


def _map_batches(rule: Rule, path: str | Path) -> Iterator[Filtered]:
    """Yields the result of each batch of a JSON-lines file, in order, with a progress bar.

    One thread per usable CPU computes, because Arrow, NumPy and the search release Python's global lock.
    """
    threads = min(len(os.sched_getaffinity(0)), MOST_THREADS)

    def work(data: bytes) -> tuple[int, Filtered]:
        return len(data), rule(*_parse(path, data))

    with (
        open(path, "rb") as file,
        ThreadPoolExecutor(threads) as pool,
        text_progress_bar("filter", Path(path).stat().st_size) as progress,
    ):
        chunks = (data + file.readline() for data in iter(lambda: file.read(BATCH_BYTES), b""))
        futures = (pool.submit(work, data) for data in chunks)
        started = deque(islice(futures, 2 * threads))
        while started:
            read_bytes, result = started.popleft().result()
            started.extend(islice(futures, 1))
            progress.advance(read_bytes, documents=result.found["documents"])
            yield result


def _parse(path: str | Path, data: bytes) -> tuple[list[bytes], pa.StringArray]:
    """The lines of a batch and their texts."""
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
    return lines, texts


def _joined(texts: pa.StringArray) -> tuple[bytes, np.ndarray]:
    """UTF-8 of all texts with a line break around each, and where it stands before each: (documents + 1,).

    The breaks separate hits and words of two documents, and give every hit two neighbors.
    """
    lines = pc.binary_join_element_wise(texts, "\n", "")
    _, offsets, values = lines.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return b"\n" + memoryview(values)[: bounds[-1]], bounds


def _touches(content: bytes, places: np.ndarray, side: str) -> np.ndarray:
    """Whether the bytes at `places` belong to word characters: the character that ends, or begins, there."""
    neighbors = np.frombuffer(content, dtype=np.uint8)[places]
    found = WORD_BYTES[neighbors]
    for hit in np.flatnonzero(neighbors >= 128):
        place = int(places[hit])
        start, end = (max(place - 3, 0), place + 1) if side == "before" else (place, place + 4)  # UTF-8: 4 at most
        characters = content[start:end].decode("utf-8", errors="ignore")
        found[hit] = _is_word(characters[-1:] if side == "before" else characters[:1])
    return found


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


@cache
def _unusual_characters() -> str:
    """All characters outside ASCII that casefold() turns into ASCII (ß, the Kelvin sign) or into another boundary."""
    unusual = []
    for character in map(chr, range(128, 0x10000)):  # beyond there is none
        folded = character.casefold()
        moves = _is_word(folded[0]) != _is_word(character) or _is_word(folded[-1]) != _is_word(character)
        if moves or any(map(str.isascii, folded)):
            unusual.append(character)
    return "".join(unusual)
