"""The domain corpus: the documents that hold a dictionary term, with counts for each term."""

from tinybert.data.domain_filter import filter_file
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_folder
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Filters both parts of the general corpus by the same rule."""
    metrics, required = {}, bool(stage.params.domain.students)
    with atomic_folder(paths.corpus("domain", "train").parent) as folder:
        for split in ("train", "heldout"):
            try:
                source, target = paths.corpus("general", split), folder / f"{split}.jsonl"
                metrics[split] = filter_file(source, target, stage.params.filter, required=required)
            except UserError as error:
                raise UserError(f"{split} documents: {error}") from None
    stage.write_metrics(metrics)


if __name__ == "__main__":
    run_stage(main)
