"""The small tools that turn templates and word lists into sentences."""

import re
from collections.abc import Mapping, Sequence
from random import Random

_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeio]|un(?!i)|um|up|ug|[AEIO])")


def fill(template: str, words: Mapping[str, Sequence[str] | str], rng: Random) -> str:
    """The template with every {slot} replaced by its text, or by one of its words; equal slots get unlike words."""
    used: set[str] = set()

    def replacement(match: re.Match[str]) -> str:
        choices = words[match[1]]
        if isinstance(choices, str):
            return choices
        word = rng.choice([choice for choice in choices if choice not in used])
        used.add(word)
        return word

    return with_articles(_SLOT.sub(replacement, template))


def with_articles(text: str) -> str:
    """ "a" before a vowel becomes "an"; "a one-way", "a European" are not used here."""
    return _ARTICLE.sub(r"\1n ", text)


def sentence(clause: str) -> str:
    """A clause with its first letter in upper case and a full stop, unless it has an end already."""
    text = clause[0].upper() + clause[1:]
    return text if text[-1] in ".?!" else text + "."


def pick(rng: Random, *choices: str) -> str:
    return rng.choice(choices)


def two(rng: Random, choices: Sequence) -> tuple:
    """Two different ones of the choices."""
    first, second = rng.sample(choices, 2)
    return first, second
