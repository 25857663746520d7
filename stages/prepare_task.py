"""The splits of a GLUE task, as rows in the Hub's columns."""

import pandas as pd

from tinybert.data.task_sources import hold_out, read_splits
from tinybert.data.tasks import TASKS
from tinybert.evaluate.scoring import majority_predictions, score
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_folder, write_jsonl
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Reads the task from its source and writes one file for each split."""
    task, settings = TASKS[stage.items["task"]], stage.params.tasks
    splits = read_splits(task, settings.source, settings=settings, seed=stage.params.seed)
    splits = hold_out(splits, task, settings.heldout_fraction)
    folder = paths.task_rows(task.name)
    with atomic_folder(folder) as temporary:
        for split, rows in splits.items():
            write_jsonl(temporary / f"{split}.jsonl", rows)
    for split, rows in splits.items():
        context = "training" if split == "train" else "evaluation"
        stage.run.log_dataset(pd.DataFrame(rows), str(folder / f"{split}.jsonl"), f"{task.name}-{split}", context)
    train, dev = ([row["label"] for row in splits[split]] for split in ("train", task.dev_splits[0]))
    stage.write_metrics(
        {
            "examples": {split: len(rows) for split, rows in splits.items()},
            "majority": score(task, majority_predictions(task, train, len(dev)), dev),
        }
    )


if __name__ == "__main__":
    run_stage(main, "task")
