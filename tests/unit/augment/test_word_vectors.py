"""Neighbors against brute force, vectors learned from a corpus, and what is wrong with a file."""

import gzip
import random

import numpy as np
import pytest

from tinybert.augment import word_vectors
from tinybert.augment.word_vectors import WordVectors, from_corpus, from_file, is_plain_word
from tinybert.config.schema import WordVectorSettings
from tinybert.pipeline.errors import UserError


def learn(texts, *, dimensions, window, max_words, seed):
    settings = WordVectorSettings(
        source="corpus", file="none", dimensions=dimensions, window_words=window, max_words=max_words
    )
    return from_corpus(lambda: iter(texts), settings, seed=seed)


def brute_force(words, vectors, word, k):
    vectors = np.asarray(vectors, dtype=np.float64)
    own = vectors[words.index(word)]
    cosine = {
        other: (vector @ own) / np.sqrt((vector @ vector) * (own @ own))
        for other, vector in zip(words, vectors, strict=True)
        if other != word
    }
    return sorted(cosine, key=cosine.get, reverse=True)[:k]


@pytest.mark.parametrize("k", [1, 7, 599, 1000])
def test_nearest_equals_brute_force(k):
    rng = np.random.default_rng(0)
    words = [f"w{index}" for index in range(600)]
    vectors = rng.normal(size=(600, 12)) * rng.uniform(0.1, 9, size=(600, 1))
    asked = words[::2]  # more than one chunk
    assert len(asked) > word_vectors.QUERY_CHUNK
    found = WordVectors(words, vectors).nearest(asked, k)
    for word in asked[::25]:
        assert found[word] == brute_force(words, vectors, word, k)


def test_unknown_and_zero_words_have_no_neighbors():
    vectors = WordVectors(["here", "there", "nowhere"], np.array([[1.0, 0], [1, 1], [0, 0]]))
    assert vectors.nearest(["Here", "nowhere", "else"], 5) == {"Here": ["there"], "nowhere": [], "else": []}
    assert WordVectors(["alone"], np.ones((1, 2))).nearest(["alone"], 3) == {"alone": []}


@pytest.mark.parametrize("word", ["bird", "MASK", "naïve", "Straße", "река", "हिन्दी", "한국", "北"])
def test_words_of_any_script_are_plain(word):
    assert is_plain_word(word)


@pytest.mark.parametrize("word", ["x", "", "1990", "r2d2", "##ing", "[MASK]", "don't", "é", "\u0301e"])
def test_single_letters_digits_and_signs_are_not_plain(word):
    assert not is_plain_word(word)


def test_vectors_of_a_corpus_have_words_of_its_script():
    texts = ["Größe und Straße", "हिन्दी भाषा है", "北京 x-ray 2nd"] * 2
    found = learn(texts, dimensions=2, window=1, max_words=20, seed=0)
    words = {"größe", "und", "straße", "हिन्दी", "भाषा", "है", "北", "京", "ray", "nd"}
    assert set(found.words) == words


def corpus():
    """Sentences of two subjects; a word's company is drawn from its own subject."""
    rng = random.Random(1)
    subjects = [
        (["cat", "dog", "horse", "pony"], ["barked", "ran", "slept", "ate"]),
        (["paris", "london", "berlin", "rome"], ["capital", "mayor", "streets", "museum"]),
    ]
    texts = []
    for _ in range(400):
        nouns, company = rng.choice(subjects)
        texts.append(f"The {rng.choice(nouns)} {rng.choice(company)}, {rng.choice(company)} 1990.")
    return texts


def test_corpus_vectors_put_words_of_like_company_near():
    vectors = learn(corpus(), dimensions=4, window=3, max_words=100, seed=0)
    neighbors = vectors.nearest(["cat", "berlin"], 3)
    assert set(neighbors["cat"]) == {"dog", "horse", "pony"}
    assert set(neighbors["berlin"]) == {"paris", "london", "rome"}


def test_corpus_vectors_are_the_same_again():
    first, second = (learn(corpus(), dimensions=4, window=3, max_words=100, seed=7) for _ in range(2))
    assert first.words == second.words
    np.testing.assert_array_equal(first.vectors, second.vectors)


