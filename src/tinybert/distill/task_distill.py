"""Task distillation of one student (Jiao et al. 2020): its inner layers first, then its answers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from tinybert.config.students import training_of
from tinybert.data.encoding import Encoded, read_examples
from tinybert.data.tasks import Task
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.result import Trained
from tinybert.distill.task_training import train_on_task
from tinybert.distill.teacher_cache import TeacherCache
from tinybert.evaluate.task_scores import predict
from tinybert.models.bert import SequenceClassifier
from tinybert.models.checkpoints import Classifier, load_bert, load_classifier, load_task_model
from tinybert.pipeline import paths


def distil(phase: str, source: Path, *, params, task: Task, name: str, seed: int, **run) -> Trained[Classifier]:
    """Trains the student in folder `source` on the task's augmented rows (`run`: hooks of training.loop.train).

    phase: "intermediate", from a general student, which gets a new head; or "prediction", from the phase before.
    No model is selected, the last step counts; with 0 epochs, or no recipe for the phase, it passes through.
    seed: of the head, the order of rows and dropout.
    """
    torch.manual_seed(seed)
    is_new = phase == "intermediate"
    student = load_classifier(source, task.labels, pair=task.is_pair) if is_new else load_task_model(source)
    teacher = load_bert(SequenceClassifier, paths.task_model(task.name, "teacher"))
    imitation = replace(DistillationConfig.of(params, name, phase), seed=seed)
    objective = DistillationLoss(imitation, student.config, teacher.config)
    objective.load(source)
    training = training_of(params, name, phase, task=task.name)
    if not (objective.weights and training.epochs):
        return Trained(student, objective, [])
    limit = params.tasks[task.name].max_length_tokens
    rows = read_examples(paths.augmented(task.name), task, load_tokenizer(paths.TOKENIZER), max_length_tokens=limit)
    curve = train_on_task(
        student,
        objective,
        labelled_by_teacher(rows, teacher, task) if "hard" in objective.weights else rows,
        training=training,
        params=params,
        seed=seed,
        store=teacher_cache(params),
        teacher=teacher,
        title=f"{task.name} {name} {phase}",
        **run,
    )
    return Trained(student, objective, curve)


def labelled_by_teacher(examples: Encoded, teacher: SequenceClassifier, task: Task) -> Encoded:
    """The examples, in which rows that augmentation made have the teacher's answer as their label (Tang et al. 2019).

    What a variation says need not be what its original's gold label says.
    """
    if examples.varied is None or not examples.varied.any():
        return examples
    return replace(examples, labels=np.where(examples.varied, predict(teacher, examples, task), examples.gold))


def teacher_cache(params) -> TeacherCache | None:
    """Where params let the teacher's answers be kept, if they do."""
    limit_bytes = int(params.tasks.teacher_cache_gb * 1e9)
    return TeacherCache(paths.teacher_cache(), limit_bytes) if limit_bytes else None
