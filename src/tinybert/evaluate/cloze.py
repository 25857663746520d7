"""The cloze quiz of the domain track: prompts with one [MASK], answers of one word piece."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from tinybert.evaluate.perplexity import EVALUATION_BATCH_SIZE, predicted_logits
from tinybert.evaluate.predictions import Predictions
from tinybert.models.bert import MaskedLM
from tinybert.models.outputs import Batch, pad
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_jsonl
from tinybert.pipeline.text_lines import NO_TEXT

SHOWN_ANSWERS = 5
ALL_SUBJECTS = "all"


@dataclass(frozen=True)
class Question:
    """One prompt with its answer, as text and as a piece of the vocabulary."""

    subject: str
    prompt: str
    answer: str
    answer_id: int


def load_questions(quiz, tokenizer: Tokenizer) -> tuple[list[Question], int]:
    """The questions of the quiz section of params, and how many were dropped: answers of several pieces.

    UserError for a malformed file or when no question is left.
    """
    if quiz.source == "synthetic":
        from tinybert.synthetic.quiz import questions

        rows, origin = questions(), "the synthetic quiz"
    else:
        rows, origin = _read_quiz_file(paths.resolve(quiz.local.file)), quiz.local.file
    kept = []
    for row in rows:
        pieces = tokenizer.encode(row["answer"], add_special_tokens=False).ids
        if len(pieces) == 1 and pieces[0] != tokenizer.token_to_id("[UNK]"):
            kept.append(Question(row["subject"], row["prompt"], row["answer"], pieces[0]))
    if not kept:
        raise UserError(f"{origin}: no question whose answer is one word piece; give answers of single common words")
    return kept, len(rows) - len(kept)


def _read_quiz_file(path: Path) -> list[dict]:
    if not path.is_file():
        raise UserError(
            f"domain_evaluation.quiz.local.file: {path} is absent; create it, or set quiz.source to synthetic"
        )
    rows = list(read_jsonl(path))
    for number, row in enumerate(rows, start=1):
        for key in ("subject", "prompt", "answer"):
            if not isinstance(row.get(key), str) or not row[key] or NO_TEXT.search(row[key]):
                raise UserError(f"{path}, line {number}: {key} is {row.get(key)!r:.40}; a non-empty text is needed")
        if row["prompt"].count("[MASK]") != 1:
            raise UserError(f"{path}, line {number}: prompt {row['prompt']!r:.80} must hold [MASK] exactly once")
        if row["subject"] == ALL_SUBJECTS:
            raise UserError(f"{path}, line {number}: subject {ALL_SUBJECTS!r} stands for all; call it otherwise")
    return rows


def prompt_batch(prompts: Sequence[str], tokenizer: Tokenizer) -> Batch:
    """Prompts with one [MASK] each, as a batch that predicts it, without labels."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    encodings = tokenizer.encode_batch(list(prompts))
    input_ids, mask = pad([np.asarray(encoding.ids, dtype=np.int64) for encoding in encodings])
    mask_id = tokenizer.token_to_id("[MASK]")
    assert mask_id is not None  # every tokenizer of ours has it
    positions = (input_ids.flatten() == mask_id).nonzero().flatten()
    return Batch(input_ids, mask, torch.zeros_like(input_ids), positions=positions)


def quiz_batches(questions: Sequence[Question], tokenizer: Tokenizer) -> list[Batch]:
    """The prompts as batches that predict their [MASK], labels being the answers."""
    batches = []
    for start in range(0, len(questions), EVALUATION_BATCH_SIZE):
        part = questions[start : start + EVALUATION_BATCH_SIZE]
        labels = torch.tensor([question.answer_id for question in part])
        batches.append(replace(prompt_batch([question.prompt for question in part], tokenizer), labels=labels))
    return batches


def quiz_scores(model: MaskedLM, questions: Sequence[Question], batches: Sequence[Batch]) -> dict[str, dict]:
    """Questions, top-1 and top-5 accuracy, over all and for each subject."""
    rank = _ranks(model, batches)
    subjects = {ALL_SUBJECTS: list(range(len(questions)))}
    for index, question in enumerate(questions):
        subjects.setdefault(question.subject, []).append(index)
    return {
        subject: {
            "questions": len(indices),
            "top1": (rank[indices] < 1).float().mean().item(),
            "top5": (rank[indices] < 5).float().mean().item(),
        }
        for subject, indices in subjects.items()
    }


def answered(model: MaskedLM, batches: Sequence[Batch]) -> Predictions:
    """Whether each question's answer is the likeliest piece: 1 or 0; the labels are 1, so that accuracy is top-1."""
    right = (_ranks(model, batches) < 1).numpy().astype(np.int64)
    return Predictions("accuracy", np.ones_like(right), right)


def _ranks(model: MaskedLM, batches: Sequence[Batch]) -> torch.Tensor:
    """The place of each question's answer among the pieces (questions,), 0 being the likeliest."""
    logits = torch.cat(list(predicted_logits(model, batches)))
    labels = torch.cat([batch.gold for batch in batches])
    # Pieces at least as likely as the right one: a model that cannot tell them apart has not answered.
    return (logits >= logits.gather(1, labels[:, None])).sum(-1) - 1


def best_answers(model: MaskedLM, tokenizer: Tokenizer, batches: Sequence[Batch]) -> list[list[dict]]:
    """For each question the five likeliest pieces with their probabilities."""
    answers = []
    for logits in predicted_logits(model, batches):
        probabilities, pieces = logits.softmax(-1).topk(SHOWN_ANSWERS)
        for row_probabilities, row_pieces in zip(probabilities.tolist(), pieces.tolist(), strict=True):
            answers.append(
                [
                    {"token": tokenizer.id_to_token(piece), "probability": probability}
                    for piece, probability in zip(row_pieces, row_probabilities, strict=True)
                ]
            )
    return answers
