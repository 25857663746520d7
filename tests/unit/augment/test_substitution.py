"""Rows that augmentation makes: what changes, what stays, and on what the draws depend."""

import re
from collections import Counter

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from tests.unit.augment.test_sampling import group
from tinybert.augment.substitution import (
    ENGLISH_STOP_WORDS,
    WordPredictor,
    read_sentences,
    replacement_candidates,
    stop_words,
    substitute,
    variations,
)
from tinybert.augment.word_vectors import WordVectors
from tinybert.config.schema import Substitution
from tinybert.config.tasks import TASKS
from tinybert.data.tokenizer import train_tokenizer
from tinybert.models.bert import BertConfig, MaskedLM
from tinybert.models.outputs import Batch
from tinybert.pipeline.errors import UserError

CORPUS = "black birds saw rivers while seven brown horses quietly crossed old wooden bridges near green fields 7 , ."
SINGLE = [
    {"sentence": "Seven  horses crossed the old bridges.", "label": 1, "idx": 10},
    {"sentence": "It was not for them, 7 of us", "label": 0, "idx": 11},
    {"sentence": "birds saw rivers near green fields", "label": 0, "idx": 12},
    {"sentence": "Seven  horses crossed the old bridges.", "label": 1, "idx": 13},
]
PAIRS = [
    {"sentence1": "Birds saw the rivers.", "sentence2": "The birds saw fields!", "label": 1, "idx": 0},
    {"sentence1": "old horses", "sentence2": "It is.", "label": 0, "idx": 1},
]

POSITIONS = 64


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([CORPUS] * 3, vocabulary_size=150)


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(3)
    return MaskedLM(BertConfig(tokenizer.get_vocab_size(), 16, 2, 2, 32, max_position_embeddings=64))


def settings(**changes) -> Substitution:
    vectors = {"source": "corpus", "file": "none", "dimensions": 2, "window_words": 1, "max_words": 9}
    defaults = {"probability": 0.4, "candidates": 4, "stop_words": "english", "word_vectors": vectors}
    return Substitution(**defaults | changes)


def run(rows, task, model, tokenizer, seed=5, probability=0.4, copies=12, batch_tokens=60, max_tokens=30):
    vectors = WordVectors(["dingo", "pony"], np.eye(2) + 0.1)
    texts = dict.fromkeys(row[column] for row in rows for column in TASKS[task].columns)
    sentences = read_sentences(texts, tokenizer, max_tokens=max_tokens)
    predictor = WordPredictor(model, tokenizer, batch_tokens=batch_tokens)
    found = replacement_candidates(sentences, settings(candidates=6), predictor, vectors)
    return substitute(rows, TASKS[task], found, probability=probability, copies=copies, seed=seed)


def test_batch_size_does_not_change_the_rows(model, tokenizer):
    one_query_a_batch = run(SINGLE, "cola", model, tokenizer, batch_tokens=1)
    assert one_query_a_batch == run(SINGLE, "cola", model, tokenizer, batch_tokens=10_000)


def test_a_row_depends_on_seed_and_idx_not_on_other_rows(model, tokenizer):
    rows = run(SINGLE, "cola", model, tokenizer)
    others = run([SINGLE[1], SINGLE[1], SINGLE[2]], "cola", model, tokenizer)
    assert group(rows)[12] == group(others)[12]
    assert group(rows)[12] == run(SINGLE[2:3], "cola", model, tokenizer)  # as in a fraction of the rows
    assert run(SINGLE, "cola", model, tokenizer, seed=6) != rows
    first, repeated = group(rows)[10], group(rows)[13]  # the same sentence as another row
    assert [row["sentence"] for row in first] != [row["sentence"] for row in repeated]


def test_the_original_comes_first_and_nothing_twice(model, tokenizer):
    groups = group(run(SINGLE, "cola", model, tokenizer, copies=40))
    for original in SINGLE:
        rows = groups[original["idx"]]
        sentences = [row["sentence"] for row in rows]
        assert rows[0] == original
        assert len(sentences) == len(set(sentences)) <= 41
    assert len(groups[10]) > 20


