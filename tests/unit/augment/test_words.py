"""Which words may be replaced, and where they are found in text and pieces."""

import pytest

from tinybert.augment.words import STOP_WORDS, is_replaceable, read_sentences
from tinybert.data.tokenizer import train_tokenizer

WORDS = "a bird the sang Café crêpe blackbird river don't in 1990 black saw and it s t U S dogs not"


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([WORDS] * 3, vocabulary_size=400)


def replaceable(text, tokenizer, max_pieces=100):
    (sentence,) = read_sentences([text], tokenizer, max_pieces=max_pieces)
    return [text[word.start : word.end] for word in sentence.words]


@pytest.mark.parametrize(
    "word", ["the", "The", "not", "with", "don", "1990", "x", "B", "r2d2", "##ing", "[MASK]", "", "naïve"]
)
def test_grammar_words_and_what_is_no_plain_word_are_never_replaceable(word):
    assert not is_replaceable(word)


@pytest.mark.parametrize("word", ["bird", "River", "ok", "MASK"])
def test_content_words_are_replaceable(word):
    assert is_replaceable(word)


def test_stop_words_are_spelled_as_they_are_looked_up():
    assert all(word == word.lower() for word in STOP_WORDS)
    assert {"the", "of", "and", "is", "not", "which", "would"} <= STOP_WORDS


def test_words_are_found_by_their_characters_in_the_text(tokenizer):
    text = "The  Blackbird, it didn't (sing) in 1990: U.S. crêpe [MASK] dogs!"
    assert replaceable(text, tokenizer) == ["Blackbird", "sing", "crêpe", "dogs"]


def test_spelling_and_pieces_are_the_tokenizers(tokenizer):
    (sentence,) = read_sentences(["A Crêpe blackdogs"], tokenizer, max_pieces=100)
    crepe, blackdogs = sentence.words
    tokens = tokenizer.encode("a crepe blackdogs", add_special_tokens=False).tokens
    assert (crepe.spelling, crepe.first_piece, crepe.pieces) == ("crepe", 1, 1)
    assert blackdogs.spelling == "blackdogs"
    assert (blackdogs.first_piece, blackdogs.pieces) == (2, len(tokens) - 2)
    assert blackdogs.pieces > 1


def test_words_behind_the_cut_or_across_it_are_left_alone(tokenizer):
    text = "bird river blackdogs dogs"  # blackdogs has more than one piece
    assert replaceable(text, tokenizer, max_pieces=3) == ["bird", "river"]
    (sentence,) = read_sentences([text], tokenizer, max_pieces=3)
    assert len(sentence.ids) == 3
    assert sentence.text == text


def test_the_tokenizers_truncation_and_padding_are_not_felt(tokenizer):
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=30)
    assert replaceable("bird saw river", tokenizer) == ["bird", "saw", "river"]
