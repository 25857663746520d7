"""Task distillation, phase 2: the student imitates the task teacher's answers (Jiao et al. 2020)."""

import torch

from tinybert import paths
from tinybert.corpus.tokenizer import load_tokenizer
from tinybert.glue.encoding import read_examples
from tinybert.glue.tasks import TASKS
from tinybert.launch import is_main_process
from tinybert.models.folder import load_model
from tinybert.objective import Imitation, Objective
from tinybert.stage import Stage, run_stage
from tinybert.training.checkpoint import Checkpoint
from tinybert.training.result import save_trained, training_metrics
from tinybert.training.task import train_on_task


def main(stage: Stage) -> None:
    """Trains on the augmented rows; no model is selected, the last step counts."""
    params, task, name = stage.params, TASKS[stage.items["task"]], stage.items["student"]
    settings = params.glue[task.name]
    tokenizer = load_tokenizer(paths.TOKENIZER)
    examples = read_examples(paths.augmented(task.name), task, tokenizer, max_length_tokens=settings.max_length_tokens)
    torch.manual_seed(params.seed)
    student = load_model(paths.intermediate(task.name, name))
    teacher = load_model(paths.task_model(task.name, "teacher"))
    objective = Objective(Imitation.of(params, name, "prediction"), student.config, teacher.config)
    objective.load(paths.intermediate(task.name, name))

    checkpoint = Checkpoint.of(stage)
    curve = train_on_task(
        student,
        objective,
        examples,
        training=settings.prediction,
        params=params,
        teacher=teacher,
        title=f"{task.name} {name} phase 2",
        on_point=stage.on_point,
        checkpoint=checkpoint,
    )
    if not is_main_process():
        return
    save_trained(student, objective, paths.task_model(task.name, name))
    stage.write_curve(curve)
    stage.write_metrics(training_metrics(student, curve))
    checkpoint.remove()


if __name__ == "__main__":
    run_stage(main, "task", "student", trains=True)
