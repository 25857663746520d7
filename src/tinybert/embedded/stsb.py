"""Similarity: two tellings of an event, scored 0 to 5 by the details that they share.

The rule: every detail has a weight, and the weights of a kind of event add up to 5. A detail counts fully when both
sentences mean the same (synonyms do) or both are silent on it, half when the two are related (another kind of the same
thing, another day, the same two people in swapped roles) or one sentence is silent, and not at all otherwise. The score is the sum.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import NamedTuple

from tinybert.embedded.grammar import sentence, two, with_articles
from tinybert.embedded.lexicon import DAYS, MONTHS, NUMBERS, TOWNS
from tinybert.embedded.retellings import GOODS
from tinybert.embedded.scenes import DEALINGS, DEEDS, THINGS, other, person, synonym


class Detail(NamedTuple):
    """What a sentence says on one point: `family` groups the meanings that are related; none where it is empty."""

    meaning: str
    family: str
    text: str


Telling = Mapping[str, Detail | None]

WEIGHTS = {
    "scene": {"deed": 1.5, "who": 1.0, "thing": 1.0, "amount": 0.5, "town": 0.5, "time": 0.5},
    "dealing": {"deed": 1.5, "who": 1.0, "whom": 1.0, "town": 0.75, "time": 0.75},
    "price": {"goods": 1.5, "direction": 1.5, "percent": 1.0, "month": 1.0},
}
# A price always needs its numbers; a scene may leave these out.
OPTIONAL = ("town", "time")


def similarity(first: Telling, second: Telling, weights: Mapping[str, float]) -> float:
    """The score of the rule above, 0.0 to 5.0."""
    return sum(weight * credit(first[name], second[name]) for name, weight in weights.items())


def credit(first: Detail | None, second: Detail | None) -> float:
    """1 for the same meaning (or twice silence), 0.5 for related meanings or one silence, else 0."""
    if first is None or second is None:
        return 1.0 if first is second else 0.5
    if first.meaning == second.meaning:
        return 1.0
    return 0.5 if first.family and first.family == second.family else 0.0


def _deed(rows: tuple, rng: Random, row: tuple | None = None) -> Detail:
    row = row or rng.choice(rows)
    word = rng.choice(row)
    return Detail(row[2] if word == row[2] else row[0], row[0], word)


def _thing(rng: Random, plural: bool) -> Detail:
    row = rng.choice(THINGS)
    forms = rng.choice(row)
    return Detail((row[2] if forms is row[2] else row[0])[0], row[0][0], forms[plural])


def _plain(family: str, choices: tuple[str, ...], rng: Random) -> Detail:
    word = rng.choice(choices)
    return Detail(word, family, word)


def _variant(row_of: tuple, detail: Detail) -> tuple:
    return next(row for row in row_of if row[0] == detail.family)
