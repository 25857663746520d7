"""Predictions of task models and their scores."""

import numpy as np
import torch

from tinybert.data.encoding import Encoded, read_examples
from tinybert.data.task_sources import read_rows
from tinybert.data.tasks import Task
from tinybert.data.tokenizer import load_tokenizer
from tinybert.evaluate.predictions import Predictions
from tinybert.evaluate.scoring import is_collapsed, majority_score, retention, score
from tinybert.models.checkpoints import Classifier
from tinybert.models.outputs import best_device
from tinybert.pipeline import paths

EVALUATION_BATCH_SIZE = 64


@torch.no_grad()
def predict(model: Classifier, examples: Encoded, task: Task) -> np.ndarray:
    """Class numbers (rows,) int64, or scores float32 for a regression, in the order of the rows."""
    device = best_device()
    model.config.check_longer(int(examples.lengths.max(initial=0)), f"tasks.{task.name}.max_length_tokens")
    model.to(device).eval()
    logits = np.empty((len(examples), len(model.labels)), dtype=np.float32)
    for indices, batch in examples.batches(EVALUATION_BATCH_SIZE):
        logits[indices] = model(batch.to(device)).logits.cpu().numpy()
    return decide(logits, task)


def decide(logits: np.ndarray, task: Task) -> np.ndarray:
    """Logits (rows, classes) -> class numbers, or (rows, 1) -> scores."""
    return logits[:, 0] if task.is_regression else logits.argmax(-1)


def evaluate(model: Classifier, examples: Encoded, task: Task) -> dict[str, float]:
    """The task's metrics on labelled examples."""
    return score(task, predict(model, examples, task), examples.gold)


def compare_on_splits(
    student: Classifier, teacher: Classifier, task: Task, *, max_length_tokens: int
) -> tuple[dict, dict[str, Predictions]]:
    """`compare` on the task's dev split and on further ones (MNLI has two), and the student's answers to the first."""
    tokenizer, folder = load_tokenizer(paths.TOKENIZER), paths.task_rows(task.name)
    train_labels = np.array([row["label"] for row in read_rows(folder / "train.jsonl", task)])
    devs = [
        read_examples(folder / f"{split}.jsonl", task, tokenizer, max_length_tokens=max_length_tokens)
        for split in task.dev_splits
    ]
    answers = [predict(student, dev, task) for dev in devs]
    first, *further = (
        compare(predictions, teacher, dev, task, train_labels=train_labels)
        for predictions, dev in zip(answers, devs, strict=True)
    )
    facts = {"split": task.dev_splits[0], "selection": "none: the last step"}
    others = dict(zip(task.dev_splits[1:], further, strict=True))
    metrics = facts | first | ({"further_splits": others} if others else {})
    return metrics, {"student": Predictions(task.headline, devs[0].gold, answers[0])}


def compare(
    predictions: np.ndarray,
    teacher: Classifier,
    examples: Encoded,
    task: Task,
    *,
    train_labels: np.ndarray,
) -> dict:
    """Scores of teacher, student and majority guess, what the student keeps of the teacher, whether it collapsed.

    predictions: the student's answers to `examples`.
    """
    scores = {
        "teacher": evaluate(teacher, examples, task),
        "student": score(task, predictions, examples.gold),
        "majority": majority_score(task, train_labels, examples.gold),
    }
    kept = retention(*(scores[who][task.headline] for who in ("student", "teacher", "majority")))
    return scores | {"retention": kept, "collapsed": is_collapsed(task, predictions)}
