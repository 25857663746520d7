"""The examination of a domain student: perplexity, quiz, agreement with the teacher, answers side by side."""

import torch

from tinybert.data.sequences import Sequences
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.masking import Masker
from tinybert.evaluate.cloze import answered, best_answers, load_questions, quiz_batches, quiz_scores
from tinybert.evaluate.perplexity import agreement, block_losses, heldout_batches, masked_lm_scores
from tinybert.evaluate.predictions import save_predictions
from tinybert.models.bert import MaskedLM
from tinybert.models.checkpoints import copy_model, load_bert, read_provenance
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_folder, write_json
from tinybert.report.domain_card import write_domain_card
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Examines teacher, student and an untrained student on the same text and the same questions; ships the student."""
    params, name = stage.params, stage.items["student"]
    tokenizer = load_tokenizer(paths.TOKENIZER)
    masker, limit = Masker.of(params.masking, tokenizer), params.domain_evaluation.heldout_sequences
    texts = {
        corpus: heldout_batches(
            Sequences.open(paths.sequences(corpus, "heldout")), masker, limit=limit, seed=params.seed
        )
        for corpus in ("general", "domain")
    }
    questions, dropped = load_questions(params.domain_evaluation.quiz, tokenizer)
    prompts = quiz_batches(questions, tokenizer)

    source = paths.student("domain", name)
    teacher, student = load_bert(MaskedLM, paths.TEACHER), load_bert(MaskedLM, source)
    torch.manual_seed(params.seed)
    models = {"teacher": teacher, "student": student, "untrained": MaskedLM(student.config)}
    metrics = {
        role: {corpus: masked_lm_scores(model, batches) for corpus, batches in texts.items()}
        | {"quiz": quiz_scores(model, questions, prompts)}
        for role, model in models.items()
    }
    metrics["agreement"] = {
        what: agreement(student, teacher, batches) for what, batches in (texts | {"quiz": prompts}).items()
    }
    side_by_side = [
        {"subject": question.subject, "prompt": question.prompt, "answer": question.answer, "teacher": a, "student": b}
        for question, a, b in zip(
            questions, best_answers(teacher, tokenizer, prompts), best_answers(student, tokenizer, prompts), strict=True
        )
    ]
    write_json(paths.quiz_answers(name), side_by_side)
    answers = {f"perplexity_{corpus}": block_losses(student, batches) for corpus, batches in texts.items()}
    answers["quiz"] = answered(student, prompts)
    save_predictions(paths.predictions(stage.name, name), answers)
    with atomic_folder(paths.final("domain", name)) as folder:
        copy_model(source, folder)
        history = read_provenance(source)
        write_domain_card(folder, name=name, model=student, history=history, params=params, metrics=metrics)
    stage.write_metrics(metrics | {"quiz_dropped": dropped})


if __name__ == "__main__":
    run_stage(main, "student")
