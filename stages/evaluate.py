"""Scores of a task student beside its teacher and the majority class, on the dev splits that selected nothing."""

from tinybert.data.tasks import TASKS
from tinybert.evaluate.predictions import Predictions, save_predictions
from tinybert.evaluate.scoring import compare_on_splits
from tinybert.models.checkpoints import load_task_model
from tinybert.pipeline import paths
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Scores the student of one seed, the teacher and the majority class on each dev split of the task."""
    params, task = stage.params, TASKS[stage.items["task"]]
    teacher = load_task_model(paths.task_model(task.name, params.seed, "teacher"))
    student = load_task_model(paths.task_model(task.name, stage.items["seed"], stage.items["student"]))
    limit = params.tasks[task.name].max_length_tokens
    metrics, predicted = compare_on_splits(student, teacher, task, max_length_tokens=limit)
    labels = predicted.pop("labels")
    systems = {name: Predictions(task.headline, labels, found) for name, found in predicted.items()}
    save_predictions(paths.predictions(stage.name, stage.instance), systems)
    parameters = {"teacher": teacher.parameter_count, "student": student.parameter_count}
    stage.write_metrics(metrics | {"parameters": parameters})


if __name__ == "__main__":
    run_stage(main, "task", "student", "seed")
