"""The task teacher: the masked-LM teacher fine-tuned on the task's gold labels, or one that others fine-tuned."""

import torch

from tinybert.config.compatibility import check_students
from tinybert.config.load import load_params
from tinybert.data.encoding import read_examples
from tinybert.data.tasks import TASKS
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.result import Trained, train_and_save
from tinybert.distill.task_training import train_on_task
from tinybert.evaluate.scoring import evaluate
from tinybert.models.checkpoints import Classifier, load_classifier
from tinybert.models.initialization import finetuned_teacher
from tinybert.pipeline import paths
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Fine-tunes, or takes the model that tasks.<task>.finetuned_teacher names; measures it on the dev split."""
    params, task = stage.params, TASKS[stage.items["task"]]
    settings = params.tasks[task.name]
    tokenizer, folder = load_tokenizer(paths.TOKENIZER), paths.task_rows(task.name)
    train, dev = (
        read_examples(folder / f"{split}.jsonl", task, tokenizer, max_length_tokens=settings.max_length_tokens)
        for split in ("train", task.dev_splits[0])
    )

    def fine_tune(**hooks) -> Trained[Classifier]:
        """For the given number of epochs; no model is selected, the last step counts."""
        torch.manual_seed(params.seed)
        teacher = load_classifier(paths.TEACHER, task.labels, pair=task.is_pair)
        check_long_rows(teacher)
        objective = gold_labels(teacher)
        title, training = f"{task.name} teacher", settings.teacher
        curve = train_on_task(
            teacher, objective, train, training=training, params=params, seed=params.seed, title=title, **hooks
        )
        return Trained(teacher, objective, curve)

    def take(**hooks) -> Trained[Classifier]:
        teacher = finetuned_teacher(settings.finetuned_teacher, task, vocab_size=tokenizer.get_vocab_size())
        check_long_rows(teacher)
        check_students(load_params().used_students, teacher.config.shape, ("intermediate", "prediction"))
        return Trained(teacher, gold_labels(teacher), [])

    def check_long_rows(teacher: Classifier) -> None:
        for rows in (train, dev):
            teacher.config.check_length(int(rows.lengths.max()), f"tasks.{task.name}.max_length_tokens")

    train_and_save(
        stage,
        paths.task_model(task.name, "teacher"),
        take if settings.finetuned_teacher else fine_tune,
        measure=lambda teacher: {"layers": teacher.config.num_hidden_layers, "dev": evaluate(teacher, dev, task)},
    )


def gold_labels(teacher: Classifier) -> DistillationLoss:
    """The objective of fine-tuning, which learns nothing beside the teacher."""
    return DistillationLoss(DistillationConfig({"hard": 1.0}), teacher.config)


if __name__ == "__main__":
    run_stage(main, "task", trains=True)
