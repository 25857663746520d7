"""The benchmark of augmentation: that both contestants find the same candidates, and what it prints."""

import re

import numpy as np
import pytest
import torch

from benchmarks import augment, reference
from benchmarks.augment import SIZES, pieces_and_words, reference_augmenter
from benchmarks.reference import Shape
from tests.unit.benchmarks.test_timing import copy_of
from tinybert.augment.substitution import WordPredictor, read_sentences, replacement_candidates
from tinybert.augment.word_vectors import WordVectors
from tinybert.data.tokenizer import train_tokenizer
from tinybert.models.bert import BertConfig, MaskedLM

CORPUS = "black birds saw rivers while seven brown horses quietly crossed old wooden bridges near green fields 7 , ."
TEXTS = ["Seven horses crossed the old bridges.", "birds, dingos and horses saw rivers near fields"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([CORPUS] * 3, vocabulary_size=150)


def test_both_find_the_same_candidates_from_the_same_weights(tokenizer):
    torch.manual_seed(0)
    config = BertConfig(tokenizer.get_vocab_size(), 12, 2, 3, 24, max_position_embeddings=64, initializer_range=0.4)
    model = MaskedLM(config)
    vectors = WordVectors(["dingos", "pony", "stone"], np.array([[1.0, 0.1], [1.0, 0.2], [-1.0, 1.0]]))
    settings = SIZES["small"].settings()
    sentences = read_sentences(TEXTS, tokenizer, max_tokens=30)
    ours = replacement_candidates(sentences, settings, WordPredictor(model, tokenizer), vectors)
    plain = reference_augmenter(copy_of(model), tokenizer, vectors, settings)
    compared = 0
    for sentence, choices in ours.values():
        pieces, words = pieces_and_words(sentence, tokenizer)
        for word, chosen in zip(words, choices, strict=True):
            assert sorted(plain.candidates(pieces, word)) == sorted(chosen)
            assert chosen
            compared += 1
    assert compared == 5 + 6


def test_the_reference_varies_words_only(tokenizer):
    torch.manual_seed(0)
    masked_lm = reference.MaskedLM(Shape(1, 12, 24, 3), tokenizer.get_vocab_size(), dropout=0.0)
    vectors = WordVectors(["dingos", "pony"], np.array([[1.0, 0.1], [1.0, 0.2]]))
    (sentence,) = read_sentences(["the dingos saw it"], tokenizer, max_tokens=30)
    pieces, words = pieces_and_words(sentence, tokenizer)
    augmenter = reference_augmenter(masked_lm, tokenizer, vectors, SIZES["small"].settings())
    varied = augmenter.augment(pieces, words, np.random.default_rng(0))
    assert varied[0] == pieces
    assert len(varied) == len({tuple(parts) for parts in varied}) > 5
    # "the" and "it" stay, whatever their pieces; dingos is as it was or the pony
    first, last = words[0].first_piece, len(pieces) - words[1].first_piece - 1
    for parts in varied[1:]:
        assert parts[:first] == pieces[:first]
        assert parts[-last:] == pieces[-last:]
        between = parts[first:-last]
        assert between[:-1] in (["pony"], pieces[first : words[1].first_piece])
        assert between[-1] != "it"


def test_turns_go_through_all_sentences_and_begin_again(tmp_path):
    lines = [f"src\t1\t\tsentence {number}" for number in range(5)]
    (tmp_path / "train.tsv").write_text("\n".join([*lines, "torn\tline"]) + "\n")
    work = augment.AugmentSetup(Shape(1, 12, 24, 3), 100, turn_sentences=3, sentences=tmp_path / "train.tsv")
    turns = work.turns()
    first, second = next(turns), next(turns)
    assert sorted({*first, *second}) == [f"sentence {number}" for number in range(5)]
    assert second[2] == first[0]


def test_augment_prints_both_and_ends_with_the_ratio(run_main):
    lines = run_main(augment, "--sizes", "small", "--pairs", "2")
    assert lines[0].startswith(f"2 x 12 of random weights, vocabulary 3000; {SIZES['small'].turn_sentences} sentences")
    assert re.match(r"synthetic CoLA: 1500 sentences, \d+\.\d pieces", lines[1])
    assert f"{torch.get_num_threads()} threads" in lines[2]
    found = {line.split()[0] for line in lines[3:5] if re.search(r"\d\.\d+ s a sentence .* peak memory \d+ MiB", line)}
    assert found == {"reference", "ours"}
    assert 0.01 < float(re.fullmatch(r"ratio (\d+\.\d\d)", lines[-1])[1]) < 100
