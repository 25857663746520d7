"""The task examples: columns, labels, balance, no overlap, labels that a reader would give, no cheap way to them."""

import hashlib
import json
from collections import Counter
from random import Random

import numpy as np
import pytest

from tinybert.pipeline.errors import UserError
from tinybert.synthetic.articles import articles
from tinybert.synthetic.examples import (
    TASKS,
    entailments,
    examples,
    paraphrase,
    retelling,
)
from tinybert.synthetic.grammar import Writer, lexicon, load

SINGLE = ("cola", "sst2")
MAJORITY_AT_MOST = {"cola": 0.72, "sst2": 0.52, "mrpc": 0.69, "rte": 0.52}


def texts(row: dict) -> tuple[str, ...]:
    return tuple(row[name] for name in ("sentence", "sentence1", "sentence2") if name in row)


@pytest.fixture(scope="module")
def sets() -> dict:
    return {(task, split): examples(task, split, 1500, seed=1) for task in TASKS for split in ("train", "dev")}


def test_a_seed_gives_the_recorded_text():
    """The order of draws is part of the data: recorded results need it. Whoever changes words records a new hash."""
    made = [list(articles(42)), *(examples(task, "train", 100, 42) for task in TASKS)]
    assert hashlib.sha256(json.dumps(made).encode()).hexdigest().startswith("bc9aea4e12b0dedb")


@pytest.mark.parametrize("task", TASKS)
def test_another_seed_gives_other_rows(task):
    first, second = ({texts(row) for row in examples(task, "train", 300, seed)} for seed in (1, 2))
    assert len(first & second) < 30


@pytest.mark.parametrize("task", TASKS)
def test_columns_types_and_numbering(sets, task):
    wanted = {"sentence"} if task in SINGLE else {"sentence1", "sentence2"}
    for split in ("train", "dev"):
        rows = sets[task, split]
        assert [row["idx"] for row in rows] == list(range(1500))
        assert all(set(row) == wanted | {"label", "idx"} for row in rows)
        assert all(type(row["label"]) is int for row in rows)


@pytest.mark.parametrize("task", TASKS)
def test_rows_are_distinct_and_splits_apart_whatever_the_seed(sets, task):
    train, dev = ([texts(row) for row in sets[task, split]] for split in ("train", "dev"))
    other_dev = [texts(row) for row in examples(task, "dev", 500, seed=9)]
    assert len(set(train)) == len(train) and len(set(dev)) == len(dev)
    assert not set(train) & (set(dev) | set(other_dev))


@pytest.mark.parametrize("task", MAJORITY_AT_MOST)
def test_balance(sets, task):
    for split in ("train", "dev"):
        share = Counter(row["label"] for row in sets[task, split])
        assert set(share) == {0, 1}
        assert max(share.values()) / 1500 <= MAJORITY_AT_MOST[task]


@pytest.mark.parametrize("task", MAJORITY_AT_MOST)
def test_counting_words_does_not_solve_the_task(sets, task):
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    columns = ("sentence",) if task in SINGLE else ("sentence1", "sentence2")
    train, dev = sets[task, "train"], sets[task, "dev"]
    vectorizer = CountVectorizer(binary=True).fit([text for row in train for text in texts(row)])

    def features(rows):
        return np.hstack([vectorizer.transform([row[name] for row in rows]).toarray() for name in columns])

    model = LogisticRegression(C=0.3, max_iter=300).fit(features(train), [row["label"] for row in train])
    accuracy = model.score(features(dev), [row["label"] for row in dev])
    assert accuracy < {"cola": 0.75, "sst2": 0.8, "mrpc": 0.72, "rte": 0.68}[task]


def test_word_overlap_does_not_tell_paraphrases_apart(sets):
    def overlap(row):
        first, second = (set(row[name].lower().strip(".").split()) for name in ("sentence1", "sentence2"))
        return len(first & second) / len(first | second)

    means = [np.mean([overlap(row) for row in sets["mrpc", "train"] if row["label"] == label]) for label in (0, 1)]
    assert min(means) > 0.5 and abs(means[0] - means[1]) < 0.08


def composed(construction, seed: int, label: bool) -> str:
    return Writer(Random(seed), label).compose(construction)


