"""Augmentation by substituting words (TinyBERT, Jiao et al. 2020, algorithm 1)."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from tokenizers import Encoding, Tokenizer

from tinybert.augment.masked_lm import Query, WordPredictor
from tinybert.augment.word_vectors import LEXICON, WordVectors, is_plain_word, match_case
from tinybert.config.schema import Substitution
from tinybert.data.tasks import Task
from tinybert.distill.resume import Checkpoint
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_lines
from tinybert.pipeline.process import stream

ENGLISH_STOP_WORDS = frozenset(LEXICON["stop_words"].split())


@dataclass(frozen=True)
class Word:
    """A replaceable word: its spelling after normalization, its characters, its first token and their number."""

    spelling: str
    written: str  # as in the text, in lower case: tokenizers may strip accents, stop words and vectors have them
    start: int
    end: int
    first_token: int
    tokens: int


@dataclass(frozen=True)
class Sentence:
    """A text, its token ids (tokens,) int64 without special tokens, and its replaceable words in order."""

    text: str
    ids: np.ndarray
    words: list[Word]


Candidates = Mapping[str, tuple[Sentence, list[list[str]]]]  # text -> its sentence, and candidates for each word


def replacement_candidates(
    sentences: Sequence[Sentence],
    settings: Substitution,
    predictor: WordPredictor,
    vectors: WordVectors,
    checkpoint: Checkpoint | None = None,
) -> Candidates:
    """Finds the words that may replace each word: likely ones for a word of one token, near ones for a longer word.

    A word is not its own candidate. (The paper's code keeps it, so a "replaced" word is often unchanged.) A word has
    `settings.candidates` at most, a longer one without a vector none. The sentences are distinct; with a checkpoint an
    interrupted run resumes.
    """
    single = [Query(each.ids, word.first_token) for each in sentences for word in each.words if word.tokens == 1]
    several = {word.written for sentence in sentences for word in sentence.words if word.tokens > 1}
    likely = iter(predictor.likely_words(single, settings, checkpoint))
    near = vectors.nearest(sorted(several), settings.candidates)

    def of_word(word: Word) -> list[str]:
        if word.tokens == 1:
            return next(likely)
        # Vectors have lower-case words only; a tokenizer that keeps capitals needs them back.
        return [match_case(word.spelling, candidate) for candidate in near[word.written]]

    return {sentence.text: (sentence, [of_word(word) for word in sentence.words]) for sentence in sentences}


def substitute(
    rows: Sequence[dict], task: Task, candidates: Candidates, *, probability: float, copies: int, seed: int
) -> list[dict]:
    """Augments the rows of a task, which have its columns and "idx".

    In each of the `copies` of a sentence (N_a), each word is replaced by a random candidate with `probability` (p_t).
    In a pair, first one sentence is varied, then the other, while its partner stays the original. A row's variations
    depend only on its text, its idx and the seed, not on batch size or other rows (except that bfloat16 may swap
    candidates that are almost equally likely).

    Returns:
        Each row as it is, followed by its distinct variations, which have its keys and "augmented": True.
    """
    augmented = []
    for row in rows:
        rng = stream(seed, "augmentation", row["idx"])
        augmented.append(row)
        for column in task.columns:
            texts = variations(*candidates[row[column]], probability, copies, rng)
            augmented += [row | {column: text, "augmented": True} for text in texts]
    return augmented


def variations(
    sentence: Sentence, candidates: Sequence[Sequence[str]], probability: float, copies: int, rng: np.random.Generator
) -> list[str]:
    """The distinct texts among `copies` draws, in the order drawn, without the original.

    Only the characters of the replaced words change: spacing, punctuation and all other words stay as they are.
    """
    slots = [(word, choices) for word, choices in zip(sentence.words, candidates, strict=True) if choices]
    if not slots:
        return []
    replaced = rng.random((copies, len(slots))) < probability
    drawn = rng.integers([len(choices) for _, choices in slots], size=replaced.shape)
    texts: dict[str, None] = {}  # a dict keeps the order of the draws
    for is_replaced, numbers in zip(replaced, drawn, strict=True):
        text = sentence.text
        for slot in np.flatnonzero(is_replaced)[::-1]:  # from the end, so that the characters before keep their places
            word, choices = slots[slot]
            text = text[: word.start] + choices[numbers[slot]] + text[word.end :]
        texts[text] = None
    texts.pop(sentence.text, None)
    return list(texts)


def stop_words(source: str) -> frozenset[str]:
    """The words that are not replaced: "english", none for "off", or the lines of a file; UserError if it has none."""
    if source in ("english", "off"):
        return ENGLISH_STOP_WORDS if source == "english" else frozenset()
    key = "augmentation.substitution.stop_words"
    path = paths.resolve(source)
    if not (words := frozenset(word for _, line in read_lines(path, key=key) for word in line.lower().split())):
        raise UserError(
            f"{key}: no words (got {path}); allowed: english, off, or a file of words; fix: correct the path"
        )
    return words


def read_sentences(
    texts: Iterable[str], tokenizer: Tokenizer, *, max_tokens: int, stop_words: Container[str] = ENGLISH_STOP_WORDS
) -> list[Sentence]:
    """Tokenizes texts; stop words and words after the first `max_tokens` tokens stay as they are."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    texts = list(texts)
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    return [
        Sentence(
            text,
            np.asarray(encoding.ids[:max_tokens], dtype=np.int64),
            [word for word in _plain_words(text, encoding, max_tokens) if word.written not in stop_words],
        )
        for text, encoding in zip(texts, encodings, strict=True)
    ]


def _plain_words(text: str, encoding: Encoding, max_tokens: int) -> list[Word]:
    tokens, offsets, word_ids = encoding.tokens, encoding.offsets, encoding.word_ids
    words = []
    for _, group in groupby(range(len(tokens)), key=word_ids.__getitem__):
        first, *rest = group
        last = rest[-1] if rest else first
        spelling = tokens[first] + "".join(tokens[index].removeprefix("##") for index in rest)
        if last < max_tokens and is_plain_word(spelling):
            start, end = offsets[first][0], offsets[last][1]
            words.append(Word(spelling, text[start:end].lower(), start, end, first, last - first + 1))
    return words
