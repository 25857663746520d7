"""Augmented rows beside their original."""

from tinybert.report.examples import marked


def test_words_that_changed_are_marked():
    assert marked("the old man sat", "the young man slept well") == (
        "the <mark>young</mark> man <mark>slept well</mark>"
    )


def test_an_equal_sentence_has_no_mark_and_a_shorter_one_neither():
    assert marked("a b c", "a b c") == "a b c"
    assert marked("a b c", "a c") == "a c"


def test_words_are_escaped_marked_or_not():
    assert marked("<i> a", "<i> <b>") == "&lt;i&gt; <mark>&lt;b&gt;</mark>"
