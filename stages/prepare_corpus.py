"""Documents of the general corpus, a training and a held-out part."""

from tinybert.data.corpus import documents, write_splits
from tinybert.pipeline import paths
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Reads the corpus once and writes both parts."""
    corpus = stage.params.corpus
    counts = write_splits(
        documents(corpus, seed=stage.params.seed),
        train=paths.corpus("general", "train"),
        heldout=paths.corpus("general", "heldout"),
        every=corpus.heldout_every,
    )
    stage.write_metrics(counts)


if __name__ == "__main__":
    run_stage(main)
