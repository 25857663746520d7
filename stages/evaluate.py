"""Scores and costs of a task student, its teacher and the majority class, on the dev splits that selected nothing."""

from functools import partial

from tinybert.data.tasks import read_task
from tinybert.distill.batches import predict
from tinybert.evaluate.scoring import compare_splits, model_costs, predict_references, save_predictions
from tinybert.models.checkpoints import load_task_model
from tinybert.pipeline import paths
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Scores the student of each seed, the teacher and the majority class on each dev split; counts their FLOPs."""
    params, task, name = stage.params, read_task(stage.items["task"]), stage.items["student"]
    teacher = load_task_model(paths.task_model(task.name, params.seed, "teacher"))
    references = predict_references(teacher, task, max_length_tokens=params.tasks[task.name].max_length_tokens)
    dev, _ = references[task.dev_splits[0]]
    for seed in params.seeds:
        student = load_task_model(paths.task_model(task.name, seed, name))
        scores, predictions = compare_splits(partial(predict, student, task=task), references, task)
        save_predictions(paths.predictions(stage.name, f"{stage.instance}/{seed}"), predictions)
        costs = {"teacher": model_costs(teacher, dev), "student": model_costs(student, dev)}
        stage.write_metrics({"costs": costs} | scores, f"{stage.instance}/{seed}")


if __name__ == "__main__":
    run_stage(main, "task", "student")
