"""A control: a general student fine-tuned on gold labels, without task distillation, for as many steps."""

import math
from functools import partial

import torch

from tinybert.config.fields import Training
from tinybert.config.tasks import read_task
from tinybert.data.encoding import encode
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.batches import Batches, predict
from tinybert.distill.loop import Settings, train
from tinybert.distill.metric_log import TrainRun
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.resume import Checkpoint
from tinybert.distill.task_teacher import TaskTeacher
from tinybert.evaluate.scoring import compare_splits, model_costs, predict_references, save_predictions
from tinybert.models.model_folders import load_classifier
from tinybert.pipeline import paths
from tinybert.pipeline.files import read_json, read_jsonl
from tinybert.pipeline.process import is_main_process
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Trains on the labeled rows with teacher outputs, for as many steps as task distillation; keeps no model."""
    params, task, name = stage.params, read_task(stage.items["task"]), stage.items["student"]
    tokenizer, limit = load_tokenizer(paths.TOKENIZER), params.tasks[task.name].max_length_tokens
    teacher = TaskTeacher.load(task, params.seed, tokenizer, max_length_tokens=limit)
    references = predict_references(teacher)
    rows = teacher.known(read_jsonl(paths.augmented(task.name)))
    examples = encode([row for row in rows if not row.get("augmented")], task, tokenizer, max_length_tokens=limit)

    phases = [Training.model_validate(phase) for phase in read_json(paths.trainings(task.name, name))]
    steps = int(sum(phase.steps(math.ceil(len(rows) / phase.batch_size)) for phase in phases))
    training = phases[-1].model_copy(update={"epochs": steps, "max_steps": steps})
    checkpoints, fingerprint = list[Checkpoint](), stage.fingerprint()
    for seed in params.seeds:
        torch.manual_seed(seed)
        student = load_classifier(paths.general_student(name), task)
        loss = DistillationLoss(DistillationConfig({"hard": 1.0}), student.config)
        batches = Batches(examples, batch_size=training.batch_size, seed=seed)
        folder = paths.checkpoints(stage.name, stage.items | {"seed": str(seed)})
        checkpoints.append(Checkpoint(folder, fingerprint, is_writer=is_main_process()))
        checkpoints[-1].earlier_seconds = stage.earlier_seconds
        run = TrainRun(f"{stage.name} {stage.instance} {seed}", checkpoint=checkpoints[-1])
        train(student, loss, batches, Settings(training, params.optimizer, seed, params.precision), run=run)
        stage.earlier_seconds = checkpoints[-1].earlier_seconds
        if is_main_process():
            scores, predictions = compare_splits(partial(predict, student, task=task), references, task)
            save_predictions(paths.predictions(stage.name, f"{stage.instance}/{seed}"), predictions)
            costs = {"student": model_costs(student, references[task.dev_splits[0]][0])}
            stage.write_metrics({"costs": costs} | scores, f"{stage.instance}/{seed}")
    for checkpoint in checkpoints if is_main_process() else ():
        checkpoint.remove()


if __name__ == "__main__":
    run_stage(main, "task", "student", trains=True)
