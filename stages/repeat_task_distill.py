"""Task distillation of a student once more with another seed: how far a score is chance."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tinybert.data.tasks import TASKS
from tinybert.distill.result import save_trained
from tinybert.distill.resume import Checkpoint
from tinybert.distill.task_distill import distil
from tinybert.evaluate.predictions import save_predictions
from tinybert.evaluate.task_scores import compare_on_splits
from tinybert.models.checkpoints import load_task_model
from tinybert.pipeline import paths
from tinybert.pipeline.process import is_main_process
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Runs both phases from the same general student and with the same teacher; keeps scores and answers alone."""
    task, name, seed = TASKS[stage.items["task"]], stage.items["student"], int(stage.items["seed"])
    run = partial(distil, params=stage.params, task=task, name=name, seed=seed)
    checkpoints = {phase: Checkpoint.of(stage, phase=phase) for phase in ("intermediate", "prediction")}
    with TemporaryDirectory() as folder:
        general, between = paths.general_student(name), Path(folder) / "intermediate"
        first = run("intermediate", general, checkpoint=checkpoints["intermediate"])
        save_trained(first.model, first.objective, between)
        student = run("prediction", between, checkpoint=checkpoints["prediction"]).model
    if not is_main_process():
        return
    teacher = load_task_model(paths.task_model(task.name, "teacher"))
    limit = stage.params.tasks[task.name].max_length_tokens
    metrics, answers = compare_on_splits(student, teacher, task, max_length_tokens=limit)
    save_predictions(paths.predictions(stage.name, stage.instance), answers)
    stage.write_metrics(metrics)
    for checkpoint in checkpoints.values():
        checkpoint.remove()


if __name__ == "__main__":
    run_stage(main, "task", "student", "seed", trains=True)
