"""Candidates from batches against one full forward pass a word."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from tinybert.augment.candidates import replacement_candidates
from tinybert.augment.word_vectors import WordVectors
from tinybert.augment.words import read_sentences
from tinybert.data.tokenizer import train_tokenizer
from tinybert.models.bert import BertConfig, MaskedLM
from tinybert.models.outputs import Batch

CORPUS = "black birds saw rivers while seven brown horses quietly crossed old wooden bridges near green fields 7 , ."
TEXTS = [
    "seven horses crossed bridges",
    "the brown horses quietly crossed old wooden bridges near the green fields.",
    "birds",
    "7, of the .",
    "black birds saw seven horses near rivers, rivers near fields",
]
POSITIONS = 64


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([CORPUS] * 3, vocabulary_size=150)


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(3)
    config = BertConfig(
        tokenizer.get_vocab_size() + 2, 16, 2, 2, 32, max_position_embeddings=POSITIONS, initializer_range=0.4
    )
    return MaskedLM(config)


def settings(**changes):
    defaults = {
        "top_k": 4, "batch_tokens": 40, "second_segment": True, "keep_word": False, "precision": "float32",
    }  # fmt: skip
    return SimpleNamespace(**defaults | changes)


def candidates(texts, model, tokenizer, vectors=None, max_pieces=POSITIONS - 2, **changes):
    sentences = read_sentences(texts, tokenizer, max_pieces=max_pieces)
    vectors = vectors or WordVectors([], np.zeros((0, 2)))
    found = replacement_candidates(
        sentences, settings=settings(**changes), masked_lm=model, tokenizer=tokenizer, vectors=vectors
    )
    return sentences, found


def one_query(sentence, word, model, tokenizer, k, second_segment):
    """The k best whole words: logits of every position of one unpadded query, ranked in Python."""
    tokens = [tokenizer.id_to_token(index) for index in sentence.ids]
    masked = [*tokens[: word.first_piece], "[MASK]", *tokens[word.first_piece + 1 :]]
    query = ["[CLS]", *masked, "[SEP]"] + ([*tokens, "[SEP]"] if second_segment else [])
    ids = torch.tensor([[tokenizer.token_to_id(token) for token in query]])
    types = torch.tensor([[0] * (len(masked) + 2) + [1] * (len(query) - len(masked) - 2)])
    batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool), types, positions=torch.arange(len(query)))
    with torch.no_grad():
        logits = model.eval()(batch).logits[query.index("[MASK]")].tolist()
    words = [piece for piece in tokenizer.get_vocab() if len(piece) > 1 and all("a" <= char <= "z" for char in piece)]
    words.remove(word.spelling)
    return sorted(words, key=lambda piece: -logits[tokenizer.token_to_id(piece)])[:k]


@pytest.mark.parametrize("second_segment", [True, False])
@pytest.mark.parametrize("batch_tokens", [1, 40, 10_000])
def test_batches_equal_one_query_at_a_time(second_segment, batch_tokens, model, tokenizer):
    sentences, found = candidates(TEXTS, model, tokenizer, second_segment=second_segment, batch_tokens=batch_tokens)
    compared = 0
    for sentence, choices in zip(sentences, found, strict=True):
        for word, chosen in zip(sentence.words, choices, strict=True):
            assert sorted(chosen) == sorted(one_query(sentence, word, model, tokenizer, 4, second_segment))
            compared += 1
    assert compared == 4 + 9 + 1 + 0 + 8


def test_the_second_segment_changes_the_answers(model, tokenizer):
    assert candidates(TEXTS, model, tokenizer)[1] != candidates(TEXTS, model, tokenizer, second_segment=False)[1]


def test_candidates_are_whole_other_words(model, tokenizer):
    sentences, found = candidates(TEXTS, model, tokenizer, top_k=1000)
    for sentence, choices in zip(sentences, found, strict=True):
        for word, chosen in zip(sentence.words, choices, strict=True):
            assert word.spelling not in chosen
            assert all(piece.isalpha() and len(piece) > 1 for piece in chosen)
            assert len(chosen) == len(set(chosen)) > 10


def test_a_model_in_training_mode_answers_without_dropout(model, tokenizer):
    expected = candidates(TEXTS, model, tokenizer)[1]
    assert candidates(TEXTS, model.train(), tokenizer)[1] == expected


def test_as_published_the_word_itself_may_stay(model, tokenizer):
    sentences, found = candidates(TEXTS, model, tokenizer, top_k=1000, keep_word=True)
    _, others = candidates(TEXTS, model, tokenizer, top_k=1000)
    for sentence, choices, without in zip(sentences, found, others, strict=True):
        for word, chosen, rest in zip(sentence.words, choices, without, strict=True):
            assert sorted(chosen) == sorted([*rest, word.spelling])


def test_words_of_several_pieces_come_from_the_vectors(model, tokenizer):
    vectors = WordVectors(["dingo", "stone", "pony"], np.array([[1.0, 0.1], [-1.0, 1.0], [1.0, 0.2]]))
    sentences, found = candidates(["Dingo crossed dunes"], model, tokenizer, vectors, top_k=1)
    assert [word.spelling for word in sentences[0].words] == ["dingo", "crossed", "dunes"]
    assert [word.pieces > 1 for word in sentences[0].words] == [True, False, True]
    assert found[0][0] == ["pony"]
    assert len(found[0][1]) == 1
    assert found[0][2] == []  # no vector


def test_a_tokenizer_that_keeps_capitals_gets_them_back(model):
    cased = Tokenizer(WordPiece({"[UNK]": 0, "D": 1, "d": 2, "##ingo": 3}, unk_token="[UNK]"))
    cased.normalizer, cased.pre_tokenizer = BertNormalizer(lowercase=False), BertPreTokenizer()
    vectors = WordVectors(["dingo", "pony"], np.array([[1.0, 0.1], [1.0, 0.2]]))
    assert candidates(["Dingo dingo"], model, cased, vectors)[1] == [[["Pony"], ["pony"]]]
