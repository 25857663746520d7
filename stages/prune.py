"""A pruned task student: global pruning up to one sparsity while the student keeps learning from the teacher."""

from dataclasses import replace

import torch

from tinybert.compress.pruning import Pruner, linear_sparsity
from tinybert.config.tasks import read_task
from tinybert.data.encoding import encode, fraction_of, read_rows
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.batches import predict
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.task_teacher import TaskTeacher
from tinybert.evaluate.scoring import Predictions, save_predictions, score
from tinybert.models.model_folders import load_task_model
from tinybert.pipeline import paths
from tinybert.pipeline.files import file_sizes_mb
from tinybert.stage import Stage, run_stage
from tinybert.training import StageTraining


def main(stage: Stage) -> None:
    """Prunes with the losses of the prediction phase, on the task's own rows, for tasks.<task>.pruning's epochs."""
    params, task, name = stage.params, read_task(stage.items["task"]), stage.items["student"]
    config, seed, percent = params.tasks[task.name], params.seed, int(stage.items["sparsity"])
    source, target = (paths.task_model(task.name, seed, model) for model in (name, f"{name}_pruned{percent}"))
    tokenizer, limit = load_tokenizer(source), config.max_length_tokens
    rows = fraction_of(read_rows(task, "train"), config.train_fraction, seed=seed)
    student, teacher = load_task_model(source), TaskTeacher.load(task, seed, tokenizer, max_length_tokens=limit)
    dev = encode(read_rows(task, task.dev_splits[0]), task, tokenizer, max_length_tokens=limit)

    torch.manual_seed(seed)
    losses = DistillationConfig.of(params.students[name], "prediction", seed=seed, length_tokens=limit)
    loss = DistillationLoss(replace(losses, map_is_new=False), student.config, teacher.model.config)
    loss.load(source)
    pruner = Pruner(student, percent / 100, params.pruning.ramp_fraction)
    training = StageTraining(stage, student, loss, target, source, tokenizer=tokenizer, pruner=pruner)
    training.distill(teacher, rows, config.pruning, seed)

    def measure() -> dict:
        predicted = Predictions(task.headline, dev.gold, predict(student, dev, task))
        scores = score(task, predicted.predictions, dev.gold)  # first, as it reports non-finite predictions
        save_predictions(paths.predictions(stage.name, stage.instance), {"student": predicted})
        measured = {"target": percent / 100, "sparsity": linear_sparsity(student), "dev": scores}
        return measured | {"size_mb": file_sizes_mb(target / "model.safetensors")}

    training.finish(measure)


if __name__ == "__main__":
    run_stage(main, "task", "student", "sparsity", trains=True)
