"""The cloze probe on models with known logits."""

import json
import math
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.root import ROOT
from tests.unit.evaluate.fixed_model import Fixed
from tinybert.data.tokenizer import train_tokenizer
from tinybert.evaluate.language_model import (
    best_answers,
    cloze_scores,
    load_questions,
    main,
    quiz_batches,
)
from tinybert.pipeline.errors import UserError


@pytest.fixture(scope="module")
def tokenizer():
    text = "the capital of france is paris . the capital of italy is rome . a river is the nile"
    return train_tokenizer([text] * 3, vocabulary_size=200)


def quiz_file(tmp_path, rows):
    path = tmp_path / "quiz.jsonl"
    path.write_text("\ufeff" + "\n".join(map(json.dumps, rows)) + "\n\n")
    return SimpleNamespace(source="local", local=SimpleNamespace(file=str(path)))


ROWS = [
    {"subject": "geography", "prompt": "The capital of France is [MASK].", "answer": "paris"},
    {"subject": "geography", "prompt": "[MASK] is the capital of Italy.", "answer": "rome"},
    {"subject": "history", "prompt": "the river [MASK]", "answer": "nile"},
    {"subject": "history", "prompt": "the river [MASK]", "answer": "mississippi"},
]


def test_quiz_scores_top1_and_top5_by_subject(tmp_path, tokenizer):
    rows = [ROWS[0] | {"note": "no part of a question"}, *ROWS[1:]]
    questions, dropped = load_questions(quiz_file(tmp_path, rows), tokenizer)
    assert questions[0] == ROWS[0] and (len(questions), dropped) == (3, 1)
    batches = quiz_batches(questions, tokenizer)
    mask = tokenizer.token_to_id("[MASK]")
    assert (batches[0].input_ids.flatten()[batches[0].positions] == mask).all()
    logits = np.zeros((3, tokenizer.get_vocab_size()), dtype=np.float32)
    ids = [tokenizer.token_to_id(answer) for answer in ("paris", "rome", "nile")]
    logits[0, ids[0]] = 9.0  # first
    logits[1, ids[1]], logits[1, ids[0]] = 8.0, 9.0  # second
    logits[2, 10:15], logits[2, ids[2]] = 9.0, 8.0  # sixth
    found, _ = cloze_scores(Fixed(logits), questions, batches)
    assert found["geography"] == {"questions": 2, "top1": 0.5, "top5": 1.0}
    assert found["history"] == {"questions": 1, "top1": 0.0, "top5": 0.0}
    assert found["all"] == pytest.approx({"questions": 3, "top1": 1 / 3, "top5": 2 / 3})
    best = best_answers(Fixed(logits), tokenizer, batches)
    assert best[0][0]["token"] == "paris"
    assert best[0][0]["probability"] == pytest.approx(math.exp(9) / (math.exp(9) + logits.shape[1] - 1))
    assert [len(answers) for answers in best] == [5, 5, 5]


def test_a_model_that_ranks_all_tokens_alike_answers_nothing(tmp_path, tokenizer):
    questions, _ = load_questions(quiz_file(tmp_path, ROWS), tokenizer)
    constant = np.zeros((3, tokenizer.get_vocab_size()), dtype=np.float32)
    found, _ = cloze_scores(Fixed(constant), questions, quiz_batches(questions, tokenizer))
    assert found["all"] == {"questions": 3, "top1": 0.0, "top5": 0.0}


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"subject": "x", "prompt": "no mask", "answer": "a"}, "line 1, column prompt: must have .*no mask"),
        ({"subject": "x", "prompt": "[MASK]"}, "no column 'answer'"),
        ({"subject": "all", "prompt": "[MASK]", "answer": "a"}, r"line 1, column subject: reserved \(got 'all'\)"),
        ({"subject": "x", "prompt": "[MASK]", "answer": "\ud800"}, "line 1, column answer: no text"),
        ({"subject": "history", "prompt": "[MASK]", "answer": "mississippi"}, "no question whose answer is a single"),
    ],
)
def test_unusable_quizzes_are_refused(tmp_path, tokenizer, row, named):
    with pytest.raises(UserError, match=named):
        load_questions(quiz_file(tmp_path, [row]), tokenizer)


def test_absent_quiz_file(tokenizer):
    with pytest.raises(UserError, match=r"none\.jsonl does not exist"):
        load_questions(SimpleNamespace(source="local", local=SimpleNamespace(file="none.jsonl")), tokenizer)


def test_cloze_predictions_score_as_top1(tmp_path, tokenizer):
    questions, _ = load_questions(quiz_file(tmp_path, ROWS), tokenizer)
    logits = np.zeros((3, tokenizer.get_vocab_size()), dtype=np.float32)
    logits[1, tokenizer.token_to_id("rome")] = 1.0
    _, found = cloze_scores(Fixed(logits), questions, quiz_batches(questions, tokenizer))
    assert found.predictions.tolist() == [0, 1, 0] and found.labels.tolist() == [1, 1, 1]


def test_a_question_needs_one_mask_and_models(tmp_path, monkeypatch):
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="exactly once"):
        main(["The capital is Paris."])
    with pytest.raises(UserError, match="models/teacher: absent"):
        main(["The", "capital", "is", "[MASK]."])
