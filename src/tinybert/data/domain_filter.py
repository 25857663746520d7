"""The domain subset: documents in which terms of a small dictionary occur."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from itertools import compress
from pathlib import Path

import ahocorasick_rs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tinybert.config.schema import Filter
from tinybert.data.documents import DocumentBatch, map_documents
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_file

# Bytes of UTF-8 that are word characters by themselves; those of longer characters need a look at the character.
WORD_BYTES = np.array([chr(byte).isalnum() or chr(byte) == "_" for byte in range(128)] + [False] * 128)


@dataclass
class FilterStatistics:
    """What a filter saw and kept.

    found, kept: counts under "documents", "words", (subject,) and (subject, term); the last two count the documents in
    which a term of the subject, or the term, occurs at least once.
    """

    found: Counter = field(default_factory=Counter)
    kept: Counter = field(default_factory=Counter)
    most_hits: int = 0
    highest_density: float = 0.0

    def count(self, name: str | tuple[str, ...], amounts: np.ndarray, keeps: np.ndarray) -> None:
        """Adds the amounts (documents,) of one batch under `name`; keeps: (documents,) bool."""
        self.found[name] += int(amounts.sum())
        self.kept[name] += int(amounts[keeps].sum())

    def merge(self, other: "FilterStatistics") -> None:
        """Adds what another batch counted."""
        self.found.update(other.found)
        self.kept.update(other.kept)
        self.most_hits = max(self.most_hits, other.most_hits)
        self.highest_density = max(self.highest_density, other.highest_density)

    def tally(self, name: str | tuple[str, ...]) -> dict:
        """How many were found under `name`, and the number and share that was kept."""
        found, kept = self.found[name], self.kept[name]
        return {"found": found, "kept": kept, "kept_share": kept / found if found else 0.0}

    def as_dict(self, settings: Filter) -> dict:
        """The same as plain data: documents, words, and per subject its documents and those of its terms."""
        subjects = {
            subject: self.tally((subject,)) | {"terms": {term: self.tally((subject, term)) for term in terms}}
            for subject, terms in settings.subjects.items()
        }
        return {"documents": self.tally("documents"), "words": self.tally("words"), "subjects": subjects}


class Rule:
    """The rule of params.filter, applied to one batch of documents after the other.

    All terms are found in one pass over the UTF-8 bytes of a batch (Aho and Corasick 1975); the characters around them
    then decide which are whole words. A word character is one that `\\w` of Python's re matches.
    """

    def __init__(self, settings: Filter) -> None:
        self.settings = settings
        named = [(subject, term) for subject, terms in settings.subjects.items() for term in terms]
        if blank := [subject for subject, term in named if not term.split()]:
            raise UserError(f"filter.subjects.{blank[0]}: an empty term would match everywhere; remove it")
        compared = {name: self._plain(name[1]) for name in named}
        terms = list(dict.fromkeys(compared.values()))
        self.columns = {name: terms.index(term) for name, term in compared.items()}
        # Whole words that hold word characters alone cannot overlap: the longest at each place is a hit, or none is.
        self.overlap = settings.matching == "substring" or not all(map(_is_word, "".join(terms)))
        kind = ahocorasick_rs.MatchKind.Standard if self.overlap else ahocorasick_rs.MatchKind.LeftmostLongest
        self.searcher = ahocorasick_rs.BytesAhoCorasick([term.encode() for term in terms], matchkind=kind)
        self.single_words = not any(" " in term for term in terms)
        self.rewritten = self._rewritten_texts(terms)

    def __call__(self, batch: DocumentBatch) -> tuple[bytes, FilterStatistics]:
        """Returns the lines of the documents that are kept, as they stand in the file, and what was counted."""
        hits, has_term, words = self._find(batch.texts)
        density = 1000 * hits / np.maximum(words, 1)
        keeps = hits >= self.settings.min_hits
        keeps &= density >= self.settings.min_hits_per_1000_words
        statistics = FilterStatistics(most_hits=int(hits.max()), highest_density=float(density.max()))
        statistics.count("documents", np.ones_like(hits), keeps)
        statistics.count("words", words, keeps)
        for name, column in self.columns.items():
            statistics.count(name, has_term[:, column], keeps)
        for subject, terms in self.settings.subjects.items():
            own = [self.columns[subject, term] for term in terms]
            statistics.count((subject,), has_term[:, own].max(axis=1), keeps)
        return b"".join(compress(batch.lines, keeps)), statistics

    def _find(self, texts: pa.StringArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Hits (documents,), whether a term occurs (documents, terms) and words (documents,)."""
        content, bounds = _joined(texts)
        if self.rewritten and not (content.isascii() and self.single_words):
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
        """The text as it is compared: single spaces, and no difference of case where that is ignored."""
        text = " ".join(text.split())
        return text.casefold() if self.settings.ignore_case else text

    def _rewritten_texts(self, terms: list[str]) -> str:
        """A pattern of the texts that need `_plain`, which is slow; of all others lower-casing ASCII is enough."""
        if not self.single_words:
            return "(?s)."
        if not self.settings.ignore_case:
            return ""
        return f"[{_unusual_characters()}]" if all(map(str.isascii, terms)) else r"[^\x00-\x7f]"


