"""The template language: each piece of its syntax by hand, and every name that the YAML files use is known."""

from collections import Counter
from random import Random

import pytest

from tinybert.synthetic import grammar
from tinybert.synthetic.grammar import Writer, fill, lexicon, load, sentence, with_articles


@pytest.fixture(autouse=True)
def small_lexicon(monkeypatch):
    words = {"nouns": ["key/keys", "box/boxes"], "places": ["park", "inn"], "digits": ["one", "two", "three"]}
    rules = {"mood": "<glad~sad>", "who": {"coin": ["Anna", "Tom"]}}
    monkeypatch.setattr(grammar, "lexicon", lambda: words | rules)


def texts(construction, label: bool = True, count: int = 60) -> set[str]:
    return {Writer(Random(seed), label).compose(construction) for seed in range(count)}


@pytest.mark.parametrize(
    ("construction", "good", "bad"),
    [
        ("a {red|blue} cup", {"a red cup", "a blue cup"}, {"a red cup", "a blue cup"}),
        ("she <is~are> {mood}", {"she is glad"}, {"she are sad"}),
        ("{!mood}", {"sad"}, {"glad"}),
        ("{nouns}", {"key", "box"}, {"key", "box"}),
        ("{nouns.plural}", {"keys", "boxes"}, {"keys", "boxes"}),
        ("{is/are.1}{| not}", {"are", "are not"}, {"are", "are not"}),
        ({"number": "0|1", "text": "{a/some.number} {is/are.!number}"}, {"a are", "some is"}, {"a are", "some is"}),
        ({"good": "yes", "bad": "no"}, {"yes"}, {"no"}),
        (
            {"x": "places", "y": "places except x", "text": "{x} {y}"},
            {"park inn", "inn park"},
            {"park inn", "inn park"},
        ),
        ({"x, y": "places", "text": "{x} {y}"}, {"park inn", "inn park"}, {"park inn", "inn park"}),
        ({"x": "who", "y": "who except x", "text": "{x} {y}"}, {"Anna Tom", "Tom Anna"}, {"Anna Tom", "Tom Anna"}),
        ([{"x": "a/b"}, {"one of": [{"x": "c/d"}, {}]}, {"text": "{x.1}"}], {"b", "d"}, {"b", "d"}),
        ({"row": "a;b/c;d", "text": "{row.1.1}{row.0.0}"}, {"da"}, {"da"}),
        ({"n": "{1|0}", "coin 1.0": ["{x/y.{n}}", "z"]}, {"x", "y"}, {"x", "y"}),
    ],
)
def test_syntax_by_hand(construction, good, bad):
    assert texts(construction, True) == good
    assert texts(construction, False) == bad


def test_ordered_words_keep_the_order_of_their_list():
    pairs = texts({"low < high": "digits", "text": "{low} {high}"})
    assert pairs == {"one two", "one three", "two three"}


def test_alternatives_are_written_before_one_is_chosen():
    """The draws of all alternatives count, whichever is chosen: this order fixes what a seed gives."""
    rng, by_hand = Random(5), Random(5)
    written = Writer(rng, True).compose("{in the {places}|{digits} times}")
    expected = by_hand.choice(
        [f"in the {by_hand.choice(['park', 'inn'])}", f"{by_hand.choice(['one', 'two', 'three'])} times"]
    )
    assert written == expected and rng.random() == by_hand.random()


def test_unknown_name_is_refused():
    with pytest.raises(KeyError, match="colour"):
        Writer(Random(0), True).compose("a {colour} cup")


def test_names_of_lists_and_rules_are_unique(monkeypatch):
    monkeypatch.undo()
    files = [load("words"), *(load(task)[part] for task in ("cola", "sst2", "pairs") for part in ("words", "rules"))]
    counts = Counter(name for part in files for name in part)
    assert counts.most_common(1)[0][1] == 1
    assert len(counts) == len(lexicon())


def test_all_leaves_of_the_data_files_are_strings():
    def leaves(value):
        if isinstance(value, dict):
            return [leaf for item in value.values() for leaf in leaves(item)]
        return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]

    for name in ("words", "cola", "sst2", "pairs", "facts", "articles"):
        assert {type(leaf) for leaf in leaves(load(name))} == {str}


def test_sentence_keeps_an_end():
    assert [sentence("it rains"), sentence("why?")] == ["It rains.", "Why?"]


def test_a_becomes_an_before_vowels_only():
    assert with_articles("a owl and a uncle, a unit and a fox") == "an owl and an uncle, a unit and a fox"


def test_fill_never_uses_a_word_twice():
    for seed in range(20):
        first, second = fill("{word} {word}", {"word": ["one", "two"]}, Random(seed)).split()
        assert first != second
