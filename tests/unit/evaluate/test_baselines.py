"""Linear baselines on rows whose answer is known."""

import numpy as np
import pytest
import torch

from tests.support.builders import TEACHER, classifier
from tinybert.config.tasks import TASKS, Task
from tinybert.data.encoding import Encoded
from tinybert.evaluate.baselines import (
    STRENGTHS,
    LinearModel,
    static_embeddings,
    static_features,
    tfidf_features,
)
from tinybert.models.outputs import Batch, OutputSpec

CLS, SEP = 1, 2


def rows(texts: list[tuple[list[int], ...]], labels: list) -> Encoded:
    ids = [np.array([CLS, *text[0], SEP, *(text[1] + [SEP] if len(text) > 1 else [])]) for text in texts]
    types = [np.array([0] * (len(text[0]) + 2) + [1] * (len(one) - len(text[0]) - 2))
             for text, one in zip(texts, ids, strict=True)]  # fmt: skip
    return Encoded(ids, types, np.array(labels))


@pytest.fixture
def teacher():
    torch.manual_seed(0)
    return classifier(TEACHER).eval()


def test_tfidf_reads_tokens_and_pairs_but_not_special_tokens():
    """Tokens 5, 6 and the pair (5, 6) are in both texts, so idf is 1; 7 and (6, 7) in one: idf = 1 + ln(3 / 2)."""
    train = rows([([5, 6],), ([5, 6, 7],)], [0, 1])
    features = tfidf_features(train, TASKS["cola"]).transform(train).toarray()
    rare = 1 + np.log(3 / 2)
    assert np.sort(features[0]) == pytest.approx([0, 0, *[3**-0.5] * 3])
    assert np.sort(features[1]) == pytest.approx(np.array([1, 1, 1, rare, rare]) / (3 + 2 * rare**2) ** 0.5)


def test_of_too_many_features_the_most_frequent_are_kept(monkeypatch):
    monkeypatch.setattr("tinybert.evaluate.baselines.MOST_COEFFICIENTS", 4)
    train = rows([([5, 6],), ([5, 7],), ([5],)], [0, 1, 0])
    features = tfidf_features(train, TASKS["cola"]).transform(train).toarray()
    assert features.shape == (3, 2) and (features > 0).all(axis=0).tolist().count(True) == 1  # of two classes: token 5


def test_features_of_a_pair_include_difference_and_product():
    """Of the four texts, all hold 6; the pair has one token in common."""
    train = rows([([6], [6]), ([6], [6, 7])], [0, 1])
    features = tfidf_features(train, TASKS["mrpc"]).transform(train).toarray()
    first, second, difference, product = np.split(features, 4, axis=1)
    assert np.allclose(difference, abs(first - second)) and np.allclose(product, first * second)
    assert np.allclose(difference[0], 0) and difference[1].max() > 0
    assert first[1].max() == 1 and np.count_nonzero(second[1]) == 3


def test_static_embeddings_keep_the_distances_of_single_tokens(teacher):
    """All components are kept here, so PCA only turns and centers the top hidden states."""
    found, top = static_embeddings(teacher, CLS, SEP), teacher.config.num_hidden_layers
    states = []
    for token in (7, 9):
        ids = torch.tensor([[CLS, token, SEP]])
        batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids))
        states.append(teacher(batch, OutputSpec(hidden=frozenset({top}), logits=False)).hidden[top][1])
    assert found.shape == (teacher.config.vocab_size, teacher.config.hidden_size)
    assert np.linalg.norm(found[7] - found[9]) == pytest.approx(torch.dist(*states).item(), rel=1e-4)
    assert np.allclose(found.mean(axis=0), 0, atol=1e-5)


