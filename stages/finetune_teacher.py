"""The task teacher: the masked-LM teacher fine-tuned on the task's gold labels, or one that is fine-tuned already."""

import torch

from tinybert.config.load import load_params
from tinybert.config.students import check_students
from tinybert.data.encoding import read_examples
from tinybert.data.tasks import read_task
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.batches import ExampleBatches, predict
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.evaluate.scoring import score
from tinybert.models.checkpoints import Classifier, load_classifier
from tinybert.models.initialization import finetuned_teacher, given_teacher
from tinybert.pipeline import paths
from tinybert.pipeline.process import is_main_process
from tinybert.stage import Stage, run_stage
from tinybert.training import StageTraining


def main(stage: Stage) -> None:
    """Fine-tunes the teacher, or takes tasks.<task>.finetuned_teacher; measures it on the dev split."""
    params, task = stage.params, read_task(stage.items["task"])
    config = params.tasks[task.name]
    tokenizer, folder = load_tokenizer(paths.TOKENIZER), paths.task_rows(task.name)
    limit = config.max_length_tokens
    examples = read_examples(folder / "train.jsonl", task, tokenizer, max_length_tokens=limit)
    dev = read_examples(folder / f"{task.dev_splits[0]}.jsonl", task, tokenizer, max_length_tokens=limit)

    torch.manual_seed(params.seed)
    teacher: Classifier
    if config.finetuned_teacher:
        key, vocab_size = f"tasks.{task.name}.finetuned_teacher", tokenizer.get_vocab_size()
        teacher = finetuned_teacher(
            config.finetuned_teacher, task.labels, key=key, vocab_size=vocab_size, multilabel=task.is_multilabel
        )
        check_students(load_params().used_students, teacher.config.shape, ("intermediate", "prediction"))
    else:
        is_given = params.tasks.teacher_encoder == "given"
        encoder = given_teacher(params.teacher) if is_given else paths.TEACHER
        teacher = load_classifier(encoder, task.labels, pair=task.is_pair, multilabel=task.is_multilabel)
    for rows in (examples, dev):
        teacher.config.check_length(int(rows.lengths.max()), f"tasks.{task.name}.max_length_tokens")

    loss = DistillationLoss(DistillationConfig({"hard": 1.0}), teacher.config)
    training = StageTraining(stage, teacher, loss, paths.task_model(task.name, params.seed, "teacher"))
    if not config.finetuned_teacher:  # no model is selected: the last step counts
        batches = ExampleBatches(examples, batch_size=config.teacher.batch_size, seed=params.seed)
        training.run(batches, config.teacher, params.seed)

    if is_main_process():
        training.save()
        scores = score(task, predict(teacher, dev, task), dev.gold)
        training.finish({"layers": teacher.config.num_hidden_layers, "dev": scores})


if __name__ == "__main__":
    run_stage(main, "task", trains=True)
