"""The task teacher: the masked-LM teacher fine-tuned on the task's gold labels, or one that is fine-tuned already."""

import torch

from tinybert.config.load import load_params
from tinybert.config.tasks import read_task, teacher_source
from tinybert.data.encoding import read_rows
from tinybert.data.prediction_files import read_predicted_teacher
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.batches import Batches, predict
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.task_teacher import TaskTeacher, check_teacher, start_task_teacher
from tinybert.evaluate.scoring import score
from tinybert.models.initialization import given_teacher
from tinybert.models.model_folders import TaskModel
from tinybert.pipeline import paths
from tinybert.stage import Stage, run_stage
from tinybert.training import StageTraining


def main(stage: Stage) -> None:
    """Fine-tunes the teacher, or takes tasks.<task>.finetuned_teacher; measures it on the dev split."""
    params, task = stage.params, read_task(stage.items["task"])
    config, tokenizer = params.tasks[task.name], load_tokenizer(paths.TOKENIZER)
    ready, splits = config.finetuned_teacher, ("train", *task.dev_splits)

    torch.manual_seed(params.seed)
    teacher: TaskModel
    counts: dict[str, int] = {}
    if ready and ready.predictions:
        rows, fraction = {split: read_rows(task, split) for split in splits}, params.tasks.heldout_fraction
        teacher, counts = read_predicted_teacher(task, ready.predictions, rows, heldout_fraction=fraction)
    elif third_party := teacher_source(params.tasks, task.name):
        source, key = third_party
        teacher = start_task_teacher(task, tokenizer, source, key=key)
        check_teacher(teacher, key, load_params())
    else:
        encoder = config.teacher.encoder or params.tasks.teacher_encoder
        folder = given_teacher(params.teacher) if encoder == "given" else paths.TEACHER
        teacher = start_task_teacher(task, tokenizer, folder)
    reader = TaskTeacher(teacher, task, tokenizer, config.max_length_tokens)
    examples, dev = (reader.read_split(split) for split in splits[:2])
    for encoded in (examples, dev):
        teacher.config.check_length(int(encoded.lengths.max()), f"tasks.{task.name}.max_length_tokens")

    loss = DistillationLoss(DistillationConfig({"hard": 1.0}), teacher.config)
    training = StageTraining(stage, teacher, loss, paths.task_model(task.name, params.seed, "teacher"))
    if not ready:  # no model is selected: the last step counts
        batches = Batches(examples, batch_size=config.teacher.batch_size, seed=params.seed)
        training.run(batches, config.teacher, params.seed)

    sizes = {"layers": teacher.config.num_hidden_layers, "width": teacher.config.hidden_size}
    training.finish(lambda: sizes | {"dev": score(task, predict(teacher, dev, task), dev.gold)} | counts)


if __name__ == "__main__":
    run_stage(main, "task", trains=True)
