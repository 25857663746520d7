"""The synthetic corpus: articles on geography and history that state the facts, and as many on everyday things."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain, count
from random import Random

from tinybert.synthetic.examples import acceptable, entailment, paraphrase, review
from tinybert.synthetic.facts import Fact, facts
from tinybert.synthetic.grammar import fill, lexicon, load, sentence

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
    own: dict[str, list[Fact]] = {}
    for fact in of_area:
        own.setdefault(f"{fact.kind} {fact.subject}", []).append(fact)
    cards = [fact for fact in of_area if fact.field not in NOT_IN_PASSING]
    # Shuffled again each time all are dealt, so that each fact comes equally often.
    passing = chain.from_iterable(rng.sample(cards, len(cards)) for _ in count())
    for _ in range(ARTICLES_PER_ROW[area]):
        for row in own.values():
            yield _domain_article(area, row, [next(passing) for _ in range(PASSING_FACTS)], rng)


def _domain_article(area: str, row: list[Fact], passing: list[Fact], rng: Random) -> dict[str, str]:
    stated = rng.sample(row, len(row))
    while len(stated) < OWN_STATEMENTS:
        stated.append(rng.choice([fact for fact in row if fact.field not in NOT_IN_PASSING]))
    # The article opens on its own subject.
    mixed = stated[:2] + rng.sample(stated[2:] + passing, len(stated) - 2 + len(passing))
    sentences = _domain_sentences(area, mixed, rng)
    title = fill(rng.choice(load("articles")["titles"][row[0].kind]), _words(row[0]), rng)
    return {"title": title, "text": _paragraphs(sentences, rng)}


def _domain_sentences(area: str, stated: list[Fact], rng: Random) -> list[str]:
    """Most clauses are sentences; some get a frame, a filler beside them, or share a sentence with the next one."""
    texts, used = load("articles"), set[str]()
    clauses = iter([_clause(fact, used, rng) for fact in stated])
    sentences = [sentence(_filler(area, rng))]
    for clause in clauses:
        form = rng.random()
        if 0.45 <= form < 0.6:
            clause = rng.choice(texts["frames"]).format(clause)
        elif 0.6 <= form < 0.7:
            clause = rng.choice(texts["filler_frames"]).format(clause=clause, filler=_filler(area, rng))
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
    return fill(template, _words(fact), rng)


def _words(fact: Fact) -> dict[str, Sequence[str] | str]:
    return load("articles")["domain_words"] | {name: str(value) for name, value in fact.words.items()}


def _filler(area: str, rng: Random) -> str:
    return fill(rng.choice(load("articles")["fillers"][area]), load("articles")["domain_words"], rng)


def _everyday_article(rng: Random) -> dict[str, str]:
    form = rng.random()
    article = _review if form < 0.2 else _diary if form < 0.6 else _topic_article
    title, sentences = article(rng)
    if rng.random() < STRAY_TERM_SHARE:
        sentences.insert(rng.randrange(len(sentences)), sentence(_everyday("stray_terms", rng)))
    return {"title": sentence(title).removesuffix("."), "text": _paragraphs(sentences, rng)}


def _everyday(templates: str, rng: Random) -> str:
    """One of these templates of articles.yaml, filled with the words of all topics."""
    texts = load("articles")
    return fill(rng.choice(texts[templates]), {**texts["shared_words"], "work": texts["review_works"]}, rng)


def _review(rng: Random) -> tuple[str, list[str]]:
    """A review that keeps to one verdict."""
    positive = rng.random() < 0.5
    lines = [review(rng, positive)["sentence"] for _ in range(rng.randint(6, 10))]
    sentences = [sentence(line.replace(" ;", ";").replace(" :", ":")) for line in lines]
    return _everyday("review_titles", rng), sentences


def _diary(rng: Random) -> tuple[str, list[str]]:
    """Small events told twice, and single sentences: the pair tasks ask what the second wording keeps."""
    sentences = [_told_twice(rng) for _ in range(rng.randint(3, 4))]
    room = MOST_SENTENCES - 1 - sum(len(SENTENCE_END.findall(told)) for told in sentences)  # 1: a stray term's
    sentences += [acceptable(rng, True)["sentence"] for _ in range(min(rng.randint(1, 3), room))]
    rng.shuffle(sentences)
    return _everyday("diary_titles", rng), sentences


def _told_twice(rng: Random) -> str:
    """Both wordings as one string, so that no paragraph separates them."""
    pair = paraphrase(rng, True) if rng.random() < 0.5 else entailment(rng, False)
    again = pair["sentence2"]
    if again.split()[0] not in lexicon()["names"]:
        again = again[0].lower() + again[1:]
    return f"{pair['sentence1']} {sentence(rng.choice(load('articles')['echoes']).format(again))}"


def _topic_article(rng: Random) -> tuple[str, list[str]]:
    topics = load("articles")["topics"]
    topic = topics[rng.choice(list(topics))]
    words = {**load("articles")["shared_words"], **topic["words"]}
    templates = rng.sample(topic["templates"], rng.randint(6, 11))
    sentences = [sentence(fill(template, words, rng)) for template in templates]
    sentences += [acceptable(rng, True)["sentence"] for _ in range(rng.randint(0, 2))]
    return fill(rng.choice(topic["titles"]), words, rng), sentences


def _paragraphs(sentences: list[str], rng: Random) -> str:
    paragraphs = []
    while sentences:
        length = rng.randint(*PARAGRAPH_SENTENCES)
        paragraphs.append(" ".join(sentences[:length]))
        sentences = sentences[length:]
    return "\n".join(paragraphs)
