"""A task student beside its teacher and the majority guess, on the dev split that nothing was selected by."""

from tinybert.data.tasks import TASKS
from tinybert.evaluate.predictions import save_predictions
from tinybert.evaluate.task_scores import compare_on_splits
from tinybert.models.checkpoints import load_task_model
from tinybert.pipeline import paths
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Scores both models on each dev split of the task (MNLI has two)."""
    task, name = TASKS[stage.items["task"]], stage.items["student"]
    teacher = load_task_model(paths.task_model(task.name, "teacher"))
    student = load_task_model(paths.task_model(task.name, name))
    limit = stage.params.tasks[task.name].max_length_tokens
    metrics, answers = compare_on_splits(student, teacher, task, max_length_tokens=limit)
    save_predictions(paths.predictions(stage.name, stage.instance), answers)
    parameters = {"teacher": teacher.parameter_count, "student": student.parameter_count}
    stage.write_metrics(metrics | {"parameters": parameters})


if __name__ == "__main__":
    run_stage(main, "task", "student")
