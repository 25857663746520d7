"""Task distillation, phase 1: the student imitates the task teacher's inner layers (Jiao et al. 2020)."""

from functools import partial

from tinybert.data.tasks import TASKS
from tinybert.distill.result import train_and_save
from tinybert.distill.task_distill import distil
from tinybert.pipeline import paths
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Gives the general student the task's head and trains it on the augmented rows."""
    task, name = TASKS[stage.items["task"]], stage.items["student"]
    general = paths.general_student(name)
    phase = partial(distil, "intermediate", general, params=stage.params, task=task, name=name, seed=stage.params.seed)
    train_and_save(stage, paths.intermediate(task.name, name), phase, source=general)


if __name__ == "__main__":
    run_stage(main, "task", "student", trains=True)
