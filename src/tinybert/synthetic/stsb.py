"""Similarity: two tellings of an event, scored 0 to 5 by the details that they share.

The rule: every detail has a weight, the weights of a kind of event add up to 5, and the score is the sum that counts.
A detail counts fully when both sentences mean the same (synonyms do) or both are silent on it; half when the two are
related (another kind of the same thing, another day, the same two people in swapped roles) or one sentence is silent;
not at all otherwise. Events of two kinds (somebody did something, dealt with somebody, a price changed) score 0.
"""

from collections.abc import Mapping
from random import Random
from typing import NamedTuple

from tinybert.synthetic.grammar import pick, sentence, with_articles
from tinybert.synthetic.lexicon import MONTHS, NAMES, NUMBERS, TOWNS
from tinybert.synthetic.retellings import GOODS
from tinybert.synthetic.scenes import DEALINGS, DEEDS, ROLES, THINGS, TIMES, synonym


class Detail(NamedTuple):
    """What a sentence says on one point. Details of one family are related; an empty family has no relations."""

    meaning: str
    family: str
    text: str


Telling = Mapping[str, Detail]  # what a sentence is silent on is not there

WEIGHTS = {
    "scene": {"deed": 1.5, "who": 1.0, "thing": 1.0, "amount": 0.5, "town": 0.5, "time": 0.5},
    "dealing": {"deed": 1.5, "who": 1.0, "whom": 1.0, "town": 1.0, "time": 0.5},
    "price": {"goods": 1.5, "direction": 1.5, "percent": 1.0, "month": 0.5, "town": 0.5},
}
PASSIVE_SHARE = 0.2
TIME_FIRST_SHARE = 0.2
KINDS = ("scene", "scene", "dealing", "price")
# Of the pairs whose kinds differ, those that are kept as they are; the others become two tellings of one event.
UNRELATED_SHARE = 0.3
OPTIONAL = ("town", "time", "month")


def similarity(first: Telling, second: Telling, weights: Mapping[str, float]) -> float:
    """The score of the rule above, 0.0 to 5.0."""
    return sum(weight * credit(first.get(name), second.get(name)) for name, weight in weights.items())


def credit(first: Detail | None, second: Detail | None) -> float:
    """1 for the same meaning (or twice silence), 0.5 for related meanings or one silence, else 0."""
    if first is None or second is None:
        return 1.0 if first is second else 0.5
    if first.meaning == second.meaning:
        return 1.0
    return 0.5 if first.family and first.family == second.family else 0.0


def _actions(rows: tuple) -> tuple[Detail, ...]:
    """From rows of (word, synonym, related word): the first two mean the same."""
    return tuple(
        Detail(meaning, word, text)
        for word, synonym_, related in rows
        for meaning, text in ((word, word), (word, synonym_), (related, related))
    )


def _plain(family: str, words: tuple[str, ...]) -> tuple[Detail, ...]:
    return tuple(Detail(word, family, word) for word in words)


# Short lists: a small model has to learn from some thousand pairs which words are alike.
_PEOPLE = _plain("", NAMES[6:14] + tuple(f"the {role}" for role in ROLES[:6]))
_TOWNS = _plain("", TOWNS[:6])
_TIMES = tuple(Detail(time, time.split()[0], time) for time in TIMES)
# All that a sentence can say on each point.
CHOICES = {
    "scene": {
        "who": _PEOPLE,
        "deed": _actions(DEEDS[:6]),
        "thing": _actions(tuple(tuple(forms[0] for forms in row) for row in THINGS[:6])),
        "amount": (Detail("one", "one", "one"), *_plain("several", NUMBERS[:6])),
        "town": _TOWNS,
        "time": _TIMES,
    },
    "dealing": {"who": _PEOPLE, "deed": _actions(DEALINGS), "whom": _PEOPLE, "town": _TOWNS, "time": _TIMES},
    "price": {
        "goods": _plain("", GOODS[:6]),
        "direction": (
            Detail("up", "", "rose"),
            Detail("up", "", "went up"),
            Detail("down", "", "fell"),
            Detail("down", "", "went down"),
        ),
        "percent": _plain("number", NUMBERS[:6]),
        "month": _plain("month", MONTHS[:6]),
        "town": _TOWNS,
    },
}
_PLURALS = {singular: plural for row in THINGS for singular, plural in row}


