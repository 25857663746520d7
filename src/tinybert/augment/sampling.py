"""Augmentation by masking, POS-guided replacement and n-gram sampling (Tang et al. 2019, section 4.3).

Part-of-speech tags (Penn Treebank) come from rules for English, which need nothing downloaded.
"""

import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import regex

from tinybert.augment.word_vectors import LEXICON, match_case
from tinybert.config.schema import Sampling
from tinybert.config.tasks import Task
from tinybert.pipeline.process import stream

MASK = "[MASK]"  # as in the vocabulary of every BERT tokenizer
# Letters and digits with combining marks; as a group, so that split keeps the words.
WORD = regex.compile(r"([\p{L}\p{N}][\p{L}\p{N}\p{M}]*(?:['’-][\p{L}\p{N}][\p{L}\p{N}\p{M}]*)*)")
TAG_OF = {word: tag for tag, words in LEXICON["tags"].items() for word in words.split()}
PAST_OR_PARTICIPLE = frozenset(LEXICON["past_or_participle"].split())
VERBS = frozenset(LEXICON["verbs"].split())
TAG_OF_ENDING = {ending: tag for tag, endings in LEXICON["endings"].items() for ending in endings.split()}
BE = frozenset(["am", "is", "are", "was", "were", "be", "been", "being"])
HAVE = frozenset(["have", "has", "had", "having"])
DO = frozenset(["do", "does", "did"])
CONTRACTIONS = ("n't", "'s", "'re", "'ve", "'ll", "'d", "'m", "'")
BEFORE_NOUN = ("DT", "PRP$", "WP$", "JJ", "JJR", "JJS", "CD", "POS", "IN", "'s")
BEFORE_BASE = ("TO", "MD", "n't", "'ll")
SINGULAR_SUBJECTS = ("PRP", "NN", "NNP", "WP", "WDT")
SUBJECTS = (*SINGULAR_SUBJECTS, "NNS")
BEFORE_ARGUMENT = ("DT", "PRP", "PRP$", "IN", "TO", "CC", "WP", "WRB")


class TaggedText(NamedTuple):
    """A text split into words (odd indices) and the characters between them (even indices), with the words' tags."""

    parts: list[str]
    tags: list[str]

    @property
    def words(self) -> list[str]:
        return self.parts[1::2]


class Unigrams:
    """All occurrences of words by tag, in lower case except for I."""

    def __init__(self, texts: Iterable[TaggedText]) -> None:
        self._words: dict[str, list[str]] = defaultdict(list)  # by tag, all occurrences, sorted
        for text in texts:
            for word, tag in zip(text.words, text.tags, strict=True):
                self._words[tag].append(sys.intern(_spelling(word)))  # each word is stored once
        for words in self._words.values():
            words.sort()

    def another(self, word: str, tag: str, rng: np.random.Generator) -> str:
        """Draws another word of the tag in proportion to its count; returns the word itself if there is no other."""
        words = self._words[tag]
        start, end = bisect_left(words, _spelling(word)), bisect_right(words, _spelling(word))
        if end - start == len(words):
            return word
        drawn = int(rng.integers(len(words) - (end - start)))
        return match_case(word, words[drawn if drawn < start else drawn + end - start])


def sample(rows: Sequence[dict], task: Task, settings: Sampling, *, copies: int, seed: int) -> list[dict]:
    """Augments the rows of a task, which have its columns and "idx". Any word may be varied, stop words too.

    There are `copies` draws per row; of a pair in turn the first sentence, the second, and both are varied. They depend
    on the row's text and idx, the words of all rows, and the seed.

    Returns:
        Each row as it is, followed by its distinct variations, which have its keys and "augmented": True.
    """
    texts = tag_texts(dict.fromkeys(row[column] for row in rows for column in task.columns), settings.pos_tagger)
    unigrams = Unigrams(texts[row[column]] for row in rows for column in task.columns)
    turns = [(column,) for column in task.columns] + ([task.columns] if task.is_pair else [])
    augmented = []
    for row in rows:
        rng = stream(seed, "augmentation", row["idx"])
        variants = {}  # a dict keeps the order of the draws
        for copy in range(copies):
            varied = {column: vary(texts[row[column]], unigrams, settings, rng) for column in turns[copy % len(turns)]}
            variants[tuple((row | varied)[column] for column in task.columns)] = varied
        variants.pop(tuple(row[column] for column in task.columns), None)
        augmented += [row, *(row | varied | {"augmented": True} for varied in variants.values())]
    return augmented


def tag_texts(texts: Iterable[str], tagger: str) -> dict[str, TaggedText]:
    """Each text with its words and their tags; tagger: a key of TAGGERS."""
    parts = {text: WORD.split(text) for text in texts}
    return {text: TaggedText(own, TAGGERS[tagger](own[1::2])) for text, own in parts.items()}