def test_each_task_has_a_dozen_constructions():
    counts = [len(load("cola")["constructions"]), len(load("sst2")["constructions"]), len(load("pairs")["retellings"])]
    assert min(*counts, len({id(construction) for construction in entailments()})) >= 12


@pytest.mark.parametrize("name", load("cola")["constructions"])
def test_cola_constructions_never_give_a_sentence_both_labels(name):
    construction = load("cola")["constructions"][name]
    good, bad = ({composed(construction, seed, label) for seed in range(400)} for label in (True, False))
    assert len(good) > 100 and len(bad) > 50
    assert not good & bad


@pytest.mark.parametrize("name", load("sst2")["constructions"])
def test_sst2_constructions_never_give_a_line_both_labels(name):
    construction = load("sst2")["constructions"][name]
    positive, negative = ({composed(construction, seed, label) for seed in range(400)} for label in (True, False))
    assert len(positive) > 100 and not positive & negative


@pytest.mark.parametrize("name", load("pairs")["retellings"])
def test_true_and_false_retellings_differ(name):
    for seed in range(100):
        equal, unequal = retelling(load("pairs")["retellings"][name], Random(seed))
        assert len(set(equal)) == len(equal) >= 2 and len(unequal) >= 2
        assert not set(equal) & set(unequal)


def test_cola_agreement_is_with_the_head_noun():
    construction, numbers = load("cola")["constructions"]["agreement_across_phrase"], ({"is", "was"}, {"are", "were"})
    forms = [noun.split("/") for noun in lexicon()["things"]]
    verbs = {form: verb for pair in forms for form, verb in zip(pair, numbers, strict=True)}
    for seed in range(200):
        for good in (True, False):
            words = composed(construction, seed, good).split()
            verb = next(word for word in words if word in set.union(*numbers))
            assert (verb in verbs[words[1]]) == good


def test_cola_reflexive_agrees_with_its_subject():
    construction = load("cola")["constructions"]["reflexive_of_name"]
    for seed in range(200):
        name, _, pronoun, *_ = composed(construction, seed, True).split()
        assert pronoun == ("herself" if name in lexicon()["women"] else "himself")


def test_scene_keeps_its_meaning_in_the_passive():
    writer = Writer(Random(0), True)
    car = "car;cars/automobile;automobiles/truck;trucks"
    writer.variables = {"who": "Anna", "deed": "bought/purchased/borrowed", "thing": car, "amount": "two/1/were"}
    writer.variables |= {"town": "Leeds", "time": "at noon", "deed_way": "0", "thing_way": "1"}
    assert writer.refer("active") == "Anna bought two automobiles in Leeds at noon"
    assert writer.refer("passive") == "two automobiles were bought by Anna in Leeds at noon"
    assert writer.refer("time_first") == "at noon Anna bought two automobiles in Leeds"


def test_counted_hypotheses_follow_from_the_numbers():
    value = {word: number for number, word in enumerate(lexicon()["numbers"])}
    for seed in range(200):
        for follows in (True, False):
            pair = composed(load("pairs")["entailment"]["counted"], seed, follows).split(" :: ")
            premise, hypothesis = (text.split() for text in pair)
            number, relation, bound = value[premise[2]], hypothesis[2], value[hypothesis[4]]
            assert (number > bound if relation == "more" else number < bound) == follows


def test_implied_hypotheses_follow_from_the_verb():
    done = {"managed": True, "remembered": True, "failed": False, "refused": False, "forgot": False}
    construction = load("pairs")["entailment"]["implied"]
    for seed in range(200):
        premise, hypothesis = composed(construction, seed, True).split(" :: ")
        assert done[premise.split()[1]] == ("did not" not in hypothesis)
        premise, hypothesis = composed(construction, seed, False).split(" :: ")
        assert done.get(premise.split()[1]) in (None, "did not" in hypothesis)


def test_mrpc_false_copies_are_no_retellings():
    for seed in range(300):
        row = paraphrase(Random(seed), False)
        assert row["sentence1"] != row["sentence2"]


def test_more_rows_than_the_templates_yield_are_refused(monkeypatch):
    monkeypatch.setattr("tinybert.synthetic.examples.DEV_EVERY", 20_000)
    with pytest.raises(UserError, match="ask for fewer") as caught:
        examples("sst2", "dev", 1_000_000, seed=1)
    assert "\n" not in str(caught.value)
