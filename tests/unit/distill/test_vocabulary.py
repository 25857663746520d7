"""Vocabulary trimming keeps logits and knows all words; training only the vectors in use changes no weight."""

import contextlib
import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from tests.support.builders import STUDENT, classifier
from tests.unit.distill.test_loop import OPTIMIZER, RUN, examples, settings
from tinybert.config.tasks import TASKS
from tinybert.data.encoding import encode
from tinybert.data.tokenizer import SPECIAL_TOKENS, folder_tokenizer, save_tokenizer, train_tokenizer
from tinybert.distill import loop
from tinybert.distill.batches import Batches
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.vocabulary import frequent_tokens, only_used_words, trim_vocabulary
from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig
from tinybert.models.outputs import OutputSpec

TEXTS = ["the river flows past the mill", "old mills stand by the river", "the bridge crosses the river"] * 3
OTHERS = ["a flowing river by the old bridge", "stands", "mill the bridge", "crossing xyz"]


def encoded(texts, tokenizer):
    return encode([{"sentence": text} for text in texts], TASKS["cola"], tokenizer, max_length_tokens=32)


def student_of(tokenizer, kind="bert"):
    size = tokenizer.get_vocab_size()
    if kind == "bert":
        return classifier(replace(STUDENT, vocab_size=size))
    torch.manual_seed(0)
    return BiLstmClassifier(BiLstmConfig(size, 12, 8, 1, 6), ("no", "yes"), pair=False).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS + OTHERS, vocabulary_size=90)


def logits(model, texts, tokenizer):
    with torch.no_grad():
        return model(encoded(texts, tokenizer).batch(range(len(texts)))).logits


@pytest.mark.parametrize("kind", ["bert", "bilstm"])
def test_logits_of_rows_that_keep_their_tokens_stay(tokenizer, kind):
    student = student_of(tokenizer, kind)
    before, size = logits(student, TEXTS[:3], tokenizer), student.parameter_count
    smaller = trim_vocabulary(student, tokenizer, encoded(TEXTS, tokenizer), limit=1000)
    assert smaller.get_vocab_size() == student.config.vocab_size < tokenizer.get_vocab_size()
    assert torch.equal(logits(student, TEXTS[:3], smaller), before)
    width = STUDENT.hidden_size
    assert student.parameter_count == size - width * (tokenizer.get_vocab_size() - smaller.get_vocab_size())


def test_other_rows_fall_into_more_tokens_none_unknown(tokenizer):
    smaller = trim_vocabulary(student_of(tokenizer), tokenizer, encoded(TEXTS, tokenizer), limit=1000)
    for text in OTHERS:
        wide, narrow = tokenizer.encode(text), smaller.encode(text)
        assert narrow.tokens.count("[UNK]") == wide.tokens.count("[UNK]")
        assert len(narrow.ids) >= len(wide.ids)
    assert smaller.encode("flowing").tokens != tokenizer.encode("flowing").tokens


def test_the_most_frequent_tokens_remain(tokenizer):
    rows = encoded(TEXTS, tokenizer)
    most = frequent_tokens(tokenizer, rows, limit=1000)
    always = frequent_tokens(tokenizer, rows, limit=0)
    fewer = frequent_tokens(tokenizer, rows, limit=len(always) + 2)
    names = {tokenizer.id_to_token(number) for number in always}
    assert names >= {*SPECIAL_TOKENS, "a", "##a"}
    assert set(always) < set(fewer) < set(most)
    assert len(fewer) == len(always) + 2
    added = {tokenizer.id_to_token(number) for number in set(fewer) - set(always)}
    assert added == {"the", "river"}


