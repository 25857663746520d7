"""Training on token blocks: the teacher's masked LM, and general and domain distillation."""

from collections.abc import Iterator

from tokenizers import Tokenizer

from tinybert.corpus.blocks import Blocks
from tinybert.models.activations import Batch
from tinybert.models.bert import MaskedLM
from tinybert.objective import Objective
from tinybert.seeds import stream
from tinybert.training.loop import Point, Settings, train
from tinybert.training.masking import Masker, text_batch
from tinybert.training.order import shuffled_batches


class BlockBatches:
    """Token blocks in a new order each epoch, newly masked; without `masker` the plain text, and no labels."""

    length_key = "tokenize.block_tokens"

    def __init__(self, blocks: Blocks, masker: Masker | None, *, batch_size: int, seed: int) -> None:
        self.blocks, self.masker, self.batch_size, self.seed = blocks, masker, batch_size, seed
        self.longest_row_tokens = int(blocks.lengths.max())

    def __len__(self) -> int:
        return -(-len(self.blocks) // self.batch_size)

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one epoch."""
        order = stream(self.seed, "order", number)
        batches = shuffled_batches(self.blocks.lengths, batch_size=self.batch_size, rng=order)
        for step, rows in enumerate(batches):
            masks = stream(self.seed, "masks", number, step)
            yield text_batch([self.blocks[row] for row in rows], self.masker, masks)


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