def test_cooccurrences_by_hand(monkeypatch):
    monkeypatch.setattr(word_vectors, "CORPUS_CHUNK_WORDS", 3)
    words = ["ab", "cd", "ef"]
    counts = word_vectors._cooccurrences(["ab cd xx ef", "ef", "ab ab"], words, 2).toarray()
    # ab-cd at distance 1, cd-ef at 2 (xx is no word of the vocabulary), ab-ab at 1 seen from both sides
    np.testing.assert_allclose(counts, [[2, 1, 0], [1, 0, 0.5], [0, 0.5, 0]])


def test_positive_pmi_against_dense_float64():
    counts = np.array([[0, 4.0, 1], [4, 0, 0.5], [1, 0.5, 2]])
    joint = counts / counts.sum()
    context = counts.sum(0) ** 0.75 / (counts.sum(0) ** 0.75).sum()
    with np.errstate(divide="ignore"):
        expected = np.maximum(np.log(joint / (joint.sum(1)[:, None] * context)), 0)
    from scipy.sparse import csr_array

    np.testing.assert_allclose(word_vectors._positive_pmi(csr_array(counts)).toarray(), expected, rtol=1e-6)


def test_max_words_keeps_the_most_frequent():
    texts = ["dd cc bb aa", "dd cc bb", "dd cc", "dd x 12"]
    assert set(learn(texts, dimensions=1, window=2, max_words=3, seed=0).words) <= {"dd", "cc", "bb"}


def test_a_corpus_of_few_words_is_refused():
    with pytest.raises(UserError, match=r"word_vectors\.dimensions: too many .*got 50 for 2 words"):
        learn(["two words"], dimensions=50, window=5, max_words=100, seed=0)


def glove(tmp_path, text):
    path = tmp_path / "glove.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_file_keeps_plain_words_and_the_first_spelling(tmp_path):
    lines = ["the 1 0", ", 0 1", "The 5 5", "cat 0.6 -0.8", ". . . 1 1", "1990 2 2", "x 3 3", "café 0 3", "zero 0 0"]
    vectors = from_file(glove(tmp_path, "\n".join(lines) + "\n"))
    assert vectors.words == ["the", "cat", "café"]
    np.testing.assert_allclose(vectors.vectors, [[1, 0], [0.6, -0.8], [0, 1]], rtol=1e-6)


def test_file_may_be_compressed_and_is_read_to_a_limit(tmp_path, monkeypatch):
    path = tmp_path / "glove.txt.gz"
    path.write_bytes(gzip.compress(b"one 1 0\ntwo 0 1\nthree 1 1\n"))
    monkeypatch.setattr(word_vectors, "FILE_LINES", 2)
    assert from_file(path).words == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat 1 2\ndog 1\n", r"line 2: not a word and 2 numbers .*got 'dog 1'"),
        ("cat 1 2\ndog 1 2 3\n", r"line 2: not a word and 2 numbers .*got 'dog 1 2 3'"),
        ("2 300\ncat 1 2 3\n", r"line 2: not a word and 1 numbers .*got 'cat 1 2 3'"),
        ("cat\n", r"line 1: not a word and some numbers .*got 'cat'"),
        ("cat 1 2\n\n", r"line 2: not a word and 2 numbers .*got ''"),
        ("cat 1 2\ndog 1 x2\n", r"line 2: not a word and 2 numbers .*got 'dog 1 x2'"),
        ("cat 1 nan\n", r"line 1: not a word and 2 numbers .*got 'cat 1 nan'"),
        ("", r"has no word vectors"),
        (", 1 2\n", r"has no word vectors"),
    ],
)
def test_file_errors_name_file_and_line(tmp_path, text, message):
    path = glove(tmp_path, text)
    with pytest.raises(UserError, match=message) as caught:
        from_file(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"augmentation\.substitution\.word_vectors\.file: .*none\.txt does not exist"):
        from_file(tmp_path / "none.txt")


def test_large_numbers_stay_finite_and_larger_ones_are_errors(tmp_path):
    (tmp_path / "large.txt").write_text("king 1e15 1e15\nqueen 1 1\nknave 1e-20 1e-22\n")
    vectors = from_file(tmp_path / "large.txt").vectors
    assert vectors == pytest.approx(np.full((2, 2), 0.5**0.5), rel=1e-6)
    (tmp_path / "larger.txt").write_text("king 1e16 1\n")
    with pytest.raises(UserError, match=r"line 1: not a word and 2 numbers up to 1e\+15 \(got 'king 1e16 1'\)"):
        from_file(tmp_path / "larger.txt")
