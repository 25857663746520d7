"""The settings that the project's own training runs have in every benchmark of distillation."""

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
    return BertConfig(
        vocabulary,
        shape.width,
        shape.layers,
        shape.heads,
        shape.feed_forward,
        hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=DROPOUT,
    )


def best_precision() -> str:
    """bfloat16 where the hardware has it."""
    try:
        check_bfloat16()
    except UserError:
        return "float32"
    return "bfloat16"
