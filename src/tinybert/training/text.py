"""Training on token blocks: the teacher's masked LM, and general and domain distillation."""

from tokenizers import Tokenizer

from tinybert.corpus.blocks import Blocks
from tinybert.models.bert import MaskedLM
from tinybert.objective import Objective
from tinybert.training.batches import BlockBatches
from tinybert.training.loop import Point, Settings, train
from tinybert.training.masking import Masker


def train_on_text(
    model: MaskedLM,
    objective: Objective,
    blocks: Blocks,
    *,
    tokenizer: Tokenizer,
    training,
    params,
    **run,
) -> list[Point]:
    """Trains `model` in place on `blocks` with the settings of a `training` section; returns the loss curve.

    The text is masked only where a loss reads predicted tokens: the layer losses alone are distilled on
    plain text (TinyBERT's general distillation). `run`: teacher, title and hooks of training.loop.train.
    """
    masker = Masker.of(params.masking, tokenizer) if objective.reads_predictions else None
    batches = BlockBatches(blocks, masker, batch_size=training.batch_size, seed=params.seed)
    return train(model, objective, batches, Settings(training, params.optimizer, params.seed, params.precision), **run)
