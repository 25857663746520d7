"""Scores of a task's students beside their teacher and the majority class, on the dev splits that selected nothing."""

from itertools import product

from tinybert.data.tasks import TASKS
from tinybert.evaluate.predictions import Predictions, save_predictions
from tinybert.evaluate.scoring import compare_on_splits
from tinybert.models.checkpoints import load_task_model
from tinybert.pipeline import paths
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Scores the students of all seeds, the teacher and the majority class on each dev split of the task."""
    params, task = stage.params, TASKS[stage.items["task"]]
    teacher = load_task_model(paths.task_model(task.name, params.seed, "teacher"))
    limit = params.tasks[task.name].max_length_tokens
    for name, seed in product(params.tasks.students, params.seeds):
        student = load_task_model(paths.task_model(task.name, seed, name))
        metrics, predicted = compare_on_splits(student, teacher, task, max_length_tokens=limit)
        labels, part = predicted.pop("labels"), f"{task.name}/{name}-{seed}"
        systems = {system: Predictions(task.headline, labels, found) for system, found in predicted.items()}
        save_predictions(paths.predictions(stage.name, part), systems)
        parameters = {"teacher": teacher.parameter_count, "student": student.parameter_count}
        stage.write_metrics(metrics | {"parameters": parameters}, part)


if __name__ == "__main__":
    run_stage(main, "task")
