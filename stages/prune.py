"""A pruned task student: global L1 up to one sparsity while the teacher goes on teaching."""

import torch

from tinybert import paths
from tinybert.compress.pruning import Pruner, linear_sparsity
from tinybert.corpus.tokenizer import load_tokenizer
from tinybert.evaluation.glue import evaluate
from tinybert.files import file_sizes_mb
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
    """Prunes with the losses of the prediction phase, on the task's own training rows."""
    params, task, name = stage.params, TASKS[stage.items["task"]], stage.items["student"]
    settings, target = params.glue[task.name], int(stage.items["sparsity"]) / 100
    tokenizer, folder = load_tokenizer(paths.TOKENIZER), paths.glue(task.name)
    train, dev = (
        read_examples(folder / f"{split}.jsonl", task, tokenizer, max_length_tokens=settings.max_length_tokens)
        for split in ("train", task.dev_splits[0])
    )
    student = load_model(paths.task_model(task.name, name))
    teacher = load_model(paths.task_model(task.name, "teacher"))
    torch.manual_seed(params.seed)
    objective = Objective(Imitation.of(params, name, "prediction"), student.config, teacher.config)

    objective.load(paths.task_model(task.name, name))

    def pruner_for(steps: int) -> Pruner:
        ramp_steps = max(1, round(params.pruning.ramp_share * steps))
        return Pruner(student, target=target, schedule=params.pruning.schedule, ramp_steps=ramp_steps)

    checkpoint = Checkpoint.of(stage)
    curve = train_on_task(
        student,
        objective,
        train,
        training=settings.pruning,
        params=params,
        teacher=teacher,
        pruner_for=pruner_for,
        title=f"{task.name} {name} pruned {stage.items['sparsity']} %",
        on_point=stage.on_point,
        checkpoint=checkpoint,
    )
    if not is_main_process():
        return
    model_folder = paths.task_model(task.name, f"{name}_pruned{stage.items['sparsity']}")
    save_trained(student, objective, model_folder)
    stage.write_curve(curve)
    stage.write_metrics(
        training_metrics(student, curve)
        | {"target": target, "sparsity": linear_sparsity(student), "dev": evaluate(student, dev, task)}
        | {"size_mb": file_sizes_mb(model_folder / "model.safetensors")}
    )
    checkpoint.remove()


if __name__ == "__main__":
    run_stage(main, "task", "student", "sparsity", trains=True)
