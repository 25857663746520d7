"""The domain subset: documents in which terms of a small dictionary occur."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tinybert.errors import UserError


@dataclass
class Tally:
    """How many there were and how many of them were kept."""

    found: int = 0
    kept: int = 0

    def add(self, amount: int, *, kept: bool) -> None:
        self.found += amount
        self.kept += amount * kept

    def as_dict(self) -> dict:
        return {"found": self.found, "kept": self.kept, "kept_share": self.kept / self.found if self.found else 0.0}


@dataclass
class FilterStatistics:
    """What a filter saw and kept; `terms` counts the documents in which a (subject, term) occurs at least once."""

    documents: Tally = field(default_factory=Tally)
    words: Tally = field(default_factory=Tally)
    subjects: dict[str, Tally] = field(default_factory=dict)
    terms: dict[tuple[str, str], Tally] = field(default_factory=dict)
    most_hits: int = 0
    highest_density: float = 0.0

    def as_dict(self) -> dict:
        """The same as plain data: documents, words, and per subject its documents and those of its terms."""
        subjects = {
            subject: tally.as_dict()
            | {"terms": {term: found.as_dict() for (owner, term), found in self.terms.items() if owner == subject}}
            for subject, tally in self.subjects.items()
        }
        return {"documents": self.documents.as_dict(), "words": self.words.as_dict(), "subjects": subjects}


def filter_documents(documents: Iterable[dict], settings, statistics: FilterStatistics) -> Iterator[dict]:
    """Yields the documents that `settings` (params: filter) keeps, and counts into `statistics`.

    A hit is a place in the text where a term begins; a document is kept when it has min_hits of them and at least
    min_hits_per_1000_words. The title is not looked at. UserError at the end when nothing was kept.
    """
    terms = _terms(settings)
    pattern = _pattern(terms, settings.matching)
    named = {term: _names_at(term, terms, settings.matching) for term in terms}
    statistics.subjects = {subject: Tally() for subject in settings.subjects}
    statistics.terms = {name: Tally() for names in terms.values() for name in names}
    for document in documents:
        hits = [_one_spaced(hit) for hit in pattern.findall(_fold(document["text"], settings))]
        words = len(document["text"].split())
        density = 1000 * len(hits) / words
        kept = len(hits) >= settings.min_hits and density >= settings.min_hits_per_1000_words
        _count(statistics, {name for hit in set(hits) for name in named[hit]}, words=words, kept=kept)
        statistics.most_hits = max(statistics.most_hits, len(hits))
        statistics.highest_density = max(statistics.highest_density, density)
        if kept:
            yield document
    if not statistics.documents.kept:
        raise UserError(_nothing_kept(settings, statistics))


def _terms(settings) -> dict[str, list[tuple[str, str]]]:
    """Terms as they are compared -> the (subject, term) pairs that are written so."""
    terms: dict[str, list[tuple[str, str]]] = {}
    for subject, subject_terms in settings.subjects.items():
        for term in subject_terms:
            compared = _one_spaced(_fold(term, settings))
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


def _count(statistics: FilterStatistics, names: set[tuple[str, str]], *, words: int, kept: bool) -> None:
    statistics.documents.add(1, kept=kept)
    statistics.words.add(words, kept=kept)
    for name in names:
        statistics.terms[name].add(1, kept=kept)
    for subject in {subject for subject, _ in names}:
        statistics.subjects[subject].add(1, kept=kept)


def _fold(text: str, settings) -> str:
    return text.casefold() if settings.ignore_case else text


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
