"""Evaluation of domain students: perplexity, cloze accuracy, agreement with the teacher, answers side by side."""

from functools import partial
from itertools import product

import torch

from tinybert.data.sequences import Sequences
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.batches import Masker, spread_batches
from tinybert.evaluate import language_model as lm
from tinybert.evaluate.scoring import save_predictions
from tinybert.models.bert import MaskedLM
from tinybert.models.model_folders import load_bert
from tinybert.pipeline import paths
from tinybert.pipeline.files import write_json
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Evaluates the teacher, each student and an untrained student on the same masked text and the same questions."""
    params = stage.params
    # DVC needs the folders even if there is no student.
    for path in (paths.quiz_answers("", ""), paths.predictions(stage.name, "-"), paths.metrics(stage.name, "-")):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not params.domain.students:
        return
    tokenizer = load_tokenizer(paths.TOKENIZER)
    masker, limit = Masker.of(params.masking, tokenizer), params.domain_evaluation.heldout_sequences
    heldout = {corpus: Sequences.open(paths.sequences(corpus, "heldout")) for corpus in ("general", "domain")}
    texts = {name: spread_batches(rows, masker, limit=limit, seed=params.seed) for name, rows in heldout.items()}
    questions, dropped = lm.load_questions(params.domain_evaluation.quiz, tokenizer)
    prompts = lm.quiz_batches(questions, tokenizer)
    evaluated = partial(lm.all_scores, texts=texts, questions=questions, prompts=prompts)
    teacher = load_bert(MaskedLM, paths.TEACHER)
    (of_teacher, _), answers_of_teacher = evaluated(teacher), lm.best_answers(teacher, tokenizer, prompts)
    untrained: dict = {}
    for name, seed in product(params.domain.students, params.seeds):
        student, part = load_bert(MaskedLM, paths.domain_student(name, seed)), f"{name}-{seed}"
        of_student, predictions = evaluated(student)
        if student.config not in untrained:
            torch.manual_seed(params.seed)
            untrained[student.config] = evaluated(MaskedLM(student.config))[0]
        metrics: dict = {"teacher": of_teacher, "student": of_student, "untrained": untrained[student.config]}
        metrics["agreement"] = {"domain": lm.agreement(student, teacher, texts["domain"])}
        stage.write_metrics(metrics | {"questions_dropped": dropped}, part)

        answers = zip(questions, answers_of_teacher, lm.best_answers(student, tokenizer, prompts), strict=True)
        side_by_side = [question | {"teacher": theirs, "student": ours} for question, theirs, ours in answers]
        write_json(paths.quiz_answers(name, seed), side_by_side)
        save_predictions(paths.predictions(stage.name, part), predictions)


if __name__ == "__main__":
    run_stage(main)
