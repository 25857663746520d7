"""The domain subset: documents in which terms of a small dictionary occur."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tinybert.data.parallel import map_in_order, processes_for
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_file
from tinybert.pipeline.process import text_progress_bar
from tinybert.pipeline.text_lines import CHUNK_BYTES, Chunk, read_chunks


@dataclass
class Tally:
    """How many there were and how many of them were kept."""

    found: int = 0
    kept: int = 0

    def add(self, amount: int, *, kept: bool) -> None:
        self.found += amount
        self.kept += amount * kept

    def merge(self, other: "Tally") -> None:
        self.found += other.found
        self.kept += other.kept

    def as_dict(self) -> dict:
        return {"found": self.found, "kept": self.kept, "kept_share": self.kept / self.found if self.found else 0.0}


@dataclass
class FilterStatistics:
    """What a filter saw and kept; `terms` counts the documents in which a (subject, term) occurs at least once."""

    documents: Tally = field(default_factory=Tally)
    words: Tally = field(default_factory=Tally)
    subjects: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    terms: dict[tuple[str, str], Tally] = field(default_factory=lambda: defaultdict(Tally))
    most_hits: int = 0
    highest_density: float = 0.0

    def count(self, names: set[tuple[str, str]], *, hits: int, words: int, kept: bool) -> None:
        """Counts one document of so many words, in which the terms `names` are hit so often."""
        self.documents.add(1, kept=kept)
        self.words.add(words, kept=kept)
        for name in names:
            self.terms[name].add(1, kept=kept)
        for subject in {subject for subject, _ in names}:
            self.subjects[subject].add(1, kept=kept)
        self.most_hits = max(self.most_hits, hits)
        self.highest_density = max(self.highest_density, _density(hits, words))

    def merge(self, other: "FilterStatistics") -> None:
        """Adds what was counted elsewhere."""
        self.documents.merge(other.documents)
        self.words.merge(other.words)
        for subject, tally in other.subjects.items():
            self.subjects[subject].merge(tally)
        for name, tally in other.terms.items():
            self.terms[name].merge(tally)
        self.most_hits = max(self.most_hits, other.most_hits)
        self.highest_density = max(self.highest_density, other.highest_density)

    def as_dict(self) -> dict:
        """The same as plain data: documents, words, and per subject its documents and those of its terms."""
        subjects = {
            subject: tally.as_dict()
            | {"terms": {term: found.as_dict() for (owner, term), found in self.terms.items() if owner == subject}}
            for subject, tally in self.subjects.items()
        }
        return {"documents": self.documents.as_dict(), "words": self.words.as_dict(), "subjects": subjects}


class Rule:
    """The rule of `settings` (params: filter), made ready to judge documents."""

    def __init__(self, settings) -> None:
        terms = _terms(settings)
        self.pattern = _pattern(terms, settings.matching)
        self.names = {term: _names_at(term, terms, settings.matching) for term in terms}
        self.ignore_case = settings.ignore_case
        self.min_hits = settings.min_hits
        self.min_hits_per_1000_words = settings.min_hits_per_1000_words

    def keeps(self, text: str, statistics: FilterStatistics) -> bool:
        """Whether a document with this text is kept; counted into `statistics`."""
        hits = [_one_spaced(hit) for hit in self.pattern.findall(_fold(text, self.ignore_case))]
        words = len(text.split())
        kept = len(hits) >= self.min_hits and _density(len(hits), words) >= self.min_hits_per_1000_words
        names = {name for hit in set(hits) for name in self.names[hit]}
        statistics.count(names, hits=len(hits), words=words, kept=kept)
        return kept

    def __call__(self, chunk: Chunk) -> tuple[bytes, FilterStatistics]:
        """The lines of `chunk` whose documents are kept, as they stand there, and what was counted."""
        statistics = FilterStatistics()
        kept = b"".join(line for line, text in chunk.texts() if self.keeps(text, statistics))
        return kept, statistics


def filter_file(
    source: str | Path,
    target: str | Path,
    settings,
    *,
    processes: int | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> FilterStatistics:
    """Writes those lines of the JSON-lines file `source` to `target` whose documents `settings` (params: filter) keeps.

    A hit is a place in the text where a term begins; a document is kept when it has min_hits of them and at least
    min_hits_per_1000_words. The title is not looked at. Returns what was counted. UserError, and no `target`, when
    nothing was kept. Neither `processes` (None: as many as the size is worth) nor `chunk_bytes` changes a result;
    memory holds a few chunks for each process.
    """
    size_bytes = Path(source).stat().st_size
    chunks = read_chunks(source, chunk_bytes=chunk_bytes)
    results = map_in_order(Rule(settings), chunks, processes=processes or processes_for(size_bytes))
    statistics = _nothing_counted(settings)
    with atomic_file(target, "wb") as handle, text_progress_bar("filter", size_bytes) as progress:
        for chunk, (kept, counted) in results:
            handle.write(kept)
            statistics.merge(counted)
            progress.advance(len(chunk.data), documents=counted.documents.found)
        if not statistics.documents.kept:
            raise UserError(_nothing_kept(settings, statistics))
    return statistics


def _terms(settings) -> dict[str, list[tuple[str, str]]]:
    """Terms as they are compared -> the (subject, term) pairs that are written so."""
    terms: dict[str, list[tuple[str, str]]] = {}
    for subject, subject_terms in settings.subjects.items():
        for term in subject_terms:
            compared = _one_spaced(_fold(term, settings.ignore_case))
            if not compared:
                raise UserError(f"filter.subjects.{subject}: an empty term would match everywhere; remove it")
            terms.setdefault(compared, []).append((subject, term))
    return terms


def _pattern(terms: Iterable[str], matching: str) -> re.Pattern:
    """Finds, at each place where a term begins, the longest one; looking ahead, so that terms may overlap."""
    longest_first = sorted(terms, key=len, reverse=True)
    either = "|".join(r"\s+".join(map(re.escape, term.split())) for term in longest_first)
    return re.compile(rf"(?<!\w)(?=({either})(?!\w))" if matching == "whole_word" else rf"(?=({either}))")


def _names_at(longest: str, terms: dict[str, list[tuple[str, str]]], matching: str) -> list[tuple[str, str]]:
    """All (subject, term) pairs that begin where `longest` begins: "king" is there in "king of spain"."""
    names = []
    for term, pairs in terms.items():
        if _pattern([term], matching).match(longest):
            names += pairs
    return names


def _nothing_counted(settings) -> FilterStatistics:
    names = [(subject, term) for subject, terms in settings.subjects.items() for term in terms]
    return FilterStatistics(subjects={name: Tally() for name in settings.subjects}, terms={n: Tally() for n in names})


def _density(hits: int, words: int) -> float:
    return 1000 * hits / words if words else 0.0


def _fold(text: str, ignore_case: bool) -> str:
    return text.casefold() if ignore_case else text


def _one_spaced(text: str) -> str:
    return " ".join(text.split())


def _nothing_kept(settings, statistics: FilterStatistics) -> str:
    if not statistics.documents.found:
        return "filter: there are no documents to filter; the corpus is empty"
    return (
        f"filter: none of {statistics.documents.found} documents is kept; "
        f"filter.min_hits is {settings.min_hits} (at most {statistics.most_hits} hits in one document), "
        f"filter.min_hits_per_1000_words is {settings.min_hits_per_1000_words} (at most "
        f"{statistics.highest_density:.2f}): lower them or add terms to filter.subjects"
    )
