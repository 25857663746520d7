"""What models answered, row by row: the material of paired comparisons between experiments."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tinybert.evaluate.scoring import METRICS
from tinybert.pipeline.files import atomic_file


@dataclass(frozen=True)
class Predictions:
    """Answers to the rows of a split; their score is `metric` of both.

    metric: a GLUE metric, or `perplexity`, for which a row is a block of text, its label the number of its masked
    tokens and its prediction the sum of their cross-entropies (nats). labels, predictions: (rows,) each.
    """

    metric: str
    labels: np.ndarray
    predictions: np.ndarray

    @property
    def score(self) -> float:
        return ROW_METRICS[self.metric](self.predictions, self.labels)


def perplexity(cross_entropies: np.ndarray, tokens: np.ndarray) -> float:
    """exp of the mean cross-entropy over all tokens, of sums (blocks,) and numbers of tokens (blocks,)."""
    return float(np.exp(cross_entropies.sum() / tokens.sum()))


ROW_METRICS = METRICS | {"perplexity": perplexity}
LOWER_IS_BETTER = ("perplexity",)


def save_predictions(path: str | Path, systems: Mapping[str, Predictions]) -> None:
    """Writes the answers of several systems as JSON, six digits of what is no whole number."""
    tree = {
        name: {"metric": found.metric, "labels": _plain(found.labels), "predictions": _plain(found.predictions)}
        for name, found in systems.items()
    }
    with atomic_file(path) as handle:
        json.dump(tree, handle, allow_nan=False)


def read_predictions(text: str) -> dict[str, Predictions]:
    """What save_predictions wrote."""
    return {
        name: Predictions(found["metric"], np.array(found["labels"]), np.array(found["predictions"]))
        for name, found in json.loads(text).items()
    }


def _plain(values: np.ndarray) -> list[int] | list[float]:
    if np.issubdtype(values.dtype, np.integer):
        return values.tolist()
    return [float(f"{value:.6g}") for value in values]
