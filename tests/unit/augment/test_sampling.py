"""Masking, POS-guided replacement and n-grams: how often, by what, and on what the draws depend."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tinybert.augment.sampling import WORD, Settings, TaggedText, Unigrams, sample, tag_texts, vary
from tinybert.data.tasks import TASKS
from tinybert.pipeline.process import stream

PUBLISHED = Settings(
    copies=20,
    mask_probability=0.1,
    replacement_probability=0.1,
    ngram_probability=0.25,
    longest_ngram=5,
    tagger="rules",
)
TEXTS = (
    "The old farmer carried seven heavy baskets to the market, slowly.",
    "A young singer found two red bottles in the kitchen.",
    "It is not for them!",
    "A new teacher visited three big cities near the river.",
)
SINGLE = [{"sentence": text, "label": number % 2, "idx": 10 + number} for number, text in enumerate(TEXTS)]
PAIRS = [
    {"sentence1": TEXTS[number], "sentence2": TEXTS[number - 1], "label": float(number), "idx": number}
    for number in range(4)
]
DRAWS = 4000


def settings(**changes):
    return replace(PUBLISHED, **changes)


def run(rows, task, seed=5, **changes):
    return sample(rows, TASKS[task], settings=settings(**changes), seed=seed)


def group(rows):
    groups = {}
    for row in rows:
        groups.setdefault(row["idx"], []).append(row)
    return groups


def draws(text, unigrams_of=TEXTS, count=DRAWS, **changes):
    """Variations of one text, each by a seed of its own."""
    tagged = tag_texts([text, *unigrams_of], "rules")
    unigrams = Unigrams(tagged[other] for other in unigrams_of)
    return [vary(tagged[text], unigrams, settings(**changes), stream(seed, "draws")) for seed in range(count)]


def test_words_are_masked_and_replaced_as_often_as_published():
    text = TEXTS[0]
    original = WORD.findall(text)
    varied = [found.replace("[MASK]", "MASK") for found in draws(text, ngram_probability=0.0)]
    words = np.array([WORD.findall(found) for found in varied])
    masked = (words == "MASK").mean(axis=0)
    changed = (words != original).mean(axis=0) - masked
    # 3.6 standard deviations of a share of 0.1
    assert np.allclose(masked, 0.1, atol=3.6 * (0.09 / DRAWS) ** 0.5)
    tags = tag_texts(TEXTS, "rules")[text].tags
    has_others = [len({w.lower() for w in words_of(tag)}) > 1 for tag in tags]
    assert sum(has_others) >= 7
    assert np.allclose(changed, np.where(has_others, 0.1, 0.0), atol=3.6 * (0.09 / DRAWS) ** 0.5)


def words_of(tag):
    tagged = tag_texts(TEXTS, "rules").values()
    return [word for text in tagged for word, own in zip(text.words, text.tags, strict=True) if own == tag]


def test_a_replacement_has_the_tag_of_the_word_and_is_another():
    tagged = tag_texts(TEXTS, "rules")
    checked = 0
    for text in TEXTS:
        words, tags = tagged[text].words, tagged[text].tags
        for varied in draws(text, count=300, mask_probability=0.0, replacement_probability=0.3, ngram_probability=0.0):
            for old, new, tag in zip(words, WORD.findall(varied), tags, strict=True):
                if old != new:
                    assert new.lower() in {word.lower() for word in words_of(tag)}
                    assert new.lower() != old.lower()
                    assert new[0].isupper() == old[0].isupper()
                    checked += 1
    assert checked > 1000


def test_replacements_are_as_frequent_as_in_the_rows():
    texts = [
        TaggedText("cat cat cat cat cat Dog dog dog", [(at, at + 3) for at in range(0, 32, 4)], ["NN"] * 8),
        TaggedText("hen run", [(0, 3), (4, 7)], ["NN", "VB"]),
    ]
    unigrams, rng = Unigrams(texts), np.random.default_rng(0)
    counts = Counter(unigrams.another("dog", "NN", rng) for _ in range(6000))
    assert counts.keys() == {"cat", "hen"}
    assert counts["cat"] / 6000 == pytest.approx(5 / 6, abs=0.02)
    last = Counter(unigrams.another("hen", "NN", rng) for _ in range(8000))
    assert last["cat"] / 8000 == pytest.approx(5 / 8, abs=0.02)
    assert last.keys() == {"cat", "dog"}
    assert unigrams.another("run", "VB", rng) == "run"  # the only verb


def test_ngrams_are_one_to_five_words_in_a_row_alike_often():
    only_ngrams = {"mask_probability": 0.0, "replacement_probability": 0.0, "ngram_probability": 1.0}
    varied = draws(TEXTS[0], **only_ngrams)
    assert all(found in TEXTS[0] for found in varied)
    sizes = Counter(len(WORD.findall(found)) for found in varied)
    assert sizes.keys() == {1, 2, 3, 4, 5}
    assert all(count / DRAWS == pytest.approx(0.2, abs=0.025) for count in sizes.values())
    starts = Counter(TEXTS[0].index(found) for found in varied if len(WORD.findall(found)) == 5)
    assert len(starts) == 11 - 5 + 1  # every place that has 5 words
    assert set(draws("It is", count=100, **only_ngrams)) == {"It", "is", "It is"}


def test_ngrams_are_taken_with_their_probability():
    varied = draws(TEXTS[0], mask_probability=0.0, replacement_probability=0.0)
    assert sum(found != TEXTS[0] for found in varied) / DRAWS == pytest.approx(0.25, abs=0.025)


def test_stop_words_may_be_varied_and_punctuation_stays():
    varied = draws("It is not for them!", count=500, ngram_probability=0.0, mask_probability=0.5)
    assert {found.split()[0] for found in varied} >= {"[MASK]", "It"}
    assert all(found.endswith("!") for found in varied)


def test_contractions_and_compounds_are_one_word():
    (tagged,) = tag_texts(["He didn't see the well-known man_made 2nd one."], "rules").values()
    assert tagged.words == ["He", "didn't", "see", "the", "well-known", "man", "made", "2nd", "one"]


def test_the_original_comes_first_and_nothing_twice():
    for original, rows in zip(SINGLE, group(run(SINGLE, "cola", copies=60)).values(), strict=True):
        sentences = [row["sentence"] for row in rows]
        assert rows[0] == original
        assert 10 < len(sentences) == len(set(sentences)) <= 61
        assert all(row == original | {"sentence": row["sentence"], "augmented": True} for row in rows[1:])


def test_pairs_are_varied_in_turn_first_second_both():
    often = {"mask_probability": 0.9, "replacement_probability": 0.1, "ngram_probability": 0.0}
    for original, rows in zip(PAIRS, group(run(PAIRS, "stsb", copies=6, **often)).values(), strict=True):
        changed = [
            (row["sentence1"] != original["sentence1"], row["sentence2"] != original["sentence2"]) for row in rows
        ]
        assert changed[0] == (False, False)
        in_turn = [(True, False), (False, True), (True, True)]
        assert changed[1:4] == in_turn
        assert set(changed[1:]) == set(in_turn)
        assert all(row["label"] == original["label"] for row in rows)


def test_rows_depend_on_the_seed_and_their_number():
    rows = run(SINGLE, "cola")
    assert rows == run(SINGLE, "cola")
    assert rows != run(SINGLE, "cola", seed=6)
    repeated = group(run([SINGLE[0], SINGLE[0] | {"idx": 11}, *SINGLE[2:]], "cola"))
    assert [row["sentence"] for row in repeated[10]] != [row["sentence"] for row in repeated[11]]


def test_a_text_without_words_stays():
    assert run([{"sentence": "?!", "label": 0, "idx": 0}], "cola") == [{"sentence": "?!", "label": 0, "idx": 0}]
