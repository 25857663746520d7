"""Evaluation of a domain student: perplexity, cloze accuracy, agreement with the teacher, answers side by side."""

from typing import Any

import torch

from tinybert.data.sequences import Sequences
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.batches import Masker, spread_batches
from tinybert.evaluate.cloze import best_answers, cloze_predictions, cloze_scores, load_questions, quiz_batches
from tinybert.evaluate.perplexity import agreement, masked_lm_scores, sequence_losses
from tinybert.evaluate.predictions import save_predictions
from tinybert.models.bert import MaskedLM
from tinybert.models.checkpoints import load_bert
from tinybert.pipeline import paths
from tinybert.pipeline.files import write_json
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Evaluates teacher, student and an untrained student on the same masked text and the same questions."""
    params, name, seed = stage.params, stage.items["student"], stage.items["seed"]
    tokenizer = load_tokenizer(paths.TOKENIZER)
    masker, limit = Masker.of(params.masking, tokenizer), params.domain_evaluation.heldout_sequences
    texts = {}
    for corpus in ("general", "domain"):
        heldout = Sequences.open(paths.sequences(corpus, "heldout"))
        texts[corpus] = spread_batches(heldout, masker, limit=limit, seed=params.seed)
    questions, dropped = load_questions(params.domain_evaluation.quiz, tokenizer)
    prompts = quiz_batches(questions, tokenizer)

    teacher, student = load_bert(MaskedLM, paths.TEACHER), load_bert(MaskedLM, paths.domain_student(name, seed))
    torch.manual_seed(params.seed)
    models = {"teacher": teacher, "student": student, "untrained": MaskedLM(student.config)}
    metrics: dict[str, dict[str, Any]] = {}
    for role, model in models.items():
        metrics[role] = {corpus: masked_lm_scores(model, batches) for corpus, batches in texts.items()}
        metrics[role]["cloze"] = cloze_scores(model, questions, prompts)
    both = texts | {"cloze": prompts}
    metrics["agreement"] = {what: agreement(student, teacher, batches) for what, batches in both.items()}

    answers = zip(best_answers(teacher, tokenizer, prompts), best_answers(student, tokenizer, prompts), strict=True)
    side_by_side = [
        {"subject": question.subject, "prompt": question.prompt, "answer": question.answer, "teacher": a, "student": b}
        for question, (a, b) in zip(questions, answers, strict=True)
    ]
    write_json(paths.quiz_answers(name, seed), side_by_side)
    predictions = {f"perplexity_{corpus}": sequence_losses(student, batches) for corpus, batches in texts.items()}
    predictions["cloze"] = cloze_predictions(student, prompts)
    save_predictions(paths.predictions(stage.name, stage.instance), predictions)
    stage.write_metrics(metrics | {"questions_dropped": dropped})


if __name__ == "__main__":
    run_stage(main, "student", "seed")
