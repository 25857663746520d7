"""The domain corpus: the documents that hold a dictionary term, with counts for each term."""

from tinybert import paths
from tinybert.corpus.filter import FilterStatistics, filter_documents
from tinybert.errors import UserError
from tinybert.files import atomic_folder, read_jsonl, write_jsonl
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Filters both parts of the general corpus by the same rule."""
    metrics = {}
    with atomic_folder(paths.corpus("domain", "train").parent) as folder:
        for split in ("train", "heldout"):
            statistics = FilterStatistics()
            found = read_jsonl(paths.corpus("general", split))
            kept = filter_documents(found, stage.params.filter, statistics)
            try:
                write_jsonl(folder / f"{split}.jsonl", kept)
            except UserError as error:
                raise UserError(f"{split} documents: {error}") from None
            metrics[split] = statistics.as_dict()
    stage.write_metrics(metrics)


if __name__ == "__main__":
    run_stage(main)
