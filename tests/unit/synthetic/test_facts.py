"""The tables of facts and the quiz: consistent, unambiguous, in wordings of their own."""

import re
from collections import Counter

import pytest

from tinybert.synthetic.articles import articles, asked_facts, facts, questions, statement
from tinybert.synthetic.grammar import load

KNOWN = {
    "The capital of France is [MASK].": "paris",
    "Kenya lies on the continent of [MASK].": "africa",
    "The main language of Brazil is [MASK].": "portuguese",
    "The river of London is the [MASK].": "thames",
    "The highest mountain of Japan is [MASK].": "fuji",
    "The battle of Waterloo was fought in [MASK].": "1815",
    "The battle of Zama was fought in [MASK] BC.": "202",
    "The winner of the battle of Hastings was [MASK].": "william",
    "It was in [MASK] that the French Revolution began.": "1789",
    "Charlemagne was on the throne of the [MASK].": "franks",
    "The capital of the Inca empire was [MASK].": "cuzco",
    "The founder of the Mughal empire was [MASK].": "babur",
}
MENTIONS_WANTED = 15


def plain(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s]", "", text.lower()).split())


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    texts = (article["text"] for article in articles(1))
    return [plain(part) for text in texts for part in re.split(r"[.?!;]\s", text)]


def test_questions_have_the_known_answers():
    answers = {question["prompt"]: question["answer"] for question in questions()}
    assert {prompt: answers.get(prompt) for prompt in KNOWN} == KNOWN


def test_questions_are_well_formed_and_cover_both_subjects():
    quiz = questions()
    subjects = Counter(question["subject"] for question in quiz)
    assert 180 <= len(quiz) <= 240
    assert set(subjects) == {"history", "geography"} and min(subjects.values()) >= 80
    for question in quiz:
        assert set(question) == {"subject", "prompt", "answer"}
        assert question["prompt"].count("[MASK]") == 1
        assert re.fullmatch(r"[a-z0-9]+", question["answer"])
        assert question["answer"] not in plain(question["prompt"]).split()


def test_no_prompt_is_asked_twice():
    assert Counter(question["prompt"] for question in questions()).most_common(1)[0][1] == 1


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("country", "country"),
        ("country", "capital"),
        ("country", "adjective"),
        ("country", "mountain"),
        ("battle", "battle"),
        ("event", "event"),
        ("ruler", "ruler"),
        ("empire", "empire"),
        ("empire", "capital"),
        ("empire", "founder"),
    ],
)
def test_names_are_unique(kind, column):
    rows = {id(fact.words): fact.words for fact in facts() if fact.kind == kind}.values()
    names = [row[column] for row in rows if row[column]]
    assert names and [name for name, count in Counter(names).items() if count > 1] == []


def test_facts_do_not_contradict_each_other():
    answers: dict[tuple, set] = {}
    for fact in facts():
        answers.setdefault((fact.kind, fact.subject, fact.field), set()).add(fact.answer)
    assert all(len(given) == 1 for given in answers.values())


def test_text_of_the_tables_is_ascii():
    assert all(str(value).isascii() for fact in facts() for value in fact.words.values())


def test_every_asked_fact_has_six_wordings():
    clauses = load("articles")["clauses"]
    few = {field for fields in clauses.values() for field, wordings in fields.items() if len(set(wordings)) < 6}
    # What is never asked may be stated in fewer ways.
    assert few == {"millions", "land", "known_for", "region"}


@pytest.mark.parametrize("seed", [0, 1, 7, 42])
def test_answered_prompts_never_stand_in_the_articles(seed):
    corpus = " ".join(plain(article["text"]) for article in articles(seed))
    answered = [plain(statement(fact, fact.answer)) for fact in asked_facts()]
    assert [sentence for sentence in answered if sentence in corpus] == []


def test_answers_are_stated_often_beside_their_subject(sentences):
    holding: dict[str, list[str]] = {}
    for sentence in sentences:
        for word in set(sentence.split()):
            holding.setdefault(word, []).append(sentence)
    counts = {
        statement(fact, fact.answer): sum(plain(_asked_about(fact)) in text for text in holding[fact.answer.lower()])
        for fact in asked_facts()
    }
    assert {fact: count for fact, count in counts.items() if count < MENTIONS_WANTED} == {}


def test_every_word_of_the_prompts_is_known_from_the_articles(sentences):
    counts = Counter(word for sentence in sentences for word in sentence.split())
    words = {word for question in questions() for word in plain(question["prompt"].replace("[MASK]", "")).split()}
    assert {word: counts[word] for word in words if counts[word] < MENTIONS_WANTED} == {}


def _asked_about(fact) -> str:
    return fact.words["capital"] if fact.field == "river" else fact.subject
