"""Baselines without distillation: linear models on TF-IDF features and on static embeddings from the task teacher."""

import itertools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import make_scorer
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import StandardScaler

from tinybert.config.tasks import Task
from tinybert.data.encoding import Encoded
from tinybert.evaluate.scoring import METRICS, score_by
from tinybert.models.bert import BertModel
from tinybert.models.outputs import Batch, OutputSpec, best_device

STATIC_DIMENSIONS = 256  # as Model2Vec
SMOOTHING = 1e-4  # a of the weights a / (a + p)
VOCABULARY_BATCH = 2048
FOLDS = 3
MOST_COEFFICIENTS = 10_000_000  # of a model; its training takes about 230 bytes for each
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)  # inverse strengths of the regularization to choose from

Features = Any  # (rows, features), an array or a sparse matrix


class Featurizer(NamedTuple):
    """The function that turns rows into features, and the embeddings that it reads; TF-IDF has none."""

    transform: Callable[[Encoded], Features]
    table: np.ndarray = np.empty((0, 0))  # (vocabulary, dimensions)


def tfidf_features(train: Encoded, task: Task) -> Featurizer:
    """Sublinear TF-IDF of the training rows' tokens and token pairs; the most frequent ones if there are too many."""
    pair, most = task.is_pair, MOST_COEFFICIENTS // (len(task.outputs) * (4 if task.is_pair else 1))
    vectorizer = TfidfVectorizer(
        sublinear_tf=True, max_features=most, analyzer=lambda tokens: [*zip(tokens), *itertools.pairwise(tokens)]
    )
    vectorizer.fit([text for side in _sides(train, pair) for text in side])

    def featurize(rows: Encoded) -> Features:
        sides = [sparse.csr_array(vectorizer.transform(side)) for side in _sides(rows, pair)]
        return sparse.hstack(_combined(sides), format="csr")

    return Featurizer(featurize)


def static_features(train: Encoded, teacher: BertModel, *, pair: bool) -> Featurizer:
    """Weighted means of static token embeddings (Model2Vec), standardized on the training rows.

    A token weighs a / (a + p), where p is its frequency in the training rows (Arora et al. 2017).
    """
    tokens = np.concatenate([text for side in _sides(train, pair) for text in side])
    frequency = np.bincount(tokens, minlength=teacher.config.vocab_size) / max(len(tokens), 1)
    first, last = train.input_ids[0][0], train.input_ids[0][-1]
    embeddings = static_embeddings(teacher, first, last) * (SMOOTHING / (SMOOTHING + frequency))[:, None]

    def means(rows: Encoded) -> np.ndarray:
        sides = [np.stack([embeddings[text].sum(axis=0) / max(len(text), 1) for text in side])
                 for side in _sides(rows, pair)]  # fmt: skip
        return np.hstack(_combined(sides))

    scaler = StandardScaler().fit(means(train))
    return Featurizer(lambda rows: scaler.transform(means(rows)), embeddings)


@torch.no_grad()
def static_embeddings(teacher: BertModel, first: int, last: int) -> np.ndarray:
    """Principal components of each token's top hidden state between the special tokens `first` and `last`.

    Returns:
        (vocabulary, dimensions) float32.
    """
    device, top, states = best_device(), teacher.config.num_hidden_layers, []
    teacher.to(device).eval()
    for tokens in torch.arange(teacher.config.vocab_size).split(VOCABULARY_BATCH):
        ids = torch.stack([torch.full_like(tokens, first), tokens, torch.full_like(tokens, last)], dim=1)
        batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids)).to(device)
        hidden = teacher(batch, OutputSpec(hidden=frozenset({top}), logits=False)).hidden[top]  # (tokens, width)
        states.append(hidden.view(*ids.shape, -1)[:, 1].cpu())
    found = torch.cat(states).numpy()
    return PCA(min(STATIC_DIMENSIONS, *found.shape), random_state=0).fit_transform(found)


class LinearModel:
    """A linear model whose regularization is chosen by the headline metric in cross-validation on its training rows.

    Ridge regression for a regression task, else logistic regression, of each label for a multilabel one.
    """

    def __init__(self, task: Task, featurizer: Featurizer, train: Encoded) -> None:
        self.featurizer, self.task = featurizer, task
        if task.is_regression:
            model, kind, grid = Ridge(), KFold, {"alpha": [1 / strength for strength in STRENGTHS]}
        elif task.is_multilabel:
            model, kind = OneVsRestClassifier(LogisticRegression(max_iter=1000)), KFold
            grid = {"estimator__C": list(STRENGTHS)}
        else:
            kind = KFold if np.unique(train.gold, return_counts=True)[1].min() < FOLDS else StratifiedKFold
            model, grid = LogisticRegression(max_iter=1000), {"C": list(STRENGTHS)}
        metric = make_scorer(lambda gold, predicted: score_by(METRICS[task.headline], predicted, gold))
        folds = kind(FOLDS, shuffle=True, random_state=0)
        gold = train.gold.astype(np.int64) if task.is_multilabel else train.gold
        with warnings.catch_warnings():  # of labels and classes that no row of a fold has
            warnings.simplefilter("ignore")
            # If one fold holds all rows of a class, the fit on the others may fail, with every strength. A score of 0
            # for all of them leaves their order unchanged.
            search = GridSearchCV(model, grid, scoring=metric, cv=folds, error_score=0.0)
            self.model = search.fit(featurizer.transform(train), gold)

    def predict(self, rows: Encoded) -> np.ndarray:
        """(rows,) int64 classes or float32 scores, or (rows, labels) int64 0 and 1."""
        predicted = self.model.predict(self.featurizer.transform(rows))
        return predicted.astype(np.float32 if self.task.is_regression else np.int64)

    def costs(self, rows: Encoded) -> dict[str, float]:
        """Parameters (coefficients, intercepts, embedding table), and mean FLOPs of a row, 2 per multiply-add.

        Counted are the nonzero features times the outputs, and the additions of static embeddings of the tokens without
        [CLS] and [SEP], 1 each; TF-IDF's vocabulary and weights, the scaling and the features of pairs are not.
        """
        fitted, table = self.model.best_estimator_, self.featurizer.table
        # A label that no training row has, or that all have, has no coefficients.
        linear = [model for model in getattr(fitted, "estimators_", [fitted]) if hasattr(model, "coef_")]
        outputs = sum(np.atleast_2d(model.coef_).shape[0] for model in linear)
        nonzero = sparse.csr_array(self.featurizer.transform(rows)).nnz / len(rows)
        tokens = rows.lengths.mean() - (3 if self.task.is_pair else 2)
        parameters = sum(model.coef_.size + np.size(model.intercept_) for model in linear) + table.size
        return {"parameters": parameters, "flops": float(2 * nonzero * outputs + tokens * table.shape[1])}


def _sides(rows: Encoded, pair: bool) -> list[list[np.ndarray]]:
    """The tokens of the first texts and, for pairs, of the second texts, without [CLS] and [SEP]."""
    lengths = [int((segments == 0).sum()) for segments in rows.token_type_ids]
    first = [ids[1 : length - 1] for ids, length in zip(rows.input_ids, lengths, strict=True)]
    second = [ids[length:-1] for ids, length in zip(rows.input_ids, lengths, strict=True)]
    return [first, second] if pair else [first]


def _combined(sides: list) -> list:
    """The features of a text; of a pair a, b, |a - b| and a⊙b."""
    return [*sides, abs(sides[0] - sides[1]), sides[0] * sides[1]] if len(sides) > 1 else sides
