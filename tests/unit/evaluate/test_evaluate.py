"""The examination and the task scores on models whose answers are known."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.builders import STUDENT, batch, masked_lm
from tinybert.data.encoding import encode
from tinybert.data.sequences import Sequences
from tinybert.data.tasks import TASKS
from tinybert.data.tokenizer import train_tokenizer
from tinybert.distill.masking import Masker
from tinybert.evaluate.cloze import best_answers, load_questions, quiz_batches, quiz_scores
from tinybert.evaluate.perplexity import agreement, block_losses, frequency_accuracy, heldout_batches, masked_lm_scores
from tinybert.evaluate.task_scores import compare, predict
from tinybert.models.outputs import Batch, ModelOutput
from tinybert.pipeline.errors import UserError

MASKER = Masker(0.3, 0.8, 0.1, special_ids=(0, 1, 2, 3, 4), mask_id=4, vocabulary_size=50)


class Fixed(nn.Module):
    """A model that answers with given logits, batch after batch."""

    def __init__(self, *logits, labels=("0", "1")):
        super().__init__()
        self.answers, self.labels, self.calls = [torch.tensor(part) for part in logits], labels, 0
        self.config = STUDENT

    def forward(self, example):
        self.calls += 1
        return ModelOutput(logits=self.answers[(self.calls - 1) % len(self.answers)])


def blocks_of(rows) -> Sequences:
    return Sequences(np.concatenate(rows), np.cumsum([0, *map(len, rows)]))


def test_masked_lm_scores_by_hand():
    answers = [[[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]], [[0.25, 0.25, 0.5]]]
    batches = [batch(labels=torch.tensor([0, 0])), batch(labels=torch.tensor([2]))]
    found = masked_lm_scores(Fixed(*(np.log(part) for part in answers)), batches)
    loss = -(math.log(0.7) + math.log(0.1) + math.log(0.5)) / 3
    assert found == pytest.approx({"loss": loss, "perplexity": math.exp(loss), "accuracy": 2 / 3}, rel=1e-6)


def test_agreement_by_hand():
    teacher, student = np.log([[0.9, 0.1], [0.6, 0.4]]), np.log([[0.5, 0.5 - 1e-9], [0.2, 0.8]])
    divergence = 0.9 * math.log(1.8) + 0.1 * math.log(0.2) + 0.6 * math.log(3) + 0.4 * math.log(0.5)
    found = agreement(Fixed(student), Fixed(teacher), [batch()])
    assert found == pytest.approx({"top1": 0.5, "kl": divergence / 2}, rel=1e-6)


def test_agreement_with_oneself_is_perfect():
    model, batches = masked_lm(), [batch(positions=torch.tensor([1, 2]))]
    assert agreement(model, model, batches) == pytest.approx({"top1": 1.0, "kl": 0.0}, abs=1e-6)


def test_heldout_text_is_masked_the_same_for_everybody():
    blocks = blocks_of([np.array([2, *range(5, 5 + n), 3]) for n in range(3, 20)])
    first, second = (heldout_batches(blocks, MASKER, limit=5, seed=1) for _ in range(2))
    assert sum(len(part.input_ids) for part in first) == 5
    assert all(torch.equal(a.input_ids, b.input_ids) for a, b in zip(first, second, strict=True))
    assert len(heldout_batches(blocks, MASKER, limit=99, seed=1)[0].input_ids) == 17


def test_frequency_guess_counts_pieces_but_no_specials():
    blocks = blocks_of([np.array([2, 7, 7, 9, 3]), np.array([2, 7, 8, 3])])
    batches = [batch(labels=torch.tensor([7, 7, 8, 9]))]
    assert frequency_accuracy(blocks, batches, MASKER) == 0.5


@pytest.fixture(scope="module")
def tokenizer():
    text = "the capital of france is paris . the capital of italy is rome . a river is the nile"
    return train_tokenizer([text] * 3, vocabulary_size=200)


def quiz_file(tmp_path, rows):
    path = tmp_path / "quiz.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return SimpleNamespace(source="local", local=SimpleNamespace(file=str(path)))


ROWS = [
    {"subject": "geography", "prompt": "The capital of France is [MASK].", "answer": "paris"},
    {"subject": "geography", "prompt": "[MASK] is the capital of Italy.", "answer": "rome"},
    {"subject": "history", "prompt": "the river [MASK]", "answer": "nile"},
    {"subject": "history", "prompt": "the river [MASK]", "answer": "mississippi"},
]


def test_quiz_scores_top1_and_top5_by_subject(tmp_path, tokenizer):
    questions, dropped = load_questions(quiz_file(tmp_path, ROWS), tokenizer)
    assert (len(questions), dropped) == (3, 1)
    batches = quiz_batches(questions, tokenizer)
    mask = tokenizer.token_to_id("[MASK]")
    assert (batches[0].input_ids.flatten()[batches[0].positions] == mask).all()
    logits = np.zeros((3, tokenizer.get_vocab_size()), dtype=np.float32)
    ids = [tokenizer.token_to_id(answer) for answer in ("paris", "rome", "nile")]
    logits[0, ids[0]] = 9.0  # first
    logits[1, ids[1]], logits[1, ids[0]] = 8.0, 9.0  # second
    logits[2, 10:15], logits[2, ids[2]] = 9.0, 8.0  # sixth
    found = quiz_scores(Fixed(logits), questions, batches)
    assert found["geography"] == {"questions": 2, "top1": 0.5, "top5": 1.0}
    assert found["history"] == {"questions": 1, "top1": 0.0, "top5": 0.0}
    assert found["all"] == pytest.approx({"questions": 3, "top1": 1 / 3, "top5": 2 / 3})
    best = best_answers(Fixed(logits), tokenizer, batches)
    assert best[0][0]["token"] == "paris"
    assert best[0][0]["probability"] == pytest.approx(math.exp(9) / (math.exp(9) + logits.shape[1] - 1))
    assert [len(answers) for answers in best] == [5, 5, 5]


def test_a_model_that_cannot_tell_pieces_apart_answers_nothing(tmp_path, tokenizer):
    questions, _ = load_questions(quiz_file(tmp_path, ROWS), tokenizer)
    constant = np.zeros((3, tokenizer.get_vocab_size()), dtype=np.float32)
    found = quiz_scores(Fixed(constant), questions, quiz_batches(questions, tokenizer))
    assert found["all"] == {"questions": 3, "top1": 0.0, "top5": 0.0}


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"subject": "x", "prompt": "no mask", "answer": "a"}, "line 1: prompt 'no mask' must hold"),
        ({"subject": "x", "prompt": "[MASK]"}, "line 1: answer is None"),
        ({"subject": "all", "prompt": "[MASK]", "answer": "a"}, "line 1: subject 'all' stands for all; call it"),
        ({"subject": "x", "prompt": "[MASK]", "answer": "\ud800"}, "line 1: answer is .*; a non-empty text is needed"),
        ({"subject": "history", "prompt": "[MASK]", "answer": "mississippi"}, "no question whose answer is one"),
    ],
)
def test_unusable_quizzes_are_refused(tmp_path, tokenizer, row, named):
    with pytest.raises(UserError, match=named):
        load_questions(quiz_file(tmp_path, [row]), tokenizer)


def test_absent_quiz_file(tokenizer):
    with pytest.raises(UserError, match=r"none\.jsonl is absent"):
        load_questions(SimpleNamespace(source="local", local=SimpleNamespace(file="none.jsonl")), tokenizer)


def test_predictions_come_in_the_order_of_the_rows(tokenizer):
    texts = ["the capital of france", "rome", "a river", "the nile is a river is"]
    rows = [{"sentence": text, "label": number % 2} for number, text in enumerate(texts)]
    examples = encode(rows, TASKS["cola"], tokenizer, max_length_tokens=16)
    assert examples.labels.tolist() == [0, 1, 0, 1]
    by_length = [[0.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]  # rome, river, capital, nile
    assert predict(Fixed(by_length), examples, TASKS["cola"]).tolist() == [0, 1, 0, 1]


def test_comparison_of_student_teacher_and_majority(tokenizer):
    rows = [{"sentence": "rome", "label": label} for label in (1, 1, 1, 0)]
    examples = encode(rows, TASKS["sst2"], tokenizer, max_length_tokens=8)
    right = [[0.0, 1.0]] * 3 + [[1.0, 0.0]]
    found = compare(np.array([1, 1, 1, 1]), Fixed(right), examples, TASKS["sst2"], train_labels=np.array([1, 1, 0]))
    assert [found[who]["accuracy"] for who in ("teacher", "student", "majority")] == [1.0, 0.75, 0.75]
    assert found["retention"] == {"plain": 0.75, "above_majority": 0.0}
    assert found["collapsed"] is True
    sound = compare(np.array([1, 1, 1, 0]), Fixed(right), examples, TASKS["sst2"], train_labels=np.array([1]))
    assert sound["collapsed"] is False


def test_pairs_are_encoded_with_segments_and_cut_at_the_longer_part(tokenizer):
    row = {"sentence1": "the capital of france is paris", "sentence2": "rome", "label": 1}
    encoded = encode([row], TASKS["mrpc"], tokenizer, max_length_tokens=7)
    pieces = [tokenizer.id_to_token(piece) for piece in encoded.input_ids[0]]
    assert pieces == ["[CLS]", "the", "capital", "of", "[SEP]", "rome", "[SEP]"]
    assert encoded.token_type_ids[0].tolist() == [0, 0, 0, 0, 0, 1, 1]


def test_losses_of_blocks_sum_over_their_masked_tokens():
    batch = Batch(
        torch.zeros(2, 3, dtype=torch.int64),
        torch.ones(2, 3, dtype=torch.bool),
        torch.zeros(2, 3, dtype=torch.int64),
        labels=torch.tensor([1, 0, 1]),
        positions=torch.tensor([0, 4, 5]),  # one in the first row, two in the second
    )
    model = Fixed([[0.0, 0.0], [math.log(3), 0.0], [math.log(3), 0.0]])
    found = block_losses(model, [batch])
    assert found.labels.tolist() == [1, 2]
    assert found.predictions == pytest.approx([math.log(2), math.log(4 / 3) + math.log(4)])
    assert found.score == pytest.approx(masked_lm_scores(model, [batch])["perplexity"])
