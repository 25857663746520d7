"""Scores and costs of a task student, its teacher and the majority class, on the dev splits that selected nothing."""

from functools import partial

from tinybert.config.tasks import read_task
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.batches import predict
from tinybert.distill.task_teacher import TaskTeacher
from tinybert.evaluate.scoring import compare_splits, model_costs, predict_references, save_predictions
from tinybert.models.model_folders import load_task_model
from tinybert.pipeline import paths
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Scores the student of each seed, the teacher and the majority class on each dev split; counts their FLOPs."""
    params, task, name = stage.params, read_task(stage.items["task"]), stage.items["student"]
    tokenizer = load_tokenizer(paths.task_model(task.name, params.seed, name))
    limit = params.tasks[task.name].max_length_tokens
    teacher = TaskTeacher.load(task, params.seed, tokenizer, max_length_tokens=limit)
    references = predict_references(teacher)
    (dev, _), teacher_rows = references[task.dev_splits[0]], teacher.read_split(task.dev_splits[0])
    trimmed = {"retokenized": teacher.retokenized(task.dev_splits[0])} if teacher.full_tokenizer else {}
    of_teacher = model_costs(teacher.model, teacher_rows)
    for seed in params.seeds:
        student = load_task_model(paths.task_model(task.name, seed, name))
        scores, predictions = compare_splits(partial(predict, student, task=task), references, task)
        save_predictions(paths.predictions(stage.name, f"{stage.instance}/{seed}"), predictions)
        costs = {"teacher": of_teacher, "student": model_costs(student, dev)}
        stage.write_metrics({"costs": costs} | trimmed | scores, f"{stage.instance}/{seed}")


if __name__ == "__main__":
    run_stage(main, "task", "student")