def test_labels_and_keys_are_the_originals(model, tokenizer):
    rows = run(SINGLE, "cola", model, tokenizer)
    sizes = {idx: len(rows) for idx, rows in group(rows).items()}
    assert Counter(row["label"] for row in rows) == {1: sizes[10] + sizes[13], 0: sizes[11] + sizes[12]}
    assert all(row.keys() - {"augmented"} == {"sentence", "label", "idx"} for row in rows)


def test_variations_alone_are_marked(model, tokenizer):
    for rows in group(run(SINGLE, "cola", model, tokenizer)).values():
        assert "augmented" not in rows[0]
        assert all(row["augmented"] is True for row in rows[1:])


def test_only_plain_words_change_and_all_between_them_stays(model, tokenizer):
    rows = group(run(SINGLE, "cola", model, tokenizer, probability=1.0))
    for row in rows[10][1:]:
        seven, horses, crossed, old, bridges = re.fullmatch(
            r"(\w+)  (\w+) (\w+) the (\w+) (\w+)\.", row["sentence"]
        ).groups()
        assert seven != "Seven" and horses != "horses" and crossed != "crossed"
        assert old != "old" and bridges != "bridges"
    assert rows[11] == [SINGLE[1]]  # stop words, a number and punctuation alone


def test_of_a_pair_the_partner_stays_the_original(model, tokenizer):
    groups = group(run(PAIRS, "mrpc", model, tokenizer))
    changed = Counter()
    for row in groups[0]:
        first = row["sentence1"] != PAIRS[0]["sentence1"]
        second = row["sentence2"] != PAIRS[0]["sentence2"]
        assert not (first and second)
        changed[first, second] += 1
    assert changed[False, False] == 1
    assert 4 < changed[True, False] <= 12
    assert 4 < changed[False, True] <= 12
    assert all(row["sentence2"] == "It is." for row in groups[1])


def test_stop_words_are_never_touched(model, tokenizer):
    rows = run([{"sentence": "the birds and not the rivers", "label": 1, "idx": 0}], "cola", model, tokenizer)
    assert len(rows) > 4
    assert all(re.fullmatch(r"the \w+ and not the \w+", row["sentence"]) for row in rows)


def test_words_are_replaced_by_the_probability_evenly(tokenizer):
    (sentence,) = read_sentences(["old horses"], tokenizer, max_tokens=30)
    counts = Counter()
    for seed in range(4000):
        texts = variations(sentence, [["new"], ["cats", "dogs"]], 0.4, 1, np.random.default_rng(seed))
        counts[texts[0] if texts else None] += 1
    expected = {
        None: 0.36, "new horses": 0.24, "old cats": 0.12, "old dogs": 0.12, "new cats": 0.08, "new dogs": 0.08,
    }  # fmt: skip
    assert counts.keys() == expected.keys()
    for text, share in expected.items():
        assert counts[text] / 4000 == pytest.approx(share, abs=0.03)


def test_probability_zero_or_no_copies_leave_the_rows(model, tokenizer):
    assert run(SINGLE, "cola", model, tokenizer, probability=0.0) == SINGLE
    assert run(SINGLE, "cola", model, tokenizer, copies=0) == SINGLE


def test_words_that_training_cuts_off_are_left_alone(model, tokenizer):
    rows = run([SINGLE[2]], "cola", model, tokenizer, max_tokens=2, probability=1.0)
    assert len(rows) > 1
    for row in rows[1:]:
        assert re.fullmatch(r"(?!birds)\w+ (?!saw)\w+ rivers near green fields", row["sentence"])


def test_words_of_several_pieces_are_replaced_by_near_words(model, tokenizer):
    rows = run([{"sentence": "The Dingo, it is", "label": 1, "idx": 0}], "cola", model, tokenizer)
    assert [row["sentence"] for row in rows] == ["The Dingo, it is", "The pony, it is"]


TEXTS = [
    "seven horses crossed bridges",
    "the brown horses quietly crossed old wooden bridges near the green fields.",
    "birds",
    "7, of the .",
    "black birds saw seven horses near rivers, rivers near fields",
]
POSITIONS = 64


