"""Task distillation, phase 2: the student imitates the task teacher's predictions (Jiao et al. 2020)."""

import torch

from tinybert.config.students import training_of
from tinybert.data.tasks import read_task
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.task_teacher import TaskTeacher
from tinybert.models.checkpoints import load_task_model
from tinybert.pipeline import paths
from tinybert.pipeline.files import read_jsonl
from tinybert.pipeline.process import is_main_process
from tinybert.stage import Stage, run_stage
from tinybert.training import StageTraining


def main(stage: Stage) -> None:
    """Trains the student of phase 1 on the augmented rows; no model is selected, the last step counts."""
    params, task = stage.params, read_task(stage.items["task"])
    name, seed = stage.items["student"], int(stage.items["seed"])
    source, target = paths.intermediate(task.name, seed, name), paths.task_model(task.name, seed, name)

    torch.manual_seed(seed)
    student = load_task_model(source)
    tokenizer, limit = load_tokenizer(paths.TOKENIZER), params.tasks[task.name].max_length_tokens
    teacher = TaskTeacher.load(task, stage.names["seed"], tokenizer, max_length_tokens=limit)
    config = DistillationConfig.of(params.students[name], "prediction", seed=seed, length_tokens=limit)
    loss = DistillationLoss(config, student.config, teacher.model.config)
    loss.load(source)
    training = StageTraining(stage, student, loss, target, source)

    section = training_of(params, name, "prediction", task=task.name)
    training.distill(teacher, read_jsonl(paths.augmented(task.name)), section, seed)
    if is_main_process():
        training.save()
        training.finish()


if __name__ == "__main__":
    run_stage(main, "task", "student", "seed", trains=True)
