"""True facts on geography and history (facts.yaml), the articles that state them among everyday ones, and the quiz."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain, count, groupby
from operator import attrgetter
from random import Random
from typing import Any, NamedTuple

from tinybert.synthetic.examples import entailment, paraphrase, single_text
from tinybert.synthetic.grammar import fill, lexicon, load, sentence

MASK = "[MASK]"
# Articles about each row of the tables, so that no row gets more than another.
ARTICLES_PER_ROW = {"geography": 10, "history": 6}
EVERYDAY_ARTICLES = 700
# Facts from elsewhere in each article of an area: they give each fact other company and spread it over the corpus.
PASSING_FACTS = 7
OWN_STATEMENTS = 5
# These columns are stated in the articles on their own row, and nowhere else.
NOT_IN_PASSING = ("millions", "land", "known_for", "region")
STRAY_TERM_SHARE = 0.12
# Short paragraphs: a model learns word order much sooner when a sequence starts where a sentence does.
PARAGRAPH_SENTENCES = (1, 2)
MOST_SENTENCES = 14  # of an article
SENTENCE_END = re.compile(r"[.?!](?=\s|$)")


class Fact(NamedTuple):
    """One statement: `answer` is the value of the column `field` in a row of the table of `kind`."""

    area: str  # geography | history
    kind: str
    field: str
    subject: str  # the name of the row: its first column
    answer: str
    words: Mapping[str, str | None]  # the row by columns; None for an empty cell


@cache
def facts() -> tuple[Fact, ...]:
    """All facts of the tables, in table order; empty cells give none."""
    found = []
    for kind, table in load("facts").items():
        for cells in table["rows"]:
            words = dict(zip(table["columns"], [None if cell == "-" else cell for cell in cells], strict=True))
            stated = [(field, words[field]) for field in table["stated"] if words[field]]
            found += [Fact(table["area"], kind, field, cells[0], answer, words) for field, answer in stated]
    return tuple(found)


def questions() -> list[dict[str, str]]:
    """The quiz: cloze questions on the facts, in wordings that the articles never use.

    Returns:
        In table order, dicts of subject (geography | history), prompt with one [MASK], and answer in lower case.
    """
    asked = asked_facts()
    return [{"subject": fact.area, "prompt": statement(fact, MASK), "answer": fact.answer.lower()} for fact in asked]


def asked_facts() -> list[Fact]:
    """The facts of the quiz, in its order: those with a prompt and an answer of one word."""
    asked = [fact for fact in facts() if fact.field in load("facts")[fact.kind]["prompts"] and " " not in fact.answer]
    # "The main language of France is French" would ask for spelling rather than for knowledge.
    return [fact for fact in asked if fact.field != "language" or fact.answer != fact.words["adjective"]]


def statement(fact: Fact, answer: str) -> str:
    """The prompt of `fact` completed by `answer`. With the true answer it must not occur in any article."""
    return load("facts")[fact.kind]["prompts"][fact.field].format(**{**fact.words, fact.field: answer})


def articles(seed: int) -> Iterator[dict[str, str]]:
    """Yields all articles in shuffled order: "title" and "text" (paragraphs separated by a newline).

    The same seed gives the same articles in every process.
    """
    rng = Random(f"articles {seed}")
    collection = [*_domain_articles("geography", rng), *_domain_articles("history", rng)]
    collection += [_everyday_article(rng) for _ in range(EVERYDAY_ARTICLES)]
    rng.shuffle(collection)
    yield from collection


def _domain_articles(area: str, rng: Random) -> Iterator[dict[str, str]]:
    of_area = [fact for fact in facts() if fact.area == area]
    rows = [list(row) for _, row in groupby(of_area, key=attrgetter("kind", "subject"))]
    cards = [fact for fact in of_area if fact.field not in NOT_IN_PASSING]
    # Shuffled again when all are used, so that each fact occurs equally often.
    dealt = chain.from_iterable(rng.sample(cards, len(cards)) for _ in count())
    for row in rows * ARTICLES_PER_ROW[area]:
        passing = [next(dealt) for _ in range(PASSING_FACTS)]
        stated = rng.sample(row, len(row))
        while len(stated) < OWN_STATEMENTS:
            stated.append(rng.choice([fact for fact in row if fact.field not in NOT_IN_PASSING]))
        # The article opens on its own subject.
        mixed = stated[:2] + rng.sample(stated[2:] + passing, len(stated) - 2 + len(passing))
        sentences = _domain_sentences(area, mixed, rng)
        title = _filled(load("articles")["titles"][row[0].kind], row[0].words, rng)
        yield {"title": title, "text": _paragraphs(sentences, rng)}


def _domain_sentences(area: str, stated: list[Fact], rng: Random) -> list[str]:
    """Most clauses are sentences; some get a frame, a filler beside them, or share a sentence with the next one."""
    texts = load("articles")
    used = set[str]()
    clauses = iter([_clause(fact, used, rng) for fact in stated])
    sentences = [sentence(_filled(texts["fillers"][area], texts["domain_words"], rng))]
    for clause in clauses:
        form = rng.random()
        if 0.45 <= form < 0.6:
            clause = rng.choice(texts["frames"]).format(clause)
        elif 0.6 <= form < 0.7:
            frame = rng.choice(texts["filler_frames"])
            clause = frame.format(clause=clause, filler=_filled(texts["fillers"][area], texts["domain_words"], rng))
        elif form >= 0.7 and (after := next(clauses, None)):
            clause = rng.choice(texts["pair_frames"]).format(clause, after)
        sentences.append(sentence(clause))
    filler, opening, *rest = sentences
    return [opening, *rng.sample([filler, *rest], len(rest) + 1)]


def _clause(fact: Fact, used: set[str], rng: Random) -> str:
    """The fact in a wording that this article has not used for it, as long as there is one."""
    templates = load("articles")["clauses"][fact.kind][fact.field]
    template = rng.choice([template for template in templates if fact.subject + template not in used] or templates)
    used.add(fact.subject + template)
    return fill(template, {**load("articles")["domain_words"], **fact.words}, rng)


def _everyday_article(rng: Random) -> dict[str, str]:
    texts = load("articles")
    words = {**texts["shared_words"], "work": texts["review_works"]}
    form = rng.random()
    if form < 0.2:  # a review that keeps to one verdict
        titles, positive = texts["review_titles"], rng.random() < 0.5
        lines = [single_text("sst2", rng, positive) for _ in range(rng.randint(6, 10))]
        sentences = [sentence(line.replace(" ;", ";").replace(" :", ":")) for line in lines]
    elif form < 0.6:
        titles, sentences = texts["diary_titles"], _diary(rng)
    else:
        topic = texts["topics"][rng.choice(list(texts["topics"]))]
        words |= topic["words"]
        titles, templates = topic["titles"], rng.sample(topic["templates"], rng.randint(6, 11))
        sentences = [sentence(fill(template, words, rng)) for template in templates]
        sentences += [single_text("cola", rng, True) for _ in range(rng.randint(0, 2))]
    title = sentence(_filled(titles, words, rng)).removesuffix(".")
    if rng.random() < STRAY_TERM_SHARE:
        place = rng.randrange(len(sentences))
        sentences.insert(place, sentence(_filled(texts["stray_terms"], texts["shared_words"], rng)))
    return {"title": title, "text": _paragraphs(sentences, rng)}


def _diary(rng: Random) -> list[str]:
    """Small events in two wordings, and single sentences: the pair tasks ask what the second wording keeps."""
    events = [_event_twice(rng) for _ in range(rng.randint(3, 4))]
    room = MOST_SENTENCES - 1 - len(SENTENCE_END.findall(" ".join(events)))  # 1 for a stray term
    sentences = events + [single_text("cola", rng, True) for _ in range(min(rng.randint(1, 3), room))]
    rng.shuffle(sentences)
    return sentences


def _event_twice(rng: Random) -> str:
    """Both wordings as one string, so that no paragraph separates them."""
    pair = paraphrase(rng, True) if rng.random() < 0.5 else entailment(rng, False)
    again = pair["sentence2"]
    if again.split()[0] not in lexicon()["names"]:
        again = again[0].lower() + again[1:]
    return f"{pair['sentence1']} {sentence(rng.choice(load('articles')['echoes']).format(again))}"


def _filled(templates: list[str], words: Mapping[str, Any], rng: Random) -> str:
    return fill(rng.choice(templates), words, rng)


def _paragraphs(sentences: list[str], rng: Random) -> str:
    paragraphs = []
    while sentences:
        length = rng.randint(*PARAGRAPH_SENTENCES)
        paragraphs.append(" ".join(sentences[:length]))
        sentences = sentences[length:]
    return "\n".join(paragraphs)
