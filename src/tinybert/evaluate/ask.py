"""What the teacher and each domain student answer to one cloze question (`make ask Q=...`)."""

import sys
from collections.abc import Sequence

from tinybert.config.load import load_params
from tinybert.data.tokenizer import load_tokenizer
from tinybert.evaluate.cloze import best_answers, prompt_batch
from tinybert.models.bert import MaskedLM
from tinybert.models.checkpoints import load_bert
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError


def ask(question: str, students: Sequence[str]) -> dict[str, list[dict]]:
    """For the teacher and each student, by name, the five likeliest pieces with their probabilities.

    UserError when the question has not exactly one [MASK], or a model is not there yet.
    """
    if question.count("[MASK]") != 1:
        raise UserError(f"Q: {question!r} must hold [MASK] exactly once, such as: The capital of France is [MASK].")
    folders = {"teacher": paths.TEACHER} | {name: paths.student("domain", name) for name in students}
    if missing := [str(folder) for folder in folders.values() if not folder.is_dir()]:
        raise UserError(f"{missing[0]}: absent; run make repro first, which makes the models")
    tokenizer = load_tokenizer(paths.TOKENIZER)
    batches = [prompt_batch([question], tokenizer)]
    return {name: best_answers(load_bert(MaskedLM, folder), tokenizer, batches)[0] for name, folder in folders.items()}


def main() -> None:
    """Prints a line for each model."""
    try:
        answers = ask(" ".join(sys.argv[1:]), load_params().domain.students)
    except UserError as error:
        sys.exit(f"ask: {error}")
    width = max(map(len, answers))
    for name, best in answers.items():
        shown = (f"{answer['token']} {answer['probability']:.3f}" for answer in best)
        print(f"{name:{width}}  " + "  ".join(f"{text:16}" for text in shown).rstrip())


if __name__ == "__main__":
    main()
