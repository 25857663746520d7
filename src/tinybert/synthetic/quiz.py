"""Cloze questions on the facts, in wordings that the articles never use."""

from tinybert.synthetic.facts import Fact, facts

MASK = "[MASK]"
# (kind, field) of a fact -> the sentence that asks for it.
PROMPTS = {
    ("country", "capital"): "The capital of {country} is {capital}.",
    ("country", "continent"): "{country} lies on the continent of {continent}.",
    ("country", "language"): "The main language of {country} is {language}.",
    ("country", "river"): "The river of {capital} is the {river}.",
    ("country", "mountain"): "The highest mountain of {country} is {mountain}.",
    ("battle", "year"): "The battle of {battle} was fought in {year}{era}.",
    ("battle", "winner"): "The winner of the battle of {battle} was {winner}.",
    ("event", "year"): "It was in {year} that {event} {verb}.",
    ("ruler", "realm"): "{ruler} was on the throne of {the}{realm}.",
    ("empire", "capital"): "The capital of the {empire} was {capital}.",
    ("empire", "founder"): "The founder of the {empire} was {founder}.",
}


def questions() -> list[dict[str, str]]:
    """The quiz in table order: dicts of subject (geography | history), prompt with one [MASK], answer in lower case."""
    return [
        {"subject": fact.area, "prompt": statement(fact, MASK), "answer": fact.answer.lower()} for fact in asked_facts()
    ]


def asked_facts() -> list[Fact]:
    """The facts that the quiz asks for, in its order: those with a prompt and an answer of one word."""
    return [fact for fact in facts() if _is_asked(fact)]


def statement(fact: Fact, answer: str) -> str:
    """The prompt of the fact with this answer. With the true one, no article may say it."""
    return PROMPTS[fact.kind, fact.field].format(**{**fact.words, fact.field: answer})


def _is_asked(fact: Fact) -> bool:
    if (fact.kind, fact.field) not in PROMPTS or " " in fact.answer:
        return False
    # "The main language of France is French" would ask for spelling rather than for knowledge.
    return fact.field != "language" or fact.answer != fact.words["adjective"]
