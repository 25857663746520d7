"""Task distillation, phase 2: the student imitates the task teacher's answers (Jiao et al. 2020)."""

from functools import partial

from tinybert.data.tasks import TASKS
from tinybert.distill.result import train_and_save
from tinybert.distill.task_distill import distil
from tinybert.pipeline import paths
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Trains the student of phase 1 on the augmented rows."""
    task, name = TASKS[stage.items["task"]], stage.items["student"]
    before = paths.intermediate(task.name, name)
    phase = partial(distil, "prediction", before, params=stage.params, task=task, name=name, seed=stage.params.seed)
    train_and_save(stage, paths.task_model(task.name, name), phase, source=before)


if __name__ == "__main__":
    run_stage(main, "task", "student", trains=True)
