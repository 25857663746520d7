"""What the benchmarks of distillation and augmentation share: the settings of our training runs, and options."""

import argparse
import os
from collections.abc import Collection

from benchmarks import reference
from benchmarks.reference import Shape
from tinybert.config.fields import Training
from tinybert.config.schema import Optimizer
from tinybert.models.bert import BertConfig
from tinybert.models.outputs import check_bfloat16
from tinybert.pipeline.errors import UserError

DROPOUT = 0.1
OPTIMIZER = Optimizer(
    weight_decay=reference.WEIGHT_DECAY, max_gradient_norm=reference.MAX_GRADIENT_NORM, warmup_fraction=0.0
)


def training(*, epochs: int, batch_size: int = 1) -> Training:
    """A `training` section of params; the batch size is used only if the loop makes the batches."""
    return Training(epochs=epochs, max_steps=None, batch_size=batch_size, learning_rate=reference.LEARNING_RATE)


def bert_config(shape: Shape, vocabulary: int) -> BertConfig:
    """Our config of a BERT of this shape."""
    dropout = {"hidden_dropout_prob": DROPOUT, "attention_probs_dropout_prob": DROPOUT}
    return BertConfig(vocabulary, shape.width, shape.layers, shape.heads, shape.feed_forward, **dropout)


def best_precision() -> str:
    """bfloat16 if the hardware has it."""
    try:
        check_bfloat16()
    except UserError:
        return "float32"
    return "bfloat16"


def argument_parser(description: str | None, sizes: Collection[str]) -> argparse.ArgumentParser:
    """A parser with --sizes and --precision, for a process without progress bars, nor any in those that it starts."""
    os.environ["TQDM_DISABLE"] = "1"
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--sizes", choices=sizes, default="published", help="small: a trial of the script itself")
    parser.add_argument("--precision", choices=("bfloat16", "float32"), default=best_precision(), help="ours")
    return parser
