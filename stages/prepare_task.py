"""The splits of a task as rows, and task.json, which describes the task to all later stages."""

import pandas as pd

from tinybert.config.tasks import write_task
from tinybert.data.encoding import label_array
from tinybert.data.own_tasks import read_task_rows, records, shared_texts
from tinybert.evaluate.scoring import majority_predictions, score
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_folder, write_jsonl
from tinybert.stage import Stage, run_stage

LOGGED_ROWS = 100_000


def main(stage: Stage) -> None:
    """Reads the task from its source or its table and writes one file for each split, and one for unlabeled rows."""
    name = stage.items["task"]
    task, splits = read_task_rows(name, stage.params.tasks, seed=stage.params.seed)
    folder, counts = paths.task_rows(name), {split: len(rows) for split, rows in splits.items()}
    write_jsonl(paths.unlabeled(name), records(splits.pop("unlabeled", pd.DataFrame())))
    with atomic_folder(folder) as temporary:
        write_task(task, temporary)
        for split, rows in splits.items():
            write_jsonl(temporary / f"{split}.jsonl", records(rows))
    for split, rows in splits.items():
        context = "training" if split == "train" else "evaluation"
        stage.run.log_dataset(rows.head(LOGGED_ROWS), str(folder / f"{split}.jsonl"), f"{name}-{split}", context)
    train, dev = (label_array(splits[split]["label"], task) for split in ("train", task.dev_splits[0]))
    majority = score(task, majority_predictions(task, train, len(dev)), dev)
    stage.write_metrics({"examples": counts, "majority": majority, "texts_in_train": shared_texts(splits, task)})


if __name__ == "__main__":
    run_stage(main, "task")
