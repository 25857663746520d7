"""The synthetic corpus: the same for the same seed, of the planned size, evenly spread, worth filtering."""

import re
from collections import Counter

import pytest

from tinybert.synthetic.articles import articles, facts

TERMS = ("history", "empire", "war", "ancient", "king", "queen", "geography", "river", "mountain", "capital")
WHOLE_TERM = re.compile(rf"\b({'|'.join(TERMS)})\b", re.IGNORECASE)
NAMES = {kind: {fact.subject: None for fact in facts() if fact.kind == kind} for kind in ("country", "battle")}
COUNTRIES = list(NAMES["country"])
FACT_NAMES = {*COUNTRIES, *NAMES["battle"]}


@pytest.fixture(scope="module")
def corpus() -> list[dict]:
    return list(articles(1))


def is_domain(article: dict) -> bool:
    return len(FACT_NAMES & set(re.findall(r"\w+", article["text"]))) >= 2


def test_another_seed_gives_other_articles(corpus):
    assert not {article["text"] for article in corpus} & {article["text"] for article in articles(2)}


def test_size_and_form(corpus):
    words = sum(len(article["text"].split()) for article in corpus)
    lengths = [len(re.findall(r"[.?!](?=\s|$)", article["text"])) for article in corpus]
    assert 1500 <= len(corpus) <= 2000
    assert 150_000 <= words <= 220_000
    assert min(lengths) >= 5 and max(lengths) <= 14
    assert all(set(article) == {"title", "text"} and article["title"] for article in corpus)


def test_no_slot_is_left_open_and_sentences_are_written_properly(corpus):
    for article in corpus:
        assert not re.search(r"[{}]|\s[.?!]|\.\.|  |\ba [aeio]", article["title"] + " " + article["text"])
        for paragraph in article["text"].split("\n"):
            assert paragraph[0].isupper() or paragraph[0].isdigit()
            assert paragraph[-1] in ".?"


def test_half_is_domain_and_plain_search_finds_too_much(corpus):
    domain = [article for article in corpus if is_domain(article)]
    everyday = [article for article in corpus if not is_domain(article)]
    whole = [sum(bool(WHOLE_TERM.search(article["text"])) for article in part) for part in (domain, everyday)]
    inside = sum(any(term in article["text"].lower() for term in TERMS) for article in everyday)
    assert 0.4 < len(domain) / len(corpus) < 0.6
    assert whole[0] / len(domain) > 0.9
    assert 0.05 < whole[1] / len(everyday) < 0.2
    assert inside / len(everyday) > 2 * whole[1] / len(everyday)


@pytest.mark.parametrize("every", [5, 10, 20])
def test_countries_are_spread_over_the_order(corpus, every):
    """Holding out every k-th article leaves each country in the rest about as often as its share."""
    kept = [article for index, article in enumerate(corpus) if index % every]
    counts = Counter(
        country for article in kept for country in COUNTRIES if re.search(rf"\b{country}\b", article["text"])
    )
    assert len(counts) == len(COUNTRIES)
    assert min(counts.values()) > 20


def test_vocabulary_fits_the_word_piece_budget(corpus):
    words = {word for article in corpus for word in re.findall(r"\w+", article["text"].lower())}
    assert 1500 < len(words) < 3000
