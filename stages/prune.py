"""A pruned task student: global pruning up to one sparsity while the student keeps learning from the teacher."""

import torch

from tinybert.compress.pruning import PRUNERS, linear_sparsity
from tinybert.data.encoding import encode, fraction_of
from tinybert.data.tasks import TASKS
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.batches import ExampleBatches, predict
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.teacher_cache import CachedTeacher, TeacherCache
from tinybert.evaluate.predictions import Predictions, save_predictions
from tinybert.evaluate.scoring import score
from tinybert.models.bert import SequenceClassifier
from tinybert.models.checkpoints import load_bert, load_task_model
from tinybert.models.outputs import best_device
from tinybert.pipeline import paths
from tinybert.pipeline.files import file_sizes_mb, read_jsonl
from tinybert.pipeline.process import is_main_process
from tinybert.stage import Stage, run_stage
from tinybert.training import StageTraining


def main(stage: Stage) -> None:
    """Prunes with the losses of the prediction phase, on the task's own rows, for tasks.<task>.pruning's epochs."""
    params, task, name = stage.params, TASKS[stage.items["task"]], stage.items["student"]
    config, seed, percent = params.tasks[task.name], params.seed, int(stage.items["sparsity"])
    source, teacher_folder = (paths.task_model(task.name, seed, model) for model in (name, "teacher"))
    tokenizer, folder = load_tokenizer(paths.TOKENIZER), paths.task_rows(task.name)
    rows, dev_rows = (list(read_jsonl(folder / f"{split}.jsonl")) for split in ("train", task.dev_splits[0]))
    rows = fraction_of(rows, config.train_fraction, seed=seed)
    limit = config.max_length_tokens
    examples, dev = (encode(part, task, tokenizer, max_length_tokens=limit) for part in (rows, dev_rows))
    student, teacher = load_task_model(source).to(best_device()), load_bert(SequenceClassifier, teacher_folder)

    torch.manual_seed(seed)
    losses = DistillationConfig.of(params.students[name], "prediction", seed=seed)
    loss = DistillationLoss(losses, student.config, teacher.config)
    loss.load(source)
    batches = ExampleBatches(examples, batch_size=config.pruning.batch_size, seed=seed)
    criterion, ramp_fraction = PRUNERS[params.pruning.criterion], params.pruning.ramp_fraction
    pruner = criterion(student, target=percent / 100, ramp_fraction=ramp_fraction)
    cached = CachedTeacher(teacher, loss, examples, TeacherCache.of(params.tasks.teacher_cache_gb))
    target = paths.task_model(task.name, seed, f"{name}_pruned{percent}")
    training = StageTraining(stage, student, loss, target, source)
    training.run(batches, config.pruning, seed, teacher=cached, pruner=pruner)

    if is_main_process():
        training.save()
        predictions = Predictions(task.headline, dev.gold, predict(student, dev, task))
        save_predictions(paths.predictions(stage.name, stage.instance), {"student": predictions})
        reached = {"target": percent / 100, "sparsity": linear_sparsity(student)}
        measured = {"dev": score(task, predictions.predictions, dev.gold)}
        measured |= {"size_mb": file_sizes_mb(target / "model.safetensors")}
        training.finish(reached | measured)


if __name__ == "__main__":
    run_stage(main, "task", "student", "sparsity", trains=True)
