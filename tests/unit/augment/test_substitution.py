"""Rows that augmentation makes: what changes, what stays, and on what the draws depend."""

import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tinybert.augment.substitution import substitute, variations
from tinybert.augment.word_vectors import WordVectors
from tinybert.augment.words import read_sentences
from tinybert.data.tasks import TASKS
from tinybert.data.tokenizer import train_tokenizer
from tinybert.models.bert import BertConfig, MaskedLM

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


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([CORPUS] * 3, vocabulary_size=150)


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(3)
    return MaskedLM(BertConfig(tokenizer.get_vocab_size(), 16, 2, 2, 32, max_position_embeddings=64))


def run(rows, task, model, tokenizer, seed=5, **changes):
    defaults = {
        "top_k": 6, "probability": 0.4, "copies": 12, "batch_tokens": 60, "second_segment": True, "keep_word": False,
        "keep_partner": True, "max_length_tokens": 32, "precision": "float32",
    }  # fmt: skip
    vectors = WordVectors(["dingo", "pony"], np.eye(2) + 0.1)
    return substitute(
        rows,
        TASKS[task],
        settings=SimpleNamespace(**defaults | changes),
        masked_lm=model,
        tokenizer=tokenizer,
        vectors=vectors,
        seed=seed,
    )


def group(rows):
    groups = {}
    for row in rows:
        groups.setdefault(row["idx"], []).append(row)
    return groups


def test_batch_size_does_not_change_the_rows(model, tokenizer):
    one_query_a_batch = run(SINGLE, "cola", model, tokenizer, batch_tokens=1)
    assert one_query_a_batch == run(SINGLE, "cola", model, tokenizer, batch_tokens=10_000)


def test_a_row_depends_on_seed_and_idx_but_not_on_other_rows(model, tokenizer):
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


def test_pairs_vary_one_sentence_while_the_partner_stays_the_original(model, tokenizer):
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


def test_as_published_the_second_sentence_meets_the_last_variation_of_the_first(model, tokenizer):
    rows = group(run(PAIRS, "mrpc", model, tokenizer, keep_partner=False))
    ours = group(run(PAIRS, "mrpc", model, tokenizer))
    second = [row for row in rows[0] if row["sentence2"] != PAIRS[0]["sentence2"]]
    first = [row for row in rows[0][1:] if row not in second]
    assert len(first) > 4 and len(second) > 4
    assert {row["sentence1"] for row in second} == {first[-1]["sentence1"]}
    assert first[-1]["sentence1"] != PAIRS[0]["sentence1"]
    assert [row["sentence2"] for row in rows[0]] == [row["sentence2"] for row in ours[0]]
    assert rows[1] == ours[1]  # its second sentence has no word to vary


def test_stop_words_are_never_touched(model, tokenizer):
    rows = run([{"sentence": "the birds and not the rivers", "label": 1, "idx": 0}], "cola", model, tokenizer)
    assert len(rows) > 4
    assert all(re.fullmatch(r"the \w+ and not the \w+", row["sentence"]) for row in rows)


def test_each_word_is_replaced_with_the_given_probability_by_candidates_alike(tokenizer):
    (sentence,) = read_sentences(["old horses"], tokenizer, max_pieces=30)
    counts = Counter()
    for seed in range(4000):
        texts = variations(
            sentence,
            [["new"], ["cats", "dogs"]],
            settings=SimpleNamespace(copies=1, probability=0.4),
            rng=np.random.default_rng(seed),
        )
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
    rows = run([SINGLE[2]], "cola", model, tokenizer, max_length_tokens=4, probability=1.0)
    assert len(rows) > 1
    for row in rows[1:]:
        assert re.fullmatch(r"(?!birds)\w+ (?!saw)\w+ rivers near green fields", row["sentence"])


def test_words_of_several_pieces_are_replaced_by_near_words(model, tokenizer):
    rows = run([{"sentence": "The Dingo, it is", "label": 1, "idx": 0}], "cola", model, tokenizer)
    assert [row["sentence"] for row in rows] == ["The Dingo, it is", "The pony, it is"]
