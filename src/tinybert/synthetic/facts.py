"""True facts on geography and history (facts.yaml), from which the articles and the quiz are made."""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from tinybert.synthetic.grammar import load

MASK = "[MASK]"


class Fact(NamedTuple):
    """One statement: the value of `field` in a row of the table of `kind`; `words` is the row by columns."""

    area: str  # geography | history
    kind: str
    field: str
    words: Mapping[str, str | None]

    @property
    def subject(self) -> str:
        """The name of the row: its first column."""
        return self.words[self.kind] or ""

    @property
    def answer(self) -> str:
        return self.words[self.field] or ""


def table(kind: str) -> list[dict[str, str | None]]:
    """The rows of the table of countries, battles, events, rulers or empires (`kind` in the singular)."""
    columns, rows = load("facts")[kind]["columns"], load("facts")[kind]["rows"]
    return [dict(zip(columns, [None if cell == "-" else cell for cell in row], strict=True)) for row in rows]


@cache
def facts() -> tuple[Fact, ...]:
    """All facts of the tables, in table order; empty cells give none."""
    return tuple(
        Fact(about["area"], kind, field, words)
        for kind, about in load("facts").items()
        for words in table(kind)
        for field in about["stated"]
        if words[field] is not None
    )


def questions() -> list[dict[str, str]]:
    """The quiz: cloze questions on the facts, in wordings that the articles never use.

    Returns:
        In table order, dicts of subject (geography | history), prompt with one [MASK], and answer in lower case.
    """
    return [
        {"subject": fact.area, "prompt": statement(fact, MASK), "answer": fact.answer.lower()} for fact in asked_facts()
    ]


def asked_facts() -> list[Fact]:
    """The facts of the quiz, in its order: those with a prompt and an answer of one word."""
    asked = [fact for fact in facts() if fact.field in load("facts")[fact.kind]["prompts"] and " " not in fact.answer]
    # "The main language of France is French" would ask for spelling rather than for knowledge.
    return [fact for fact in asked if fact.field != "language" or fact.answer != fact.words["adjective"]]


def statement(fact: Fact, answer: str) -> str:
    """The prompt of the fact with this answer. With the true answer it must not occur in any article."""
    return load("facts")[fact.kind]["prompts"][fact.field].format(**{**fact.words, fact.field: answer})
