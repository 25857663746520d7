"""Token sequences of a corpus, general or domain."""

from tinybert.data.sequences import write_sequences
from tinybert.data.tokenizer import load_tokenizer
from tinybert.pipeline import paths
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Cuts the documents of both parts into sequences."""
    corpus, tokenizer, metrics = stage.items["corpus"], load_tokenizer(paths.TOKENIZER), {}
    for split in ("train", "heldout"):
        source, target = paths.corpus(corpus, split), paths.sequences(corpus, split)
        metrics[split] = write_sequences(source, tokenizer, target, stage.params.tokenize)
    stage.write_metrics(metrics)


if __name__ == "__main__":
    run_stage(main, "corpus")
