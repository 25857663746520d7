"""A task student beside its teacher and the majority guess, on the dev split that nothing was selected by."""

from tinybert import paths
from tinybert.corpus.tokenizer import load_tokenizer
from tinybert.evaluation.glue import compare
from tinybert.glue.encoding import read_examples
from tinybert.glue.tasks import TASKS
from tinybert.models.folder import load_model
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Scores both models on each dev split of the task (MNLI has two)."""
    task, name = TASKS[stage.items["task"]], stage.items["student"]
    limit = stage.params.glue[task.name].max_length_tokens
    tokenizer, folder = load_tokenizer(paths.TOKENIZER), paths.glue(task.name)
    train = read_examples(folder / "train.jsonl", task, tokenizer, max_length_tokens=limit)
    teacher = load_model(paths.task_model(task.name, "teacher"))
    student = load_model(paths.task_model(task.name, name))
    splits = {}
    for split in task.dev_splits:
        dev = read_examples(folder / f"{split}.jsonl", task, tokenizer, max_length_tokens=limit)
        splits[split] = compare(student, teacher, dev, task, train_labels=train.labels)
    first, *others = task.dev_splits
    stage.write_metrics(
        {"split": first, "selection": "none: the last step"}
        | splits[first]
        | ({"further_splits": {split: splits[split] for split in others}} if others else {})
        | {"parameters": {"teacher": teacher.parameter_count, "student": student.parameter_count}}
    )


if __name__ == "__main__":
    run_stage(main, "task", "student")
