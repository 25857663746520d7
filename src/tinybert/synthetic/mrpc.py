"""Paraphrase: two sentences that mean the same (1), or share most words and do not (0)."""

from random import Random

from tinybert.synthetic.grammar import sentence, two, with_articles
from tinybert.synthetic.retellings import RETELLINGS
from tinybert.synthetic.scenes import changed, scene, synonym

# Scenes have many more tellings than the other statements, so they are drawn more often.
SCENE_SHARE = 0.5
DENIALS = ("it is not true that", "it is false that")
# Of the pairs that differ, and of those that mean the same: one sentence denied, or both.
DENIED_ONCE = 0.35
DENIED_TWICE = 0.2


def example(rng: Random, same: bool) -> dict[str, str]:
    """One pair of the wanted kind, as the text columns of MRPC."""
    kind = _scenes if rng.random() < SCENE_SHARE else _statements
    if same:
        first, second = kind(rng, True)
        if rng.random() < DENIED_TWICE:
            first, second = (f"{rng.choice(DENIALS)} {text}" for text in (first, second))
    elif rng.random() < DENIED_ONCE:
        first, second = kind(rng, True)
        if rng.randrange(2):
            second = f"{rng.choice(DENIALS)} {second}"
        else:
            first = f"{rng.choice(DENIALS)} {first}"
    else:
        first, second = kind(rng, False)
    return {"sentence1": sentence(with_articles(first)), "sentence2": sentence(with_articles(second))}


def _scenes(rng: Random, same: bool) -> tuple[str, str]:
    event = scene(rng)
    again = event if same else changed(event, rng)
    # A false copy is retold as freely as a true one; else the number of shared words would give it away.
    retold = again.in_synonyms(rng) if same or rng.random() < 0.5 else again
    return event.told(rng), synonym(retold.told(rng), rng)


def _statements(rng: Random, same: bool) -> tuple[str, str]:
    equal, unequal = rng.choice(RETELLINGS)(rng)
    return two(rng, equal) if same else (rng.choice(equal), rng.choice(unequal))
