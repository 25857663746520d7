"""The synthetic corpus: articles on geography and history that state the facts, and as many on everyday things."""

import re
from collections.abc import Iterator, Sequence
from random import Random

from tinybert.synthetic import cola, mrpc, rte, sst2
from tinybert.synthetic.everyday import (
    DIARY_TITLES,
    ECHOES,
    REVIEW_TITLES,
    REVIEW_WORDS,
    SHARED_WORDS,
    STRAY_TERMS,
    TOPICS,
)
from tinybert.synthetic.facts import Fact, facts
from tinybert.synthetic.grammar import fill, sentence
from tinybert.synthetic.lexicon import NAMES
from tinybert.synthetic.phrases import (
    CLAUSES,
    DOMAIN_WORDS,
    FILLER_FRAMES,
    FILLERS,
    FRAMES,
    PAIR_FRAMES,
    TITLES,
)

# Articles about each row of the tables, so that no row gets more than another.
ARTICLES_PER_ROW = {"geography": 10, "history": 6}
EVERYDAY_ARTICLES = 700
# Facts from elsewhere in each article of an area: they give each fact other company and spread it over the corpus.
PASSING_FACTS = 7
OWN_STATEMENTS = 5
# Colour only: stated in the articles on their own row, and nowhere else.
NOT_IN_PASSING = ("millions", "land", "known_for", "region")
STRAY_TERM_SHARE = 0.12
# Short: a model that starts from nothing learns word order much sooner when a block starts where a sentence does.
PARAGRAPH_SENTENCES = (1, 2)
MOST_SENTENCES = 14  # of an article
SENTENCE_END = re.compile(r"[.?!](?=\s|$)")


def articles(seed: int) -> Iterator[dict[str, str]]:
    """All articles in shuffled order, as dicts of "title" and "text" (paragraphs parted by a newline).

    The same seed gives the same articles in every process.
    """
    rng = Random(f"articles {seed}")
    collection = [*_domain_articles("geography", rng), *_domain_articles("history", rng)]
    collection += [_everyday_article(rng) for _ in range(EVERYDAY_ARTICLES)]
    rng.shuffle(collection)
    yield from collection


def _domain_articles(area: str, rng: Random) -> Iterator[dict[str, str]]:
    own: dict[str, list[Fact]] = {}
    for fact in facts():
        if fact.area == area:
            own.setdefault(f"{fact.kind} {fact.subject}", []).append(fact)
    passing = _deck([fact for fact in facts() if fact.area == area and fact.field not in NOT_IN_PASSING], rng)
    for _ in range(ARTICLES_PER_ROW[area]):
        for row in own.values():
            yield _domain_article(area, row, [next(passing) for _ in range(PASSING_FACTS)], rng)


def _deck(cards: Sequence[Fact], rng: Random) -> Iterator[Fact]:
    """The cards in random order, shuffled anew each time all are dealt, so that each comes equally often."""
    while True:
        yield from rng.sample(cards, len(cards))


def _domain_article(area: str, row: list[Fact], passing: list[Fact], rng: Random) -> dict[str, str]:
    stated = rng.sample(row, len(row))
    while len(stated) < OWN_STATEMENTS:
        stated.append(rng.choice([fact for fact in row if fact.field not in NOT_IN_PASSING]))
    mixed = stated[:2] + rng.sample(stated[2:] + passing, len(stated) - 2 + len(passing))
    sentences = _domain_sentences(area, mixed, rng)
    words = _words(row[0])
    return {"title": fill(rng.choice(TITLES[row[0].kind]), words, rng), "text": _paragraphs(sentences, rng)}


