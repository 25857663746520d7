"""The task teacher: the masked-LM teacher fine-tuned on the task's gold labels."""

import torch

from tinybert import paths
from tinybert.corpus.tokenizer import load_tokenizer
from tinybert.evaluation.glue import evaluate
from tinybert.glue.encoding import read_examples
from tinybert.glue.tasks import TASKS
from tinybert.launch import is_main_process
from tinybert.models.folder import load_classifier
from tinybert.objective import Imitation, Objective
from tinybert.stage import Stage, run_stage
from tinybert.training.checkpoint import Checkpoint
from tinybert.training.result import save_trained, training_metrics
from tinybert.training.task import train_on_task


def main(stage: Stage) -> None:
    """Fine-tunes for the given number of epochs; no model is selected, the last step counts."""
    params, task = stage.params, TASKS[stage.items["task"]]
    settings = params.glue[task.name]
    tokenizer, folder = load_tokenizer(paths.TOKENIZER), paths.glue(task.name)
    train, dev = (
        read_examples(folder / f"{split}.jsonl", task, tokenizer, max_length_tokens=settings.max_length_tokens)
        for split in ("train", task.dev_splits[0])
    )
    torch.manual_seed(params.seed)
    teacher = load_classifier(paths.TEACHER, task.labels, pair=task.is_pair)
    objective = Objective(Imitation({"hard": 1.0}), teacher.config)

    checkpoint = Checkpoint.of(stage)
    curve = train_on_task(
        teacher,
        objective,
        train,
        training=settings.teacher,
        params=params,
        title=f"{task.name} teacher",
        on_point=stage.on_point,
        checkpoint=checkpoint,
    )
    if not is_main_process():
        return
    save_trained(teacher, objective, paths.task_model(task.name, "teacher"))
    stage.write_curve(curve)
    stage.write_metrics(training_metrics(teacher, curve) | {"dev": evaluate(teacher, dev, task)})
    checkpoint.remove()


if __name__ == "__main__":
    run_stage(main, "task", trains=True)