def test_tokens_with_a_character_of_no_token_remain(tmp_path):
    tokens = [*SPECIAL_TOKENS, "a", "b", "##b", "ab", "aß", "##ab"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    tokenizer = folder_tokenizer(tmp_path)
    kept = frequent_tokens(tokenizer, encoded(["b"], tokenizer), limit=0)
    assert {tokenizer.id_to_token(number) for number in kept} == set(tokens) - {"ab"}


@pytest.mark.parametrize("stated", [7, 0])  # pad_token_id of config.json: the tokenizer's, or a wrong one
def test_the_padding_row_stays_the_padding_row(tmp_path, stated):
    tokens = ["one", "o", "##n", "##e", "##o", "n", "e", *SPECIAL_TOKENS, "two"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    tokenizer = folder_tokenizer(tmp_path)
    student = classifier(replace(STUDENT, vocab_size=len(tokens), pad_token_id=stated))
    smaller = trim_vocabulary(student, tokenizer, encoded(["two"], tokenizer), limit=100)
    words = student.bert.embeddings.word_embeddings
    assert student.config.pad_token_id == words.padding_idx == smaller.token_to_id("[PAD]")
    assert words.weight[words.padding_idx].any() == (stated != tokens.index("[PAD]"))


def test_added_tokens_remain_whole(tokenizer):
    wider = Tokenizer.from_str(tokenizer.to_str())
    wider.add_tokens(["<url>"])
    rows = encoded([*TEXTS, "the <url> river"], wider)
    smaller = trim_vocabulary(student_of(wider), wider, rows, limit=1000)
    assert smaller.encode("the <url> river").tokens == wider.encode("the <url> river").tokens
    assert smaller.token_to_id("<url>") < smaller.get_vocab_size()


def test_transformers_reads_the_trimmed_tokenizer(tokenizer, tmp_path):
    smaller = trim_vocabulary(student_of(tokenizer), tokenizer, encoded(TEXTS, tokenizer), limit=1000)
    save_tokenizer(smaller, tmp_path, max_length_tokens=16)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS[:3] + OTHERS:
        assert theirs(text)["input_ids"] == smaller.encode(text).ids
    assert np.all(np.array(theirs("zebra é")["input_ids"]) < smaller.get_vocab_size())


def bilstm():
    torch.manual_seed(1)
    return BiLstmClassifier(BiLstmConfig(50, 8, 6, 1, 6, dropout=0.0), ("no", "yes"), pair=False)


def train(student):
    loss = DistillationLoss(DistillationConfig({"hard": 1.0}), student.config)
    loop.train(student, loss, Batches(examples(), batch_size=8, seed=7), settings(epochs=4, learning_rate=0.1), run=RUN)
    return student


@pytest.mark.parametrize("student", [lambda: classifier(seed=1), bilstm])
def test_weights_are_those_of_training_all_vectors(student, monkeypatch):
    monkeypatch.setattr(OPTIMIZER, "weight_decay", 0.3)
    found = train(student()).state_dict()
    monkeypatch.setattr(loop, "only_used_words", lambda *_: contextlib.nullcontext())
    expected = train(student()).state_dict()
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-3, atol=1e-5, msg=name)
    words = next(name for name in expected if name.endswith("word_embeddings.weight"))
    unused = np.setdiff1d(np.arange(50), np.concatenate(examples().input_ids))
    before = student().state_dict()[words][unused]
    assert (found[words][unused].abs() < 0.95 * before.abs() + 1e-9).all()  # the decay is visible


def test_only_used_vectors_train_and_padding_has_no_gradient():
    config = replace(STUDENT, pad_token_id=3)
    model, batches = classifier(config, seed=1), Batches(examples(4), batch_size=2, seed=0)
    expected = copy.deepcopy(model).eval()
    full = model.bert.embeddings.word_embeddings
    used = sorted({0, 3, *np.concatenate(batches.rows.input_ids).tolist()})
    with only_used_words(model, batches, iter([])):
        reduced = model.bert.embeddings.word_embeddings
        assert len(reduced.weight) == len(used) < 50
        ids = torch.tensor([[used[-1], 3]])
        assert torch.equal(reduced(ids), full(ids))
        wide, spec = batches.rows.batch([0, 1]).padded_to(20), OutputSpec(hidden=frozenset({0}))
        assert torch.equal(model.eval()(wide, spec).hidden[0], expected(wide, spec).hidden[0])
        reduced(ids).sum().backward()
        assert reduced.weight.grad.sum(dim=1).tolist() == [0.0] * (len(used) - 1) + [12.0]
    assert model.bert.embeddings.word_embeddings is full


def test_an_interrupted_training_leaves_all_vectors():
    model, batches = classifier(seed=1), Batches(examples(4), batch_size=2, seed=0)
    full = model.bert.embeddings.word_embeddings
    before = full.weight.clone()
    with pytest.raises(KeyboardInterrupt), only_used_words(model, batches, iter([0.5])):
        raise KeyboardInterrupt
    assert model.bert.embeddings.word_embeddings is full
    assert torch.equal(full.weight, before)
