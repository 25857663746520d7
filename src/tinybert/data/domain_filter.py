"""The domain subset: documents that contain terms of a small dictionary."""

import json
import re
from collections import Counter
from itertools import tee
from pathlib import Path

import ahocorasick_rs

from tinybert.config.schema import Filter
from tinybert.pipeline.engine import ordered_map
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_file, read_documents

# Counts of "documents", "words", (subject,) and (subject, term); the last two count documents.
TermCounts = Counter[str | tuple[str, ...]]
WORD_CHARACTER = re.compile(r"\w")


class Rule:
    """The rule of params.filter. All terms are found in one pass over a text (Aho and Corasick 1975)."""

    def __init__(self, settings: Filter) -> None:
        self.settings = settings
        self.names: dict[str, list[tuple[str, str]]] = {}  # (subject, term) pairs by normalized term
        for subject, terms in settings.subjects.items():
            for term in terms:
                self.names.setdefault(self._plain(term), []).append((subject, term))
        self.terms = list(self.names)
        self.searcher = ahocorasick_rs.AhoCorasick(self.terms)

    def __reduce__(self) -> tuple:
        return Rule, (self.settings,)  # other processes build their own searcher

    def __call__(self, text: str) -> tuple[int, TermCounts]:
        """Counts the hits and terms of a document.

        A hit is a place where a term begins. With whole_word, no word character (`\\w` of Python's re) may touch it.

        Returns:
            The number of hits, and the counts of this document.
        """
        text = self._plain(text)
        starts, names = set[int](), set[tuple[str, ...]]()
        for term, start, end in self.searcher.find_matches_as_indexes(text, overlapping=True):
            is_whole = not WORD_CHARACTER.search(text[start - 1 : start] + text[end : end + 1])
            if is_whole or self.settings.matching == "substring":
                starts.add(start)
                names.update(self.names[self.terms[term]])
        counts = TermCounts({"documents": 1, "words": len(text.split())})
        counts.update(names | {(subject,) for subject, *_ in names})
        return len(starts), counts

    def _plain(self, text: str) -> str:
        """The text as it is compared: single spaces, and lower case if case is ignored."""
        text = " ".join(text.split())
        return text.casefold() if self.settings.ignore_case else text


def filter_file(source: str | Path, target: str | Path, settings: Filter, *, required: bool = True) -> dict[str, dict]:
    """Copies the documents of the JSON-lines file `source` that match `settings` to `target`.

    A document is kept if it has at least min_hits hits, and at least min_hits_per_1000_words of them per 1,000 words.
    Titles are not searched. Memory holds one document; with Ray, the documents in progress.

    Args:
        required: Whether a model learns from the domain. If not, a domain without matches gets the last document: the
            next stage needs one.

    Returns:
        found, kept and kept_share of documents, words, each subject's documents and each term's documents.

    Raises:
        UserError: No document is kept although one is required; then no file is written.
    """
    rule, found, kept = Rule(settings), TermCounts(), TermCounts()
    most_hits, highest_density = 0, 0.0
    documents, read = tee(read_documents(source, "filter"))
    measured = ordered_map(rule, (document["text"] for document in read))
    with atomic_file(target) as handle:
        for document, (hits, counts) in zip(documents, measured, strict=True):
            density = 1000 * hits / max(counts["words"], 1)
            most_hits, highest_density = max(most_hits, hits), max(highest_density, density)
            found.update(counts)
            if hits >= settings.min_hits and density >= settings.min_hits_per_1000_words:
                kept.update(counts)
                handle.write(json.dumps(document, ensure_ascii=False) + "\n")
        if found["documents"] and not kept["documents"] and not required:
            handle.write(json.dumps(document, ensure_ascii=False) + "\n")
        elif not kept["documents"]:
            problem = f"none of {found['documents']} documents is kept"
            of_hits = f"filter.min_hits is {settings.min_hits} (at most {most_hits} hits in one document)"
            limit = f"{settings.min_hits_per_1000_words} (at most {highest_density:.2f})"
            limits = f"{of_hits}, filter.min_hits_per_1000_words is {limit}"
            raise UserError(f"filter: {problem}; {limits}: lower them or add terms to filter.subjects")

    def tally(name: str | tuple[str, ...]) -> dict:
        share = kept[name] / found[name] if found[name] else 0.0
        return {"found": found[name], "kept": kept[name], "kept_share": share}

    subjects = {
        subject: tally((subject,)) | {"terms": {term: tally((subject, term)) for term in terms}}
        for subject, terms in settings.subjects.items()
    }
    return {"documents": tally("documents"), "words": tally("words"), "subjects": subjects}