def example(rng: Random) -> dict[str, str | float]:
    """One pair and its score, as the columns of STS-B."""
    kind, other_kind = pick(rng, *KINDS), pick(rng, *KINDS)
    first = _telling(kind, rng)
    if kind != other_kind and rng.random() < UNRELATED_SHARE:
        second, score = _telling(other_kind, rng), 0.0
    else:
        other_kind, second = kind, _variant(kind, first, rng)
        if kind == "dealing":
            first, second = _with_pair(first), _with_pair(second)
        score = similarity(first, second, WEIGHTS[kind])
    texts = [_WORDINGS[kind](first, rng), _WORDINGS[other_kind](second, rng)]
    if other_kind != "price":  # "a dozen percent" is no English
        texts[1] = synonym(texts[1], rng)
    sentence1, sentence2 = (sentence(with_articles(text)) for text in texts)
    return {"sentence1": sentence1, "sentence2": sentence2, "label": score}


def _telling(kind: str, rng: Random) -> Telling:
    told = {name: rng.choice(details) for name, details in CHOICES[kind].items()}
    for name in OPTIONAL:
        if name in told and rng.random() < 0.3:
            del told[name]
    if kind == "dealing":
        told["whom"] = _other(CHOICES[kind]["whom"], told["who"], rng)
    return told


def _variant(kind: str, first: Telling, rng: Random) -> Telling:
    """Another telling, which leaves the first one's details with a chance that is itself drawn."""
    change = rng.random()
    varied = ((name, _vary(name, kind, first.get(name), change, rng)) for name in CHOICES[kind])
    second = {name: detail for name, detail in varied if detail}
    if kind == "dealing" and (second["who"].meaning == second["whom"].meaning or rng.random() < 0.2):
        second["who"], second["whom"] = first["whom"], first["who"]
    return second


def _vary(name: str, kind: str, detail: Detail | None, change: float, rng: Random) -> Detail | None:
    choices = CHOICES[kind][name]
    if rng.random() >= change:
        # The same meaning, perhaps in another word.
        return detail and rng.choice([choice for choice in choices if choice.meaning == detail.meaning])
    if name in OPTIONAL and rng.random() < 0.3:
        return None
    related = [choice for choice in choices if detail and credit(detail, choice) == 0.5]
    return rng.choice(related) if related and rng.random() < 0.5 else _other(choices, detail, rng)


def _other(choices: tuple[Detail, ...], taken: Detail | None, rng: Random) -> Detail:
    return rng.choice([choice for choice in choices if taken is None or choice.meaning != taken.meaning])


def _with_pair(told: Telling) -> Telling:
    """The two people of a dealing made one family, so that swapped roles count as related."""
    pair = "+".join(sorted((told["who"].meaning, told["whom"].meaning)))
    return {**told, "who": told["who"]._replace(family=pair), "whom": told["whom"]._replace(family=pair)}


def _town(told: Telling) -> str:
    return f" in {told['town'].text}" if "town" in told else ""


def _word_scene(told: Telling, rng: Random) -> str:
    who, deed, thing = told["who"].text, told["deed"].text, told["thing"].text
    one = told["amount"].meaning == "one"
    object_ = f"a {thing}" if one else f"{told['amount'].text} {_PLURALS[thing]}"
    return _active_or_passive((who, deed, object_), "was" if one else "were", told, rng)


def _word_dealing(told: Telling, rng: Random) -> str:
    return _active_or_passive((told["who"].text, told["deed"].text, told["whom"].text), "was", told, rng)


def _active_or_passive(parts: tuple[str, str, str], was: str, told: Telling, rng: Random) -> str:
    who, deed, object_ = parts
    wording = f"{object_} {was} {deed} by {who}" if rng.random() < PASSIVE_SHARE else f"{who} {deed} {object_}"
    if "time" not in told:
        return wording + _town(told)
    time = told["time"].text
    is_first = rng.random() < TIME_FIRST_SHARE
    return f"{time} {wording}{_town(told)}" if is_first else f"{wording}{_town(told)} {time}"


def _word_price(told: Telling, rng: Random) -> str:
    core = f"the price of {told['goods'].text}{_town(told)} {told['direction'].text} by {told['percent'].text} percent"
    if "month" not in told:
        return core
    return pick(rng, f"{core} in {told['month'].text}", f"in {told['month'].text} {core}")


_WORDINGS = {"scene": _word_scene, "dealing": _word_dealing, "price": _word_price}
