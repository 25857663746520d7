"""Evaluation of masked LMs: perplexity, agreement with a teacher, the cloze probe; `tinybert ask`."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from tinybert.config.load import load_params
from tinybert.config.schema import Quiz
from tinybert.data.table_files import Table
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.batches import TEXT_BATCH_SIZE
from tinybert.evaluate.scoring import Predictions
from tinybert.models.bert import MaskedLM
from tinybert.models.model_folders import load_bert
from tinybert.models.outputs import Batch, best_device, pad
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import NO_TEXT
from tinybert.synthetic import articles

ALL_SUBJECTS = "all"
QUESTION_KEYS = ("subject", "prompt", "answer")
Question = dict[str, str]  # by QUESTION_KEYS


@torch.no_grad()
def predicted_logits(model: MaskedLM, batches: Sequence[Batch]) -> Iterator[torch.Tensor]:
    """Yields the logits of each batch, (masked tokens, vocabulary) float32 on the CPU, in evaluation mode."""
    device = best_device()
    model.to(device).eval()
    for batch in batches:
        model.config.check_length(batch.input_ids.shape[1], "domain_evaluation.quiz")
        logits = model(batch.to(device)).logits.cpu()
        if not logits.isfinite().all():
            raise UserError("domain_evaluation: a model's logits are not finite, its training diverged; "
                            "fix: lower learning_rate")  # fmt: skip
        yield logits


def masked_lm_scores(model: MaskedLM, batches: Sequence[Batch]) -> tuple[dict[str, float], Predictions]:
    """Computes the mean cross-entropy over masked tokens (nats), its exponential, and the accuracy.

    Also returned for each sequence: the sum of its tokens' cross-entropies, with the number of these tokens as label.
    """
    losses, tokens, right = [], [], 0.0
    for batch, logits in zip(batches, predicted_logits(model, batches), strict=True):
        rows, width = batch.input_ids.shape
        assert batch.positions is not None  # it has masked tokens
        row_of_token = (batch.positions // width).numpy()
        of_token = F.cross_entropy(logits, batch.gold, reduction="none").double().numpy()
        losses.append(np.bincount(row_of_token, weights=of_token, minlength=rows))
        tokens.append(np.bincount(row_of_token, minlength=rows))
        right += (logits.argmax(-1) == batch.gold).sum().item()
    found = Predictions("perplexity", np.concatenate(tokens), np.concatenate(losses))
    count = int(found.labels.sum())
    return {"loss": float(found.predictions.sum() / count), "perplexity": found.score, "accuracy": right / count}, found


def agreement(student: MaskedLM, teacher: MaskedLM, batches: Sequence[Batch]) -> dict[str, float]:
    """Compares two models over masked tokens: share of equal top-1 tokens, mean KL(teacher || student) in nats."""
    same = divergence = count = 0.0
    both = zip(predicted_logits(student, batches), predicted_logits(teacher, batches), strict=True)
    for student_logits, teacher_logits in both:
        same += (student_logits.argmax(-1) == teacher_logits.argmax(-1)).sum().item()
        ours, theirs = student_logits.log_softmax(-1), teacher_logits.log_softmax(-1)
        divergence += F.kl_div(ours, theirs, reduction="sum", log_target=True).item()
        count += len(student_logits)
    return {"top1": same / count, "kl": divergence / count}


def load_questions(quiz: Quiz, tokenizer: Tokenizer) -> tuple[list[Question], int]:
    """Loads the questions that the quiz section of params names; UserError if its file is malformed or none is left.

    Returns:
        The questions, and how many were dropped because their answer is not a single token.
    """
    if quiz.source == "synthetic":
        rows, origin = articles.questions(), "the synthetic quiz"
    else:
        rows, origin = read_quiz_file(quiz.local.file), quiz.local.file
    kept = [row for row in rows if _answer_id(row, tokenizer) is not None]
    if not kept:
        raise UserError(f"{origin}: no question whose answer is a single token; fix: ask for single common words")
    return kept, len(rows) - len(kept)


def _answer_id(question: Question, tokenizer: Tokenizer) -> int | None:
    """The answer as a token of the vocabulary, if it is a single one."""
    tokens = tokenizer.encode(question["answer"], add_special_tokens=False).ids
    return tokens[0] if len(tokens) == 1 and tokens[0] != tokenizer.token_to_id("[UNK]") else None


def read_quiz_file(file: str) -> list[Question]:
    """The questions of a table; UserError for the first malformed row."""
    table, questions = Table(file, "domain_evaluation.quiz.local.file"), []
    for where, row in table.rows(QUESTION_KEYS):
        for column, text in row.items():
            if not isinstance(text, str) or not text or NO_TEXT.search(text):
                raise table.error(f"{where}, column {column}: no text (got {text!r:.40}); fix: correct the row")
        if row["prompt"].count("[MASK]") != 1:
            found = f"{row['prompt']!r:.80}"
            raise table.error(f"{where}, column prompt: must have [MASK] exactly once (got {found}); fix: correct it")
        if row["subject"] == ALL_SUBJECTS:
            raise table.error(f"{where}, column subject: reserved (got {ALL_SUBJECTS!r}); fix: choose another")
        questions.append(row)
    return questions


def prompt_batch(prompts: Sequence[str], tokenizer: Tokenizer) -> Batch:
    """Encodes prompts with one [MASK] each as a batch that predicts it, without labels."""
    encodings = tokenizer.encode_batch(list(prompts))
    input_ids, mask = pad([np.asarray(encoding.ids, dtype=np.int64) for encoding in encodings])
    mask_id = tokenizer.token_to_id("[MASK]")
    assert mask_id is not None  # the tokenizer stage checks it
    positions = (input_ids.flatten() == mask_id).nonzero().flatten()
    return Batch(input_ids, mask, torch.zeros_like(input_ids), positions=positions)


def quiz_batches(questions: Sequence[Question], tokenizer: Tokenizer) -> list[Batch]:
    """Encodes the prompts as batches that predict their [MASK]; labels are the answers."""
    batches = []
    for start in range(0, len(questions), TEXT_BATCH_SIZE):
        part = questions[start : start + TEXT_BATCH_SIZE]
        labels = torch.tensor([_answer_id(question, tokenizer) for question in part])
        batches.append(replace(prompt_batch([question["prompt"] for question in part], tokenizer), labels=labels))
    return batches


def cloze_scores(
    model: MaskedLM, questions: Sequence[Question], batches: Sequence[Batch]
) -> tuple[dict[str, dict], Predictions]:
    """Computes the number of questions, top-1 and top-5 cloze accuracy, over "all" and for each subject.

    Also returned for each question: 1 where its answer is the likeliest token, else 0; labels are 1.
    """
    # The rank of the answer, 0 is the likeliest. Ties rank above the answer: a model that gives all tokens the same
    # logit has answered nothing.
    both = zip(batches, predicted_logits(model, batches), strict=True)
    ranks = torch.cat([(logits >= logits.gather(1, batch.gold[:, None])).sum(-1) - 1 for batch, logits in both])
    subjects = {ALL_SUBJECTS: list(range(len(questions)))}
    for index, question in enumerate(questions):
        subjects.setdefault(question["subject"], []).append(index)
    scores = {
        subject: {"questions": len(rows)} | {f"top{n}": (ranks[rows] < n).float().mean().item() for n in (1, 5)}
        for subject, rows in subjects.items()
    }
    right = (ranks < 1).numpy().astype(np.int64)
    return scores, Predictions("accuracy", np.ones_like(right), right)


def all_scores(
    model: MaskedLM, texts: Mapping[str, Sequence[Batch]], questions: Sequence[Question], prompts: Sequence[Batch]
) -> tuple[dict[str, dict], dict[str, Predictions]]:
    """The scores on each corpus and on the questions ("cloze"), and the predictions that they come from."""
    scores, predictions = dict[str, dict](), dict[str, Predictions]()
    for corpus, batches in texts.items():
        scores[corpus], predictions[f"perplexity_{corpus}"] = masked_lm_scores(model, batches)
    scores["cloze"], predictions["cloze"] = cloze_scores(model, questions, prompts)
    return scores, predictions


def best_answers(model: MaskedLM, tokenizer: Tokenizer, batches: Sequence[Batch]) -> list[list[dict]]:
    """Returns the five likeliest tokens of each question with their probabilities."""
    best = (logits.softmax(-1).topk(5) for logits in predicted_logits(model, batches))
    return [
        [{"token": tokenizer.id_to_token(token), "probability": share} for share, token in zip(*row, strict=True)]
        for shares, tokens in best
        for row in zip(shares.tolist(), tokens.tolist(), strict=True)
    ]


def main(argv: Sequence[str]) -> None:
    """Prints a line of answers for the teacher and each domain student of the global seed."""
    parser = argparse.ArgumentParser(prog="tinybert ask", description="Ask teacher and domain students.")
    parser.add_argument("question", nargs="+", help="a text with one [MASK]")
    question = " ".join(parser.parse_args(argv).question)
    if question.count("[MASK]") != 1 or NO_TEXT.search(question):
        fix = "ask, for example: The capital of France is [MASK]."
        raise UserError(f"question: must be UTF-8 text with [MASK] exactly once (got {question!a:.80}); fix: {fix}")
    params = load_params()
    folders = {"teacher": paths.TEACHER}
    folders |= {name: paths.domain_student(name, params.seed) for name in params.domain.students}
    if missing := [folder for folder in folders.values() if not folder.is_dir()]:
        raise UserError(f"{missing[0]}: absent; fix: run dvc repro evaluate_domain first, which trains the models")
    tokenizer, width = load_tokenizer(paths.TOKENIZER), max(map(len, folders))
    for name, folder in folders.items():
        (best,) = best_answers(load_bert(MaskedLM, folder), tokenizer, [prompt_batch([question], tokenizer)])
        shown = (f"{answer['token']} {answer['probability']:.3f}" for answer in best)
        print(f"{name:{width}}  " + "  ".join(f"{text:16}" for text in shown).rstrip())
