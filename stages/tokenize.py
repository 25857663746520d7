"""Token sequences of a corpus, general or domain."""

from tinybert.data.sequences import write_sequences
from tinybert.data.tokenizer import load_tokenizer
from tinybert.pipeline import paths
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Cuts the documents of both parts into sequences."""
    corpus, settings = stage.items["corpus"], stage.params.tokenize
    tokenizer = load_tokenizer(paths.TOKENIZER)
    metrics = {}
    for split in ("train", "heldout"):
        metrics[split] = write_sequences(
            paths.corpus(corpus, split),
            tokenizer,
            paths.sequences(corpus, split),
            sequence_tokens=settings.sequence_tokens,
            packing=settings.packing,
        )
    stage.write_metrics(metrics)


if __name__ == "__main__":
    run_stage(main, "corpus")