@pytest.mark.parametrize("pair", [False, True])
def test_a_text_is_the_standardized_weighted_mean_of_its_tokens(teacher, pair):
    """Token 5 is three quarters of the training text, 6 a quarter; 7 is new and weighs 1."""
    embeddings = static_embeddings(teacher, CLS, SEP)
    train = rows([([5, 5], [5, 6]), ([6, 5], [5, 5])] if pair else [([5, 5],), ([5, 6],)], [0, 1])
    weight = {5: 1e-4 / (1e-4 + 0.75), 6: 1e-4 / (1e-4 + 0.25), 7: 1.0}

    def mean(*tokens: int) -> np.ndarray:
        return sum(weight[token] * embeddings[token] for token in tokens) / max(len(tokens), 1)

    def joined(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.concatenate([first, second, abs(first - second), first * second])

    if pair:
        seen = np.stack([joined(mean(5, 5), mean(5, 6)), joined(mean(6, 5), mean(5, 5))])
        new, wanted = rows([([5, 7], [7])], [0]), joined(mean(5, 7), mean(7))
    else:
        seen = np.stack([mean(5, 5), mean(5, 6)])
        new, wanted = rows([([5, 7],)], [0]), mean(5, 7)
    # In the pairs, 5 is six of eight tokens and 6 two: the same shares.
    scale = np.where(seen.std(axis=0) > 0, seen.std(axis=0), 1)
    found = static_features(train, teacher, pair=pair).transform(new)[0]
    kept = seen.std(axis=0) > 1e-9
    assert found[kept] == pytest.approx(((wanted - seen.mean(axis=0)) / scale)[kept], rel=1e-3)


def test_the_linear_model_learns_what_a_token_decides():
    generator = np.random.default_rng(0)
    texts = [([*generator.integers(5, 15, size=6).tolist(), 3 + label],) for label in [0, 1] * 45]
    train, new = rows(texts[:60], [0, 1] * 30), rows(texts[60:], [0, 1] * 15)
    predicted = LinearModel(TASKS["cola"], tfidf_features(train, TASKS["cola"]), train).predict(new)
    assert predicted.dtype == np.int64 and predicted.tolist() == [0, 1] * 15


def test_a_regression_predicts_scores():
    """The score is the number of tokens that the second text has of one kind."""
    counts = [count % 6 for count in range(90)]
    texts = [([5], [6] * count + [7] * (5 - count)) for count in counts]
    train, new = (rows(texts[part], np.array(counts[part], dtype=np.float32)) for part in (slice(60), slice(60, 90)))
    predicted = LinearModel(TASKS["stsb"], tfidf_features(train, TASKS["stsb"]), train).predict(new)
    assert predicted.dtype == np.float32 and np.corrcoef(predicted, new.gold)[0, 1] > 0.95


def test_cross_validation_chooses_by_the_headline_metric():
    """Without regularization the model finds the rare class; accuracy alone would accept the majority class."""
    labels = ([0] + [1] * 9) * 12
    texts = [([5 if label else 6, 7, 8, 9],) for label in labels]
    train = rows(texts, labels)
    model = LinearModel(TASKS["cola"], tfidf_features(train, TASKS["cola"]), train)
    assert model.model.best_params_["C"] > min(STRENGTHS)
    assert (model.predict(train) == labels).all()


def test_a_class_with_one_row_can_be_fitted():
    train = rows([([5 + number % 3],) for number in range(12)], [1] + [0] * 11)
    predicted = LinearModel(TASKS["sst2"], tfidf_features(train, TASKS["sst2"]), train).predict(train)
    assert predicted.tolist().count(0) >= 11


def test_costs_of_tfidf_are_coefficients_and_nonzero_features():
    """Tokens 5 to 7 and the pairs (5, 6), (6, 5), (5, 7), (7, 5) are six features at most in a row."""
    train = rows([([5, 6, 5],), ([5, 7, 5],)] * 6, [0, 1] * 6)
    model = LinearModel(TASKS["cola"], tfidf_features(train, TASKS["cola"]), train)
    # 7 coefficients and an intercept; 4 features of the first row, 1 of the second
    assert model.costs(rows([([5, 6, 5],), ([7, 9],)], [0, 1])) == {"parameters": 8, "flops": 2 * (4 + 1) / 2}


def test_costs_of_static_embeddings_are_table_and_means(teacher):
    train = rows([([5, 6], [5]), ([7], [7, 8])] * 6, [0, 1] * 6)
    model = LinearModel(TASKS["mrpc"], static_features(train, teacher, pair=True), train)
    found = model.costs(rows([([5, 6], [5]), ([7], [7, 8, 9, 10])], [0, 1]))
    vocabulary, width = teacher.config.vocab_size, teacher.config.hidden_size
    # the features of a pair are 4 × the width; its texts have 3 and 5 tokens
    assert found["parameters"] == vocabulary * width + 4 * width + 1
    assert found["flops"] == 2 * 4 * width + 4 * width


def test_each_class_has_its_coefficients():
    train = rows([([5 + label], [8]) for label in [0, 1, 2] * 6], [0, 1, 2] * 6)
    model = LinearModel(TASKS["mnli"], tfidf_features(train, TASKS["mnli"]), train)
    # 4 tokens and no pairs: 16 features of 3 classes; of each row both texts and both sides of the difference
    assert model.costs(train) == {"parameters": 3 * 16 + 3, "flops": 2 * 4 * 3}


def test_each_label_of_several_has_its_model():
    task = Task("tags", ("text",), ("a", "b", "none"), "tags", ("micro_f1",), kind="multilabel")
    gold = np.array([[number % 2, number % 3 == 0, 0] for number in range(60)], dtype=np.float32)
    train = rows([([5 + int(a), 7 + int(b)],) for a, b, _ in gold], gold)
    model = LinearModel(task, tfidf_features(train, task), train)
    predicted = model.predict(train)
    assert predicted.dtype == np.int64 and np.array_equal(predicted, gold)
    assert model.costs(train)["parameters"] == 2 * (8 + 1)  # 4 tokens, 4 pairs; no row has the third label


def test_classes_with_fewer_rows_than_folds():
    labels = [*[0, 1] * 10, 2]
    train = rows([([5 + label, 9],) for label in labels], labels)
    model = LinearModel(TASKS["mnli"], tfidf_features(train, TASKS["cola"]), train)
    assert model.predict(train).tolist()[:20] == labels[:20]
