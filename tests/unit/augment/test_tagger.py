"""Tags by rules against tags set by hand, and what happens without NLTK or its data."""

import sys
from types import ModuleType

import pytest

from tinybert.augment.tagger import TAGGERS, tag_by_rules, tag_with_nltk
from tinybert.pipeline.errors import UserError

# word/tag, set by hand; contractions carry their ending.
TAGGED = """
the/DT keys/NNS near/IN the/DT old/JJ door/NN are/VBP dirty/JJ
did/VBD he/PRP walk/VB to/TO the/DT station/NN yesterday/RB
she/PRP has/VBZ not/RB seen/VBN her/PRP$ new/JJ garden/NN
we/PRP don't/n't like/VB that/DT film/NN
we/PRP think/VBP that/IN John's/'s brother/NN runs/VBZ
there/EX is/VBZ a/DT man/NN who/WP said/VBD that/IN he/PRP loves/VBZ her/PRP
I/PRP will/MD never/RB forget/VB the/DT happiest/JJS days/NNS
the/DT letter/NN was/VBD carefully/RB written/VBN by/IN Anna/NNP
birds/NNS saw/VBD rivers/NNS
two/CD farmers/NNS carried/VBD the/DT heavy/JJ baskets/NNS into/IN the/DT market/NN
the/DT walk/NN was/VBD long/JJ
they/PRP walk/VBP slowly/RB
a/DT famous/JJ painter/NN visited/VBD Paris/NNP in/IN 1990/CD
the/DT government/NN has/VBZ made/VBN a/DT quick/NN decision/NN
she/PRP made/VBD a/DT cake/NN
the/DT girl/NN was/VBD singing/VBG in/IN the/DT kitchen/NN
the/DT taller/JJR boy/NN gave/VBD his/PRP$ sister/NN a/DT book/NN
where/WRB do/VBP they/PRP live/VB
who/WP can/MD answer/VB the/DT question/NN
the/DT river/NN flows/VBZ through/IN the/DT city/NN
he/PRP wants/VBZ to/TO know/VB whose/WP$ dog/NN barked/VBD
women/NNS and/CC men/NNS have/VBP worked/VBN there/RB for/IN many/JJ years/NNS
the/DT broken/VBN windows/NNS were/VBD replaced/VBN by/IN the/DT owner/NN
"""
# The rules' known mistakes stand above with their right tags; so much must be right over all.
LEAST_ACCURACY = 0.95


def hand_tagged():
    for line in TAGGED.strip().splitlines():
        yield [pair.rsplit("/", 1) for pair in line.split()]


def test_rules_agree_with_hand_set_tags():
    sentences = list(hand_tagged())
    found = tag_by_rules([[word for word, _ in sentence] for sentence in sentences])
    pairs = [
        (word, expected, tag)
        for sentence, tags in zip(sentences, found, strict=True)
        for (word, expected), tag in zip(sentence, tags, strict=True)
    ]
    wrong = [pair for pair in pairs if pair[1] != pair[2]]
    assert len(pairs) > 140
    assert 1 - len(wrong) / len(pairs) >= LEAST_ACCURACY, wrong


@pytest.mark.parametrize(
    ("sentence", "tag"),
    [
        ("to walk", "VB"), ("the walk", "NN"), ("they walk", "VBP"), ("did she walk", "VB"), ("could we walk", "VB"),
        ("she walks", "VBZ"), ("the walks", "NNS"), ("he has walked", "VBN"), ("he walked", "VBD"),
        ("he has never walked", "VBN"), ("a movement", "NN"), ("quickly", "RB"), ("a glorious", "JJ"),
        ("in 12th", "CD"), ("it isn’t", "n't"), ("in Berlin", "NNP"), ("Berlin", "NN"), ("to frobnicate", "VB"),
        ("a bigger", "JJR"), ("the water", "NN"), ("a dress", "NN"),
    ],
)  # fmt: skip
def test_the_last_word_is_tagged_by_form_and_by_what_stands_before(sentence, tag):
    assert tag_by_rules([sentence.split()])[0][-1] == tag


def test_rules_tag_nothing_where_there_is_nothing():
    assert tag_by_rules([[], ["birds"]]) == [[], ["NNS"]]


def fake_nltk(monkeypatch, tag_sentences):
    module = ModuleType("nltk")
    module.pos_tag_sents = tag_sentences
    monkeypatch.setitem(sys.modules, "nltk", module)


def test_nltk_tags_where_it_is_installed(monkeypatch):
    fake_nltk(monkeypatch, lambda sentences: [[(word, word[0].upper()) for word in words] for words in sentences])
    assert TAGGERS["nltk"]([["a", "bird"], ["it"]]) == [["A", "B"], ["I"]]


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk", None)
    with pytest.raises(UserError, match=r"^augmentation\.sampling\.pos_tagger: nltk: the package .*pip install nltk"):
        tag_with_nltk([["birds"]])


def test_without_its_data_the_error_is_one_line_with_the_fix(monkeypatch):
    def absent(sentences):
        raise LookupError("***\n  Resource averaged_perceptron_tagger_eng not found.\n***")

    fake_nltk(monkeypatch, absent)
    with pytest.raises(UserError) as caught:
        tag_with_nltk([["birds"]])
    assert "\n" not in str(caught.value)
    assert "nltk.downloader averaged_perceptron_tagger_eng" in str(caught.value)
    assert "set augmentation.sampling.pos_tagger to rules" in str(caught.value)