def vary(tagged: TaggedText, unigrams: Unigrams, settings: Sampling, rng: np.random.Generator) -> str:
    """One draw: words masked or replaced, then perhaps cut to an n-gram. Characters between words stay."""
    parts, count = list(tagged.parts), len(tagged.tags)
    if not count:
        return parts[0]
    chances = rng.random(count)
    for index in np.flatnonzero(chances < settings.mask_probability + settings.replacement_probability):
        is_masked = chances[index] < settings.mask_probability
        word = parts[2 * index + 1]
        parts[2 * index + 1] = MASK if is_masked else unigrams.another(word, tagged.tags[index], rng)
    if rng.random() < settings.ngram_probability:
        size = min(int(rng.integers(1, settings.longest_ngram + 1)), count)
        first = int(rng.integers(count - size + 1))
        parts = parts[2 * first + 1 : 2 * (first + size)]
    return "".join(parts)


def tag_by_rules(words: Sequence[str]) -> list[str]:
    """A tag for each word of a sentence, by shape, closed classes, frequent words, endings and the tag before.

    A contraction is one word whose tag is its ending ("n't", "'s"), so only words with that ending can replace it.
    """
    lowered = [word.lower() for word in words]
    tags: list[str] = []
    for index, word in enumerate(words):
        plain = lowered[index].replace("’", "'")
        following = lowered[index + 1] if index + 1 < len(words) else ""
        if any(character.isdigit() for character in word):
            tags.append("CD")
        elif ending := next(filter(plain.endswith, CONTRACTIONS), None):
            tags.append(ending)
        elif word[0].isupper() and index and plain not in TAG_OF:
            tags.append("NNP")
        else:
            tags.append(_tag_by_context(lowered[: index + 1], tags, following))
    return tags


def _spelling(word: str) -> str:
    return word if word == "I" else word.lower()


# off: each word is its own tag, so that no other word has it and none is replaced.
TAGGERS = {"rules": tag_by_rules, "off": lambda words: list(map(_spelling, words))}


def _tag_by_context(words: list[str], tags: list[str], following: str) -> str:
    """The tag of the last of `words`, all in lower case; `tags` are those of the words before it."""
    word = words[-1]
    # The nearest word that is no adverb, and its tag.
    pairs = zip(reversed(words[:-1]), reversed(tags), strict=True)
    before, tag_before = next(((word, tag) for word, tag in pairs if tag != "RB"), ("", ""))
    if tag := _tag_of_ambiguous(word, tag_before, following) or TAG_OF.get(word):
        return tag
    if word in PAST_OR_PARTICIPLE and not (word in VERBS and tag_before in (*BEFORE_BASE, *BEFORE_NOUN)):
        return "VBN" if before in BE | HAVE or before.endswith("'ve") else "VBD"
    if word in VERBS:
        is_question = tag_before in SUBJECTS and len(words) > 2 and (words[-3] in DO or tags[-2] == "MD")
        if is_question or before in DO or tag_before in BEFORE_BASE:
            return "VB"
        return "NN" if tag_before in BEFORE_NOUN else "VBP" if tag_before in SUBJECTS else "VB"
    return _tag_by_ending(word, before, tag_before, following)


def _tag_of_ambiguous(word: str, before: str, following: str) -> str | None:
    """The tag of a function word that has several, by the tag before it and the word after it."""
    if word == "her":
        starts_noun = bool(following) and TAG_OF.get(following, "NN") in ("NN", "NNS", "JJ", "CD", "RBS")
        return "PRP$" if starts_noun else "PRP"
    if word == "there":
        return "EX" if following in BE or TAG_OF.get(following) == "MD" else "RB"
    if word == "that":
        return "WDT" if before.startswith("NN") else "IN" if before.startswith(("V", "J")) else "DT"
    if word in ("like", "have", "do"):
        return "VB" if before in BEFORE_BASE else "VBP" if word != "like" or before in ("PRP", "NNS") else "IN"
    return None


def _tag_by_ending(word: str, before: str, tag_before: str, following: str) -> str:
    if word.endswith("ing") and len(word) > 4:
        return "NN" if tag_before in ("DT", "PRP$", "JJ") else "VBG"
    if word.endswith("ed") and len(word) > 3:
        return "JJ" if tag_before in ("DT", "PRP$") else "VBN" if before in BE | HAVE or following == "by" else "VBD"
    if len(word) > 4 and (ending := next(filter(word.endswith, TAG_OF_ENDING), None)):
        return TAG_OF_ENDING[ending]
    stem = word.removesuffix("er")  # tall(er), happi(er), bigg(er), larg(er)
    adjectives = (stem, stem.removesuffix("i") + "y", stem[:-1], stem + "e")
    if word.endswith("er") and any(TAG_OF.get(adjective) == "JJ" for adjective in adjectives):
        return "JJR"
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        takes_argument = not following or TAG_OF.get(following) in BEFORE_ARGUMENT
        is_verb = any(base in VERBS for base in (word[:-1], word.removesuffix("es"), word.removesuffix("ies") + "y"))
        return "VBZ" if tag_before in SINGULAR_SUBJECTS and (takes_argument or is_verb) else "NNS"
    # An unknown word: most are nouns, but none stands alone after "to" or a modal.
    return "VB" if tag_before in BEFORE_BASE else "NN"
