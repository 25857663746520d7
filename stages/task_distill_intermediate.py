"""Task distillation, phase 1: the student imitates the task teacher's inner layers (Jiao et al. 2020)."""

import torch

from tinybert.config.students import training_of
from tinybert.data.tasks import read_task
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.task_teacher import TaskTeacher
from tinybert.models.checkpoints import load_classifier
from tinybert.pipeline import paths
from tinybert.pipeline.files import read_jsonl
from tinybert.pipeline.process import is_main_process
from tinybert.stage import Stage, run_stage
from tinybert.training import StageTraining


def main(stage: Stage) -> None:
    """Gives the general student the task's head and trains it on the augmented rows; a student may skip this phase."""
    params, task = stage.params, read_task(stage.items["task"])
    name, seed = stage.items["student"], int(stage.items["seed"])
    source, target = paths.general_student(name), paths.intermediate(task.name, seed, name)

    torch.manual_seed(seed)
    student = load_classifier(source, task.labels, pair=task.is_pair, multilabel=task.is_multilabel)
    tokenizer, limit = load_tokenizer(paths.TOKENIZER), params.tasks[task.name].max_length_tokens
    teacher = TaskTeacher.load(task, stage.names["seed"], tokenizer, max_length_tokens=limit)
    config = DistillationConfig.of(params.students[name], "intermediate", seed=seed, length_tokens=limit)
    loss = DistillationLoss(config, student.config, teacher.model.config)
    loss.load(source)
    training = StageTraining(stage, student, loss, target, source)

    section = training_of(params, name, "intermediate", task=task.name)
    training.distill(teacher, read_jsonl(paths.augmented(task.name)), section, seed)
    if is_main_process():
        training.save()
        training.finish()


if __name__ == "__main__":
    run_stage(main, "task", "student", "seed", trains=True)