def filter_file(source: str | Path, target: str | Path, settings: Filter) -> FilterStatistics:
    """Writes those lines of the JSON-lines file `source` to `target` whose documents `settings` keeps.

    A hit is a place in the text where a term begins; a document is kept if it has min_hits of them and at least
    min_hits_per_1000_words. Titles are not searched. Memory holds a few batches of documents for each thread.

    Args:
        source: Documents, as prepare_corpus writes them.
        target: Written atomically; the lines keep their order whatever the number of threads.
        settings: The section filter of params.

    Returns:
        What was found and kept.

    Raises:
        UserError: If no document is kept, or `source` is damaged; then there is no `target`.
    """
    statistics = FilterStatistics()
    with atomic_file(target, "wb") as handle:
        for kept, counted in map_documents(Rule(settings), source, title="filter"):
            handle.write(kept)
            statistics.merge(counted)
        if not statistics.found["documents"]:
            raise UserError("filter: there are no documents to filter; the corpus is empty")
        if not statistics.kept["documents"]:
            raise UserError(
                f"filter: none of {statistics.found['documents']} documents is kept; "
                f"filter.min_hits is {settings.min_hits} (at most {statistics.most_hits} hits in one document), "
                f"filter.min_hits_per_1000_words is {settings.min_hits_per_1000_words} (at most "
                f"{statistics.highest_density:.2f}): lower them or add terms to filter.subjects"
            )
    return statistics


def _joined(texts: pa.StringArray) -> tuple[bytes, np.ndarray]:
    """UTF-8 of all texts with a line break around each, and where it stands before each: (documents + 1,).

    The breaks keep hits and words of two documents apart, and give every hit two neighbours.
    """
    lines = pc.binary_join_element_wise(texts, "\n", "")
    _, offsets, values = lines.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return b"\n" + memoryview(values)[: bounds[-1]], bounds


def _touches(content: bytes, places: np.ndarray, side: str) -> np.ndarray:
    """Whether the bytes at `places` belong to word characters: the character that ends, or begins, there."""
    neighbours = np.frombuffer(content, dtype=np.uint8)[places]
    found = WORD_BYTES[neighbours]
    for hit in np.flatnonzero(neighbours >= 128):
        place = int(places[hit])
        start, end = (place - 3, place + 1) if side == "before" else (place, place + 4)  # UTF-8: 4 bytes at most
        characters = content[max(start, 0) : end].decode("utf-8", errors="ignore")
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
        changes = {_is_word(folded[0]), _is_word(folded[-1])} != {_is_word(character)}
        if changes or any(map(str.isascii, folded)):
            unusual.append(character)
    return "".join(unusual)