@pytest.fixture(scope="module")
def larger_model(tokenizer):
    torch.manual_seed(3)
    return MaskedLM(
        BertConfig(
            tokenizer.get_vocab_size() + 2, 16, 2, 2, 32, max_position_embeddings=POSITIONS, initializer_range=0.4
        )
    )


def candidates(texts, model, tokenizer, vectors=None, batch_tokens=40, **changes):
    sentences = read_sentences(texts, tokenizer, max_tokens=POSITIONS - 2)
    vectors = vectors or WordVectors([], np.zeros((0, 2)))
    predictor = WordPredictor(model, tokenizer, batch_tokens=batch_tokens)
    found = replacement_candidates(sentences, settings(**changes), predictor, vectors)
    return sentences, [found[text][1] for text in texts]


def one_query(sentence, word, model, tokenizer, k):
    """The k best whole words: logits of every position of one unpadded query, ranked in Python."""
    tokens = [tokenizer.id_to_token(index) for index in sentence.ids]
    masked = [*tokens[: word.first_token], "[MASK]", *tokens[word.first_token + 1 :]]
    query = ["[CLS]", *masked, "[SEP]", *tokens, "[SEP]"]
    ids = torch.tensor([[tokenizer.token_to_id(token) for token in query]])
    types = torch.tensor([[0] * (len(masked) + 2) + [1] * (len(query) - len(masked) - 2)])
    batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool), types, positions=torch.arange(len(query)))
    with torch.no_grad():
        logits = model.eval()(batch).logits[query.index("[MASK]")].tolist()
    words = [piece for piece in tokenizer.get_vocab() if len(piece) > 1 and all("a" <= char <= "z" for char in piece)]
    words.remove(word.spelling)
    return sorted(words, key=lambda piece: -logits[tokenizer.token_to_id(piece)])[:k]


@pytest.mark.parametrize("batch_tokens", [1, 40, 10_000])
def test_batches_equal_one_query_at_a_time(batch_tokens, larger_model, tokenizer):
    sentences, found = candidates(TEXTS, larger_model, tokenizer, batch_tokens=batch_tokens)
    compared = 0
    for sentence, choices in zip(sentences, found, strict=True):
        for word, chosen in zip(sentence.words, choices, strict=True):
            assert sorted(chosen) == sorted(one_query(sentence, word, larger_model, tokenizer, 4))
            compared += 1
    assert compared == 4 + 9 + 1 + 0 + 8


def test_candidates_are_whole_other_words(larger_model, tokenizer):
    sentences, found = candidates(TEXTS, larger_model, tokenizer, candidates=1000)
    for sentence, choices in zip(sentences, found, strict=True):
        for word, chosen in zip(sentence.words, choices, strict=True):
            assert word.spelling not in chosen
            assert all(piece.isalpha() and len(piece) > 1 for piece in chosen)
            assert len(chosen) == len(set(chosen)) > 10


def test_a_model_in_training_mode_answers_without_dropout(larger_model, tokenizer):
    expected = candidates(TEXTS, larger_model, tokenizer)[1]
    assert candidates(TEXTS, larger_model.train(), tokenizer)[1] == expected


def test_candidates_of_longer_words_come_from_the_vectors(larger_model, tokenizer):
    vectors = WordVectors(["dingo", "stone", "pony"], np.array([[1.0, 0.1], [-1.0, 1.0], [1.0, 0.2]]))
    sentences, found = candidates(["Dingo crossed dunes"], larger_model, tokenizer, vectors, candidates=1)
    assert [word.spelling for word in sentences[0].words] == ["dingo", "crossed", "dunes"]
    assert [word.tokens > 1 for word in sentences[0].words] == [True, False, True]
    assert found[0][0] == ["pony"]
    assert len(found[0][1]) == 1
    assert found[0][2] == []  # no vector


