"""Plain words, and word vectors with their nearest neighbors: from a GloVe text file, or learned from a corpus."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import regex
import yaml

from tinybert.config.schema import WordVectorSettings
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_jsonl, read_lines

FILE_KEY = "augmentation.substitution.word_vectors.file"
FILE_LINES = 100_000  # read of a file, most frequent words first (TinyBERT's code)
QUERY_CHUNK = 256  # words whose similarities to all others are in memory at a time
CORPUS_CHUNK_WORDS = 1_000_000  # words whose neighbors are counted at a time
CONTEXT_SMOOTHING = 0.75  # exponent of context frequencies: keeps rare contexts from large PMI (Levy et al. 2015)
LARGEST_NUMBER, SMALLEST_NORM = 1e15, 1e-15  # beyond them float32 squares would overflow or vanish
LEXICON = yaml.load(Path(__file__).with_name("lexicon.yaml").read_text(encoding="utf-8"), yaml.BaseLoader)
# Letters with their combining marks, at least two: a single one is an initial, a list mark or the end of a contraction
# ("don't"). A Han character is a word by itself, as it is for BERT's tokenizers.
PLAIN_WORD = regex.compile(r"\p{Han}|\p{L}[\p{L}\p{M}]+")
LETTERS = regex.compile(r"\p{Han}|[\p{L}--\p{Han}][[\p{L}\p{M}]--\p{Han}]*", regex.VERSION1)  # in a text
OUTSIDE = -1  # stands for a word outside of the vocabulary, and between two texts


def is_plain_word(word: str) -> bool:
    """Whether it is a word of letters of any script, without digits and signs (PLAIN_WORD)."""
    return PLAIN_WORD.fullmatch(word) is not None


def match_case(word: str, replacement: str) -> str:
    """The replacement, capitalized if `word` begins with a capital letter and is not the pronoun I."""
    return replacement.capitalize() if word[0].isupper() and word != "I" else replacement


class WordVectors:
    """Distinct lower-case words and their vectors (words, dimensions), compared by cosine; words at 0 are left out."""

    def __init__(self, words: Sequence[str], vectors: np.ndarray) -> None:
        norms = np.linalg.norm(vectors, axis=1)
        kept = np.flatnonzero(norms > SMALLEST_NORM)
        self.words = [words[index] for index in kept.tolist()]
        self.vectors = (vectors[kept] / norms[kept, None]).astype(np.float32)
        self._rows = {word: row for row, word in enumerate(self.words)}

    def nearest(self, words: Sequence[str], k: int) -> dict[str, list[str]]:
        """Finds the `k` nearest others of each word, in any case, nearest first; none for a word without a vector."""
        neighbors: dict[str, list[str]] = {word: [] for word in words}
        known = [word for word in neighbors if word.lower() in self._rows]
        k = min(k, len(self.words) - 1)
        for start in range(0, len(known), QUERY_CHUNK):
            chunk = known[start : start + QUERY_CHUNK]
            rows = [self._rows[word.lower()] for word in chunk]
            similarities = self.vectors[rows] @ self.vectors.T  # (chunk, vocabulary)
            similarities[np.arange(len(rows)), rows] = -np.inf
            best = np.argpartition(-similarities, k - 1, axis=1)[:, :k]
            order = np.argsort(-np.take_along_axis(similarities, best, axis=1), axis=1, kind="stable")
            for word, found in zip(chunk, np.take_along_axis(best, order, axis=1), strict=True):
                neighbors[word] = [self.words[row] for row in found]
        return neighbors


def word_vectors(settings: WordVectorSettings, corpus: str | Path, *, seed: int) -> WordVectors:
    """The vectors of params: from a file, or learned from the JSON-lines `corpus` of an earlier stage."""
    if settings.source == "file":
        return from_file(paths.resolve(settings.file))
    return from_corpus(lambda: (row["text"] for row in read_jsonl(corpus)), settings, seed=seed)


def from_file(path: str | Path) -> WordVectors:
    """Reads the plain words among the first FILE_LINES lines of a GloVe text file, plain or .gz.

    A line is a word and its numbers, as many as in the first line, separated by spaces; UserError if one is not. Of
    spellings that differ in case the first line is taken.
    """
    vectors: dict[str, np.ndarray] = {}
    dimensions = 0
    for number, line in islice(read_lines(path, key=FILE_KEY), FILE_LINES):
        word, *columns = line.rstrip().rsplit(" ", dimensions or -1)
        dimensions = dimensions or len(columns)
        values = _numbers(columns)
        # A few words of the large GloVe files contain spaces (". . ."), but a number there is one too many.
        has_more = any(_numbers([part]) is not None for part in word.split(" ")[1:])
        if values is None or not len(values) == dimensions > 0 or has_more:
            wanted = f"a word and {dimensions or 'some'} numbers up to {LARGEST_NUMBER:g}"
            problem = f"{path}, line {number}: not {wanted} (got {line[:60]!r})"
            raise UserError(f"{FILE_KEY}: {problem}; allowed: as many on each line, no header; fix: the file")
        if is_plain_word(word):
            vectors.setdefault(word.lower(), values.astype(np.float32))
    if not vectors:
        raise UserError(f"{FILE_KEY}: {path} has no word vectors; fix: give a GloVe text file, or set source: corpus")
    return WordVectors(list(vectors), np.stack(list(vectors.values())))


def from_corpus(read_texts: Callable[[], Iterable[str]], settings: WordVectorSettings, *, seed: int) -> WordVectors:
    """Learns vectors as a truncated SVD of the words' positive PMI (Levy et al. 2015).

    Two words co-occur if they are at most `window_words` apart in one text, and count 1/distance. The `max_words` most
    frequent plain words get vectors of `dimensions` numbers; UserError if there are too few. Memory holds the
    vocabulary and one sparse matrix over it: `read_texts` starts a pass over the texts and is called twice.
    """
    from sklearn.decomposition import TruncatedSVD

    counts = Counter(word for text in read_texts() for word in _plain_words(text))
    words = sorted(counts, key=lambda word: (-counts[word], word))[: settings.max_words]
    if len(words) <= settings.dimensions:
        problem = f"too many for the vocabulary (got {settings.dimensions} for {len(words)} words)"
        fix = "lower it, raise max_words, or give a larger corpus"
        raise UserError(f"augmentation.substitution.word_vectors.dimensions: {problem}; fix: {fix}")
    svd = TruncatedSVD(settings.dimensions, random_state=seed)
    projected = svd.fit_transform(_positive_pmi(_cooccurrences(read_texts(), words, settings.window_words)))  # U·Σ
    # U·√Σ: less weight on the first directions serves similarity better than U·Σ.
    return WordVectors(words, projected / np.sqrt(np.maximum(svd.singular_values_, np.finfo(np.float32).tiny)))


def _numbers(texts: list[str]) -> np.ndarray | None:
    """All texts as float64; None if one is no number of at most LARGEST_NUMBER."""
    with suppress(ValueError):
        values = np.array(list(map(float, texts)))
        return values if (np.abs(values) <= LARGEST_NUMBER).all() else None  # false for nan
    return None


def _plain_words(text: str) -> list[str]:
    return [word for word in LETTERS.findall(text.lower()) if is_plain_word(word)]


def _cooccurrences(texts: Iterable[str], words: list[str], window: int) -> Any:
    """Sparse (words, words) float32, symmetric: the sum of 1/distance over all co-occurrences."""
    from scipy.sparse import coo_array, csr_array

    shape = (len(words), len(words))
    counts = csr_array(shape, dtype=np.float32)
    for ids in _id_chunks(texts, words, window):
        for distance in range(1, window + 1):
            left, right = ids[:-distance], ids[distance:]
            inside = (left != OUTSIDE) & (right != OUTSIDE)
            weights = np.full(inside.sum(), 1 / distance, dtype=np.float32)
            counts += coo_array((weights, (left[inside], right[inside])), shape=shape).tocsr()
    return counts + counts.T


def _id_chunks(texts: Iterable[str], words: list[str], window: int) -> Iterator[np.ndarray]:
    """The corpus as word numbers, many texts a chunk, with `window` OUTSIDE after each text."""
    rows = {word: row for row, word in enumerate(words)}
    ids: list[int] = []
    for text in texts:
        ids.extend(rows.get(word, OUTSIDE) for word in _plain_words(text))
        ids.extend([OUTSIDE] * window)
        if len(ids) >= CORPUS_CHUNK_WORDS:
            yield np.array(ids, dtype=np.int32)
            ids = []
    yield np.array(ids, dtype=np.int32)


def _positive_pmi(counts: Any) -> Any:
    """Sparse max(0, log p(word, context) / (p(word)·p(context))), context frequencies smoothed; 0 without a count."""
    pairs, word_counts = counts.tocoo(), counts.sum(axis=1)
    context_counts = word_counts**CONTEXT_SMOOTHING
    row, column = pairs.coords
    ratios = pairs.data * context_counts.sum() / (word_counts[row] * context_counts[column])
    pairs.data = np.maximum(np.log(ratios), 0).astype(np.float32)
    positive = pairs.tocsr()
    positive.eliminate_zeros()
    return positive