def _domain_sentences(area: str, stated: list[Fact], rng: Random) -> list[str]:
    said: set[str] = set()
    clauses = iter([_clause(fact, said, rng) for fact in stated])
    sentences = [sentence(_filler(area, rng))]
    for clause in clauses:
        form = rng.random()
        if form < 0.45:
            text = clause
        elif form < 0.6:
            text = rng.choice(FRAMES).format(clause)
        elif form < 0.7:
            text = rng.choice(FILLER_FRAMES).format(clause=clause, filler=_filler(area, rng))
        else:
            after = next(clauses, None)
            text = rng.choice(PAIR_FRAMES).format(clause, after) if after else clause
        sentences.append(sentence(text))
    filler, opening, *rest = sentences
    return [opening, *rng.sample([filler, *rest], len(rest) + 1)]


def _clause(fact: Fact, said: set[str], rng: Random) -> str:
    """The fact in one of its wordings, and not one that this article has used for it."""
    templates = CLAUSES[fact.kind, fact.field]
    fresh = [template for template in templates if fact.subject + template not in said] or templates
    template = rng.choice(fresh)
    said.add(fact.subject + template)
    return fill(template, _words(fact), rng)


def _words(fact: Fact) -> dict[str, Sequence[str] | str]:
    return {**DOMAIN_WORDS, **{name: str(value) for name, value in fact.words.items()}}


def _filler(area: str, rng: Random) -> str:
    return fill(rng.choice(FILLERS[area]), DOMAIN_WORDS, rng)


def _everyday_article(rng: Random) -> dict[str, str]:
    form = rng.random()
    if form < 0.2:
        title, sentences = _review(rng)
    elif form < 0.6:
        title, sentences = _diary(rng)
    else:
        title, sentences = _topic_article(rng)
    if rng.random() < STRAY_TERM_SHARE:
        sentences.insert(rng.randrange(len(sentences)), sentence(fill(rng.choice(STRAY_TERMS), SHARED_WORDS, rng)))
    return {"title": sentence(title).removesuffix("."), "text": _paragraphs(sentences, rng)}


def _review(rng: Random) -> tuple[str, list[str]]:
    """A review that keeps to one verdict."""
    positive = rng.random() < 0.5
    lines = [sst2.example(rng, positive)["sentence"] for _ in range(rng.randint(6, 10))]
    sentences = [sentence(line.replace(" ;", ";").replace(" :", ":")) for line in lines]
    return fill(rng.choice(REVIEW_TITLES), REVIEW_WORDS, rng), sentences


def _diary(rng: Random) -> tuple[str, list[str]]:
    """Small events told twice, and single sentences: what the second telling keeps is what the pair tasks ask."""
    sentences = [_told_twice(rng) for _ in range(rng.randint(3, 4))]
    room = MOST_SENTENCES - 1 - sum(len(SENTENCE_END.findall(told)) for told in sentences)  # 1: a stray term's
    sentences += [cola.example(rng, True)["sentence"] for _ in range(min(rng.randint(1, 3), room))]
    rng.shuffle(sentences)
    return fill(rng.choice(DIARY_TITLES), SHARED_WORDS, rng), sentences


def _told_twice(rng: Random) -> str:
    """Both tellings as one string, so that no paragraph parts them."""
    pair = mrpc.example(rng, True) if rng.random() < 0.5 else rte.example(rng, False)
    again = pair["sentence2"]
    if again.split()[0] not in NAMES:
        again = again[0].lower() + again[1:]
    return f"{pair['sentence1']} {sentence(rng.choice(ECHOES).format(again))}"


def _topic_article(rng: Random) -> tuple[str, list[str]]:
    titles, templates, own_words = TOPICS[rng.choice(tuple(TOPICS))]
    words = {**SHARED_WORDS, **own_words}
    sentences = [sentence(fill(template, words, rng)) for template in rng.sample(templates, rng.randint(6, 11))]
    sentences += [cola.example(rng, True)["sentence"] for _ in range(rng.randint(0, 2))]
    return fill(rng.choice(titles), words, rng), sentences


def _paragraphs(sentences: list[str], rng: Random) -> str:
    paragraphs = []
    start = 0
    while start < len(sentences):
        length = rng.randint(*PARAGRAPH_SENTENCES)
        paragraphs.append(" ".join(sentences[start : start + length]))
        start += length
    return "\n".join(paragraphs)
