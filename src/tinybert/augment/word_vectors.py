"""Word vectors and their nearest neighbours: read from a GloVe text file, or learnt from a corpus."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tinybert.augment.words import is_plain_word
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_jsonl, read_lines

if TYPE_CHECKING:
    from scipy.sparse import csr_array

FILE_KEY = "augmentation.substitution.word_vectors.file"
FILE_WORDS = 100_000  # lines read of a file, most frequent words first (Jiao's code)
QUERY_CHUNK = 256  # words whose similarities to all others are in memory at a time
CORPUS_CHUNK_WORDS = 1_000_000  # words whose neighbours are counted at a time
CONTEXT_SMOOTHING = 0.75  # exponent of context frequencies: keeps rare contexts from large PMI (Levy et al. 2015)
LARGEST_NUMBER, SMALLEST_NORM = 1e15, 1e-15  # float32 squares beyond them would overflow or vanish
OUTSIDE = -1  # stands for a word outside of the vocabulary, and between two texts


class WordVectors:
    """Words in small letters with their vectors, compared by cosine."""

    def __init__(self, words: Sequence[str], vectors: np.ndarray) -> None:
        """words: distinct; vectors: (words, dimensions). Rows of zeros have no direction and are left out."""
        norms = np.linalg.norm(vectors, axis=1)
        kept = np.flatnonzero(norms > SMALLEST_NORM)
        self.words = [words[index] for index in kept.tolist()]
        self.vectors = (vectors[kept] / norms[kept, None]).astype(np.float32)
        self._rows = {word: row for row, word in enumerate(self.words)}

    def nearest(self, words: Sequence[str], k: int) -> dict[str, list[str]]:
        """For each word its `k` nearest others, nearest first; none for a word without a vector.

        Capitals are ignored.
        """
        neighbours: dict[str, list[str]] = {word: [] for word in words}
        known = [word for word in neighbours if word.lower() in self._rows]
        k = min(k, len(self.words) - 1)
        for start in range(0, len(known), QUERY_CHUNK):
            chunk = known[start : start + QUERY_CHUNK]
            rows = [self._rows[word.lower()] for word in chunk]
            for word, best in zip(chunk, self._nearest_rows(rows, k), strict=True):
                neighbours[word] = [self.words[row] for row in best]
        return neighbours

    def _nearest_rows(self, rows: list[int], k: int) -> np.ndarray:
        """rows of the vocabulary -> (rows, k) rows of their neighbours."""
        similarities = self.vectors[rows] @ self.vectors.T  # (rows, vocabulary)
        similarities[np.arange(len(rows)), rows] = -np.inf
        best = np.argpartition(-similarities, k - 1, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(similarities, best, axis=1), axis=1, kind="stable")
        return np.take_along_axis(best, order, axis=1)


class CorpusTexts:
    """The texts of a JSON-lines corpus, read anew each time they are gone through."""

    def __init__(self, path: str | Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[str]:
        return (document["text"] for document in read_jsonl(self.path))


def word_vectors(settings, corpus: str | Path, *, seed: int) -> WordVectors:
    """The vectors of the word_vectors section of params: of its file, or learnt from the JSON-lines `corpus`."""
    if settings.source == "file":
        return from_file(paths.resolve(settings.file))
    return from_corpus(
        CorpusTexts(corpus),
        dimensions=settings.dimensions,
        window=settings.window_words,
        max_words=settings.max_words,
        seed=seed,
    )


def from_file(path: str | Path) -> WordVectors:
    """The plain words among the first 100,000 lines of a GloVe text file ("word number number …"), plain or .gz.

    Spellings that differ in capitals count as one word, whose first line is taken. UserError when the file cannot be
    read, is empty, or a line has another number of columns or something that is no number.
    """
    vectors: dict[str, np.ndarray] = {}
    dimensions = None
    for number, line in read_lines(path, key=FILE_KEY):
        if number > FILE_WORDS:
            break
        word, *columns = line.rstrip().rsplit(" ", dimensions or -1)
        dimensions = dimensions or len(columns)
        vector = _vector(word, columns, dimensions, f"{FILE_KEY}: {path}, line {number}")
        if is_plain_word(word):
            vectors.setdefault(word.lower(), vector)
    if not vectors:
        raise UserError(f"{FILE_KEY}: {path} holds no word vectors; give a GloVe text file, or set source to corpus")
    return WordVectors(list(vectors), np.stack(list(vectors.values())))


def _vector(word: str, columns: list[str], dimensions: int, where: str) -> np.ndarray:
    # a few words of the large GloVe files contain spaces (". . ."): only numbers before the columns are a surplus
    surplus = sum(_is_number(part) for part in word.split(" ")[1:])
    if not columns or surplus or len(columns) != dimensions:
        raise UserError(
            f"{where}: {len(columns) + surplus} columns behind the word, {dimensions or 'some'} expected; every line "
            "of a GloVe text file is a word and the same number of columns, without a header line"
        )
    if wrong := [column for column in columns if not _is_number(column)]:
        raise UserError(
            f"{where}: {wrong[0][:40]!r} is no number; a word and {dimensions} of them, up to 1e15, are expected"
        )
    return np.array([float(column) for column in columns], dtype=np.float32)


def _is_number(text: str) -> bool:
    try:
        return abs(float(text)) <= LARGEST_NUMBER
    except ValueError:
        return False


def from_corpus(texts: Iterable[str], *, dimensions: int, window: int, max_words: int, seed: int) -> WordVectors:
    """Vectors of the `max_words` most frequent plain words: a truncated SVD of their positive PMI (Levy et al. 2015).

    Two words co-occur when they are at most `window` words apart in one text, and count 1/distance. `texts` is gone
    through twice; memory holds the vocabulary and one sparse matrix over it. UserError when the corpus has too few
    words for `dimensions`.
    """
    if isinstance(texts, Iterator):
        raise TypeError("texts are read twice: give a list or another iterable that can start again")
    words = _frequent_words(texts, max_words)
    if len(words) <= dimensions:
        raise UserError(
            f"augmentation.substitution.word_vectors.dimensions: {dimensions} is too many for a vocabulary of "
            f"{len(words)} words; lower it, raise max_words, or give a larger corpus"
        )
    from sklearn.decomposition import TruncatedSVD

    svd = TruncatedSVD(dimensions, random_state=seed)
    projected = svd.fit_transform(_positive_pmi(_cooccurrences(texts, words, window)))  # U·Σ
    # U·√Σ: weighing the first directions less serves similarity better
    return WordVectors(words, projected / np.sqrt(np.maximum(svd.singular_values_, np.finfo(np.float32).tiny)))


def _frequent_words(texts: Iterable[str], max_words: int) -> list[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_plain_words(text))
    return sorted(counts, key=lambda word: (-counts[word], word))[:max_words]


def _plain_words(text: str) -> list[str]:
    return [word for word in re.findall(r"[^\W\d_]+", text.lower()) if is_plain_word(word)]


def _cooccurrences(texts: Iterable[str], words: list[str], window: int) -> "csr_array":
    """(words, words) float32, symmetric: the sum of 1/distance over all co-occurrences."""
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
    """The corpus as word numbers, many texts a chunk, with `window` OUTSIDE behind each text."""
    rows = {word: row for row, word in enumerate(words)}
    ids: list[int] = []
    for text in texts:
        ids.extend(rows.get(word, OUTSIDE) for word in _plain_words(text))
        ids.extend([OUTSIDE] * window)
        if len(ids) >= CORPUS_CHUNK_WORDS:
            yield np.array(ids, dtype=np.int32)
            ids = []
    yield np.array(ids, dtype=np.int32)


def _positive_pmi(counts: "csr_array") -> "csr_array":
    """max(0, log p(word, context) / (p(word)·p(context))), context frequencies smoothed; only where counts are."""
    pairs = counts.tocoo()
    word_counts = counts.sum(axis=1)
    context_counts = word_counts**CONTEXT_SMOOTHING
    row, column = pairs.coords
    pairs.data = np.maximum(
        np.log(pairs.data * context_counts.sum() / (word_counts[row] * context_counts[column])), 0
    ).astype(np.float32)
    positive = pairs.tocsr()
    positive.eliminate_zeros()
    return positive