def test_a_tokenizer_that_keeps_capitals_gets_them_back(larger_model):
    cased = Tokenizer(WordPiece({"[UNK]": 0, "D": 1, "d": 2, "##ingo": 3}, unk_token="[UNK]"))
    cased.normalizer, cased.pre_tokenizer = BertNormalizer(lowercase=False), BertPreTokenizer()
    vectors = WordVectors(["dingo", "pony"], np.array([[1.0, 0.1], [1.0, 0.2]]))
    assert candidates(["Dingo dingo"], larger_model, cased, vectors)[1] == [[["Pony"], ["pony"]]]


WORDS = "a bird the sang Café crêpe blackbird river don't in 1990 black saw and it s t U S dogs not"


@pytest.fixture(scope="module")
def word_tokenizer():
    return train_tokenizer([WORDS] * 3, vocabulary_size=400)


def replaceable(text, word_tokenizer, max_tokens=100):
    (sentence,) = read_sentences([text], word_tokenizer, max_tokens=max_tokens)
    return [text[word.start : word.end] for word in sentence.words]


def test_stop_words_are_lower_case():
    assert all(word == word.lower() for word in ENGLISH_STOP_WORDS)
    assert {"the", "of", "and", "is", "not", "which", "would"} <= ENGLISH_STOP_WORDS


def test_stop_words_come_from_english_a_file_or_nowhere(tmp_path):
    (tmp_path / "words.txt").write_text("der Die\n\ndas\n", encoding="utf-8")
    (tmp_path / "empty.txt").write_text("\n")
    assert stop_words("english") == ENGLISH_STOP_WORDS and stop_words("off") == frozenset()
    assert stop_words(str(tmp_path / "words.txt")) == {"der", "die", "das"}
    for name, problem in (("empty.txt", "no words"), ("absent.txt", ".* does not exist")):
        with pytest.raises(UserError, match=rf"^augmentation\.substitution\.stop_words: {problem}"):
            stop_words(str(tmp_path / name))


def test_other_stop_words_stay_instead(word_tokenizer):
    (sentence,) = read_sentences(["The bird DOGS"], word_tokenizer, max_tokens=9, unchanged={"dogs"})
    assert [word.spelling for word in sentence.words] == ["the", "bird"]


def test_stop_words_and_vectors_keep_their_accents(word_tokenizer):
    (sentence,) = read_sentences(["Crêpe crepe dogs"], word_tokenizer, max_tokens=9, unchanged={"crêpe"})
    assert [(word.spelling, word.written) for word in sentence.words] == [("crepe", "crepe"), ("dogs", "dogs")]


def test_words_are_found_by_their_characters_in_the_text(word_tokenizer):
    text = "The  Blackbird, it didn't (sing) in 1990: U.S. crêpe [MASK] dogs!"
    assert replaceable(text, word_tokenizer) == ["Blackbird", "sing", "crêpe", "dogs"]


def test_spelling_and_pieces_are_the_tokenizers(word_tokenizer):
    (sentence,) = read_sentences(["A Crêpe blackdogs"], word_tokenizer, max_tokens=100)
    crepe, blackdogs = sentence.words
    tokens = word_tokenizer.encode("a crepe blackdogs", add_special_tokens=False).tokens
    assert (crepe.spelling, crepe.first_token, crepe.tokens) == ("crepe", 1, 1)
    assert blackdogs.spelling == "blackdogs"
    assert (blackdogs.first_token, blackdogs.tokens) == (2, len(tokens) - 2)
    assert blackdogs.tokens > 1


def test_words_behind_or_across_the_cut_are_left_alone(word_tokenizer):
    text = "bird river blackdogs dogs"  # blackdogs has more than one piece
    assert replaceable(text, word_tokenizer, max_tokens=3) == ["bird", "river"]
    (sentence,) = read_sentences([text], word_tokenizer, max_tokens=3)
    assert len(sentence.ids) == 3
    assert sentence.text == text


def test_the_tokenizers_truncation_and_padding_are_ignored(word_tokenizer):
    word_tokenizer.enable_truncation(2)
    word_tokenizer.enable_padding(length=30)
    assert replaceable("bird saw river", word_tokenizer) == ["bird", "saw", "river"]
