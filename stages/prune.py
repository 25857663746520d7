"""A pruned task student: global pruning up to one sparsity while the teacher goes on teaching."""

import torch

from tinybert.compress.pruning import PRUNERS, Pruner, linear_sparsity
from tinybert.data.encoding import encode
from tinybert.data.task_sources import fraction_of
from tinybert.data.tasks import TASKS
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.result import Trained, train_and_save
from tinybert.distill.task_distill import teacher_cache
from tinybert.distill.task_training import train_on_task
from tinybert.evaluate.predictions import Predictions, save_predictions
from tinybert.evaluate.scoring import score
from tinybert.evaluate.task_scores import predict
from tinybert.models.bert import SequenceClassifier
from tinybert.models.checkpoints import Classifier, load_bert, load_model, load_task_model
from tinybert.pipeline import paths
from tinybert.pipeline.files import file_sizes_mb, read_jsonl
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Prunes with the losses of the prediction phase, on the task's own training rows.

    For tasks.<task>.pruning's epochs: a student's own prediction.training is for that phase alone and not read here.
    """
    params, task, name = stage.params, TASKS[stage.items["task"]], stage.items["student"]
    settings, percent, source = params.tasks[task.name], stage.items["sparsity"], paths.task_model(task.name, name)
    tokenizer, folder = load_tokenizer(paths.TOKENIZER), paths.task_rows(task.name)
    whole, dev_rows = (list(read_jsonl(folder / f"{split}.jsonl")) for split in ("train", task.dev_splits[0]))
    chosen = (fraction_of(whole, settings.train_fraction, seed=params.seed), dev_rows)
    train, dev = (encode(rows, task, tokenizer, max_length_tokens=settings.max_length_tokens) for rows in chosen)
    student, teacher = load_task_model(source), load_bert(SequenceClassifier, paths.task_model(task.name, "teacher"))

    def pruner_for(steps: int) -> Pruner:
        criterion = PRUNERS[params.pruning.criterion]
        pruner = criterion(student, target=int(percent) / 100, ramp_fraction=params.pruning.ramp_fraction)
        pruner.begin(steps)
        return pruner

    def train_pruned(**hooks) -> Trained[Classifier]:
        torch.manual_seed(params.seed)
        objective = DistillationLoss(DistillationConfig.of(params, name, "prediction"), student.config, teacher.config)
        objective.load(source)
        curve = train_on_task(
            student,
            objective,
            train,
            training=settings.pruning,
            params=params,
            seed=params.seed,
            store=teacher_cache(params),
            teacher=teacher,
            pruner_for=pruner_for,
            title=f"{task.name} {name} pruned {percent} %",
            **hooks,
        )
        return Trained(student, objective, curve)

    def measure(model: Classifier) -> dict:
        answers = Predictions(task.headline, dev.gold, predict(model, dev, task))
        save_predictions(paths.predictions(stage.name, stage.instance), {"student": answers})
        reached = {"target": int(percent) / 100, "sparsity": linear_sparsity(load_model(target))}
        scores = score(task, answers.predictions, dev.gold)
        return reached | {"dev": scores, "size_mb": file_sizes_mb(target / "model.safetensors")}

    target = paths.task_model(task.name, f"{name}_pruned{percent}")
    train_and_save(stage, target, train_pruned, source=source, measure=measure)


if __name__ == "__main__":
    run_stage(main, "task", "student", "sparsity", trains=True)
