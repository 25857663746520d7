"""How the masked LM is asked: packed batches, each query once, in either precision."""

import numpy as np
import pytest
import torch

from tests.support.builders import TEACHER, batch, bfloat16_works, masked_lm
from tests.unit.augment.test_substitution import CORPUS, settings
from tinybert.augment import substitution
from tinybert.augment.substitution import (
    Query,
    WordPredictor,
    batches_by_length,
    best_words,
    masked_states,
    read_sentences,
)
from tinybert.data.tokenizer import train_tokenizer
from tinybert.distill.resume import Checkpoint
from tinybert.models.bert import BertConfig, MaskedLM
from tinybert.models.outputs import OutputSpec
from tinybert.models.packed_linear import for_inference
from tinybert.pipeline.errors import UserError


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([CORPUS] * 3, vocabulary_size=150)


@pytest.fixture
def model(tokenizer):
    torch.manual_seed(3)
    return MaskedLM(
        BertConfig(tokenizer.get_vocab_size(), 16, 2, 2, 32, max_position_embeddings=12, initializer_range=0.4)
    )


def ask(texts, model, tokenizer, max_tokens=10, checkpoint=None, batch_tokens=30, precision="float32", **changes):
    sentences = read_sentences(texts, tokenizer, max_tokens=max_tokens)
    queries = [Query(sentence.ids, word.first_token) for sentence in sentences for word in sentence.words]
    predictor = WordPredictor(model, tokenizer, precision, batch_tokens)
    return predictor.likely_words(queries, settings(**changes), checkpoint)


@pytest.fixture
def seen(monkeypatch):
    """The rows of ids that the masked LM is given."""
    rows = []

    def spy(embeddings, encoder, batch, masked):
        rows.extend(ids[mask].tolist() for ids, mask in zip(batch.input_ids, batch.mask, strict=True))
        return masked_states(embeddings, encoder, batch, masked)

    monkeypatch.setattr(substitution, "masked_states", spy)
    return rows


def test_masked_states_are_those_of_a_padded_batch():
    model = masked_lm(TEACHER)
    masked, example = torch.tensor([1, 4, 2, 3]), batch((4, 5, 5, 7), 7)
    with torch.no_grad():
        outputs, _ = model.bert(example, OutputSpec(hidden=frozenset({4})), skips_unread=True)
        encoder = for_inference(model.bert.encoder, torch.float32)
        found = masked_states(model.bert.embeddings, encoder, example, masked)
    assert torch.allclose(found, example.real.pad(outputs.hidden[4])[torch.arange(4), masked], atol=1e-6)


def test_each_distinct_query_is_asked_once(model, tokenizer, seen):
    texts = ["Birds saw rivers", "birds  saw rivers", "birds saw fields"]
    answers = ask(texts, model, tokenizer)
    # Three words of one sentence in two spellings, three of the other.
    assert len(seen) == len({tuple(row) for row in seen}) == 6
    assert len(answers) == 9
    assert answers[:3] == answers[3:6] != answers[6:]


def test_an_interrupted_run_resumes_with_the_next_batch(model, tokenizer, seen, tmp_path, monkeypatch):
    monkeypatch.setenv("TINYBERT_CHECKPOINT_SECONDS", "0")
    undisturbed = ask([CORPUS], model, tokenizer, batch_tokens=1)
    asked = len(seen)  # each word is a batch
    spy = substitution.masked_states

    def killed_at_the_fifth(*args):
        if len(seen) == asked + 4:
            raise KeyboardInterrupt
        return spy(*args)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(substitution, "masked_states", killed_at_the_fifth)
        ask([CORPUS], model, tokenizer, batch_tokens=1, checkpoint=Checkpoint(tmp_path, lambda: "run"))
    resumed = ask([CORPUS], model, tokenizer, batch_tokens=1, checkpoint=Checkpoint(tmp_path, lambda: "run"))
    assert resumed == undisturbed
    assert len(seen) == 2 * asked  # four before, the rest after


def test_the_second_segment_ends_where_the_positions_do(model, tokenizer, seen):
    for text in ("seven horses crossed bridges", "seven horses crossed old bridges", "birds saw " * 5):
        ask([text], model, tokenizer)
    names = [[tokenizer.id_to_token(index) for index in row] for row in seen]
    assert names[0][5:] == ["[SEP]", "seven", "horses", "crossed", "bridges", "[SEP]"]
    assert any(row[6:] == ["[SEP]", "seven", "horses", "crossed", "old", "[SEP]"] for row in names)  # 12 positions
    assert names[-1][11:] == ["[SEP]"]  # no room


def test_batches_hold_all_rows_by_length():
    lengths = np.array([5, 3, 9, 3, 20, 4])
    found = [indices.tolist() for indices in batches_by_length(lengths, 12)]
    assert found == [[1, 3, 5], [0], [2], [4]]  # 3 + 3 + 4, 5, 9, and one that is too long for any


def test_nothing_to_ask_is_no_error(model, tokenizer):
    assert ask(["of the"], model, tokenizer) == []


def test_the_order_of_two_close_logits_changes_nothing():
    best = [
        best_words(torch.tensor([[9.0, 1.0, *close]]), torch.tensor([0]), 2).tolist()
        for close in ([3.0, 3.000001], [3.000001, 3.0])
    ]
    assert best == [[[2, 3]], [[2, 3]]]


@pytest.mark.skipif(not bfloat16_works(), reason="no bfloat16 in this machine")
def test_bfloat16_finds_mostly_the_same_words(tokenizer):
    torch.manual_seed(3)
    model = MaskedLM(BertConfig(tokenizer.get_vocab_size(), 16, 2, 2, 32, initializer_range=0.4))
    texts = [CORPUS.removesuffix(" 7 , .")]
    exact = ask(texts, model, tokenizer, max_tokens=60)
    rounded = ask(texts, model, tokenizer, max_tokens=60, precision="bfloat16")
    shared = [len(set(a) & set(b)) / 4 for a, b in zip(exact, rounded, strict=True)]
    assert np.mean(shared) > 0.8
    assert rounded == ask(texts, model, tokenizer, max_tokens=60, precision="bfloat16")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_missing_bfloat16_is_an_error(model, tokenizer, monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    with pytest.raises(
        UserError, match=r"^precision: bfloat16 is not supported by this machine; fix: set it to float32$"
    ):
        ask([CORPUS], model, tokenizer, precision="bfloat16")
