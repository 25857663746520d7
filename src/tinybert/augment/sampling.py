"""Augmentation by masking, POS-guided replacement and n-gram sampling (Tang et al. 2019, section 4.3)."""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from tinybert.augment.tagger import TAGGERS
from tinybert.augment.words import in_case_of
from tinybert.data.tasks import Task
from tinybert.pipeline.process import stream

MASK = "[MASK]"  # as every tokenizer here spells it
WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


@dataclass(frozen=True)
class Settings:
    """How rows are varied.

    copies: draws per row. mask_probability: a word becomes [MASK] (p_mask). replacement_probability: it becomes
    another word of its tag (p_pos). ngram_probability: of a varied sentence only 1 to `longest_ngram` words in a row
    are kept (p_ng). tagger: a key of parts_of_speech.TAGGERS.
    """

    copies: int
    mask_probability: float
    replacement_probability: float
    ngram_probability: float
    longest_ngram: int
    tagger: str


@dataclass(frozen=True)
class TaggedText:
    """A text, the characters (start, end) of its words, and the words' tags."""

    text: str
    spans: list[tuple[int, int]]
    tags: list[str]

    @property
    def words(self) -> list[str]:
        return [self.text[start:end] for start, end in self.spans]


class Unigrams:
    """How often each word, in small letters but for I, occurs with each tag."""

    def __init__(self, texts: Iterable[TaggedText]) -> None:
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for text in texts:
            for word, tag in zip(text.words, text.tags, strict=True):
                counts[tag][_spelling(word)] += 1
        self._words = {tag: sorted(counter) for tag, counter in counts.items()}
        self._ends = {tag: list(accumulate(counts[tag][word] for word in self._words[tag])) for tag in counts}
        self._places = {tag: {word: place for place, word in enumerate(words)} for tag, words in self._words.items()}

    def another(self, word: str, tag: str, rng: np.random.Generator) -> str:
        """Another word of the tag, drawn by the counts of the others; the word itself where it is the only one."""
        words, ends = self._words[tag], self._ends[tag]
        place = self._places[tag][_spelling(word)]
        start = ends[place - 1] if place else 0
        others = ends[-1] - (ends[place] - start)
        if not others:
            return word
        drawn = int(rng.integers(others))
        if drawn >= start:  # jumps over the word's own share
            drawn += ends[place] - start
        return in_case_of(word, words[bisect_right(ends, drawn)])


def _spelling(word: str) -> str:
    return word if word == "I" else word.lower()


def sample(rows: Sequence[dict], task: Task, *, settings: Settings, seed: int) -> list[dict]:
    """Each row, as it is, followed by its distinct variations; these keep its keys and gain "augmented": True.

    A row is varied `settings.copies` times; of a pair in turn the first sentence, the second, and both. Any word may
    be varied, stop words too. A row's variations depend on its text, all rows' words, `seed` and its number alone.
    UserError where the tagger is not installed.
    """
    texts = tag_texts(dict.fromkeys(row[column] for row in rows for column in task.columns), settings.tagger)
    unigrams = Unigrams(texts[row[column]] for row in rows for column in task.columns)
    first, *second = [(column,) for column in task.columns]
    turns = [first, *second, task.columns] if task.is_pair else [first]
    augmented = []
    for row in rows:
        rng = stream(seed, "augmentation", row["idx"])
        variants = {}  # a dict keeps the order drawn
        for copy in range(settings.copies):
            varied = {column: vary(texts[row[column]], unigrams, settings, rng) for column in turns[copy % len(turns)]}
            variants[tuple((row | varied)[column] for column in task.columns)] = varied
        variants.pop(tuple(row[column] for column in task.columns), None)
        augmented += [row, *(row | varied | {"augmented": True} for varied in variants.values())]
    return augmented


def tag_texts(texts: Iterable[str], tagger: str) -> dict[str, TaggedText]:
    """Each text with its words and their tags."""
    spans = {text: [match.span() for match in WORD.finditer(text)] for text in texts}
    words = [[text[start:end] for start, end in found] for text, found in spans.items()]
    tags = TAGGERS[tagger](words)
    return {text: TaggedText(text, spans[text], own) for text, own in zip(spans, tags, strict=True)}


def vary(tagged: TaggedText, unigrams: Unigrams, settings: Settings, rng: np.random.Generator) -> str:
    """One draw: words masked or replaced, then perhaps cut to an n-gram. Characters between words stay."""
    if not tagged.spans:
        return tagged.text
    chances = rng.random(len(tagged.spans))
    words = tagged.words
    for index in np.flatnonzero(chances < settings.mask_probability + settings.replacement_probability):
        is_masked = chances[index] < settings.mask_probability
        words[index] = MASK if is_masked else unigrams.another(words[index], tagged.tags[index], rng)
    if rng.random() < settings.ngram_probability:
        size = min(int(rng.integers(1, settings.longest_ngram + 1)), len(words))
        first = int(rng.integers(len(words) - size + 1))
        return _joined(tagged, words, first, first + size)
    start, end = tagged.spans[0][0], tagged.spans[-1][1]
    return tagged.text[:start] + _joined(tagged, words, 0, len(words)) + tagged.text[end:]


def _joined(tagged: TaggedText, words: list[str], first: int, stop: int) -> str:
    """words[first:stop] with the characters that stand between them in the text."""
    parts = [words[first]]
    for index in range(first + 1, stop):
        parts += [tagged.text[tagged.spans[index - 1][1] : tagged.spans[index][0]], words[index]]
    return "".join(parts)
