"""Data of training runs: the order of rows, masks, and decisions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.unit.distill.test_loop import examples
from tinybert.config.schema import Masking
from tinybert.config.tasks import TASKS, Task
from tinybert.data.encoding import encode
from tinybert.data.sequences import Sequences
from tinybert.data.tokenizer import train_tokenizer
from tinybert.distill.batches import (
    Batches,
    Masker,
    decide,
    spread_batches,
    text_batch,
)

MASKING = Masking(rate=0.15, mask_fraction=0.8, random_fraction=0.1)
MASKER = Masker(MASKING, special_ids=(0, 1, 2, 3, 4), mask_id=4, vocabulary_size=50)


def sequences_of(rows) -> Sequences:
    return Sequences(np.concatenate(rows), np.cumsum([0, *map(len, rows)]))


def test_encoding_knows_the_augmented_rows():
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    rows = [{"sentence": "a", "label": 1, "idx": 0}, {"sentence": "b", "label": 1, "idx": 0, "augmented": True}]
    assert encode(rows, TASKS["cola"], tokenizer, max_length_tokens=8).varied.tolist() == [False, True]


def test_sequences_get_new_masks_each_epoch_by_the_seed():
    rows = examples(20).input_ids
    sequences = sequences_of(rows)
    masked = Batches(sequences, MASKER, batch_size=20, seed=0)
    first, again, second = (next(iter(masked.epoch(epoch))) for epoch in (0, 0, 1))
    assert torch.equal(first.input_ids, again.input_ids)
    assert torch.equal(first.positions, again.positions)
    assert not torch.equal(first.input_ids, second.input_ids)
    plain = next(iter(Batches(sequences, None, batch_size=20, seed=0).epoch(0)))
    assert plain.labels is None
    assert plain.input_ids.sum() == sum(map(sum, rows))


def test_seed_and_epoch_alone_decide_the_order_of_rows():
    def order(seed, epoch):
        return np.concatenate([batch.numbers for batch in batches(seed).epoch(epoch)])

    def batches(seed):
        return Batches(rows, batch_size=16, seed=seed)

    rows = examples(3000)
    assert [len(batch.numbers) for batch in batches(1).epoch(0)] == [16] * 187 + [3000 % 16]
    assert sorted(order(1, 0)) == list(range(3000))
    assert np.array_equal(order(1, 0), order(1, 0))
    assert not np.array_equal(order(1, 0), order(1, 1))
    assert not np.array_equal(order(1, 0), order(2, 0))
    first = next(iter(batches(1).epoch(0)))
    found = [ids[mask].tolist() for ids, mask in zip(first.input_ids, first.mask, strict=True)]
    assert found == [rows.input_ids[number].tolist() for number in first.numbers]
    assert abs(np.corrcoef(order(1, 0)[:-1], order(1, 0)[1:])[0, 1]) < 0.1


def test_a_masker_knows_the_tokenizers_special_tokens():
    tokenizer = train_tokenizer(["fish swim"], vocabulary_size=40)
    assert Masker.of(MASKING, tokenizer) == Masker(MASKING, (0, 1, 2, 3, 4), 4, tokenizer.get_vocab_size())


def test_masking_follows_its_shares():
    rng = np.random.default_rng(0)
    original = rng.integers(5, 50, (400, 100))
    original[:, 0], original[:, -20:] = 2, 0
    ids = original.copy()
    positions, labels = MASKER(ids, rng)
    flat, before = ids.reshape(-1), original.reshape(-1)
    assert np.array_equal(labels, before[positions])
    assert labels.min() >= 5  # specials and padding never
    untouched = np.setdiff1d(np.arange(flat.size), positions)
    assert np.array_equal(flat[untouched], before[untouched])
    assert len(np.unique(positions)) == len(positions) == 0.15 * 400 * 79
    assert (flat[positions] == 4).mean() == pytest.approx(0.8 + 0.1 / 50, abs=0.02)
    assert (flat[positions] == labels).mean() == pytest.approx(0.1 + 0.1 / 50, abs=0.02)


def test_at_least_one_token_is_always_predicted():
    positions, _ = MASKER(np.array([[2, 9, 3]]), np.random.default_rng(1))
    assert positions.tolist() == [1]


def test_padding_is_never_predicted_whatever_its_id():
    masker = replace(MASKER, settings=MASKING.model_copy(update={"rate": 1.0}), special_ids=(4, 5, 6, 7, 8), mask_id=8)
    sequences = [np.array([6, *range(10, 10 + n), 7]) for n in (1, 4)]
    found = text_batch(sequences, masker, np.random.default_rng(0))
    assert found.positions.tolist() == [1, 7, 8, 9, 10]
    assert found.input_ids[~found.mask].unique().tolist() == [4]


def test_heldout_text_is_masked_the_same_for_everybody():
    sequences = sequences_of([np.array([2, *range(5, 5 + n), 3]) for n in range(3, 20)])
    first, second = (spread_batches(sequences, MASKER, limit=5, seed=1) for _ in range(2))
    assert sum(len(part.input_ids) for part in first) == 5
    assert all(torch.equal(a.input_ids, b.input_ids) for a, b in zip(first, second, strict=True))
    assert len(spread_batches(sequences, MASKER, limit=99, seed=1)[0].input_ids) == 17


def test_several_labels_are_those_with_a_logit_above_zero():
    task = Task("tags", ("sentence",), ("a", "b"), "tags", kind="multilabel")
    assert decide(np.array([[0.1, -0.1], [-3.0, 0.0]]), task).tolist() == [[1, 0], [0, 0]]
