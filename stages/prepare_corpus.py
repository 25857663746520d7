"""Documents of the general corpus, a training and a held-out part."""

from tinybert.data.corpus import documents, write_splits
from tinybert.pipeline import paths
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Reads the corpus once and writes both parts."""
    corpus = stage.params.corpus
    found = documents(corpus, seed=stage.params.seed)
    train, heldout = (paths.corpus("general", split) for split in ("train", "heldout"))
    stage.write_metrics(write_splits(found, train=train, heldout=heldout, every=corpus.heldout_every))


if __name__ == "__main__":
    run_stage(main)
