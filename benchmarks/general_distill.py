"""Speed and memory of general distillation against a plain reference, steps alternating in one run.

`python -m benchmarks.general_distill`: BERT-base teaches TinyBERT4 on batches of 32 x 128 random tokens; embedding,
hidden and attention losses. Ours is the training loop as the stages call it, the reference benchmarks/reference.py
in fp32. The last line is the ratio of tokens per second.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import truediv
from statistics import median

import numpy as np
import torch

from benchmarks import ours, reference
from benchmarks.reference import BERT_BASE, TINYBERT4, VOCABULARY_SIZE, Shape
from benchmarks.timing import StartGun, compare, matrix_rate
from tinybert.config.schema import Masking
from tinybert.distill.batches import Batches, Masker, text_batch
from tinybert.distill.loop import LiveTeacher, Settings, train
from tinybert.distill.metric_log import TrainRun
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.models.bert import MaskedLM
from tinybert.models.outputs import Batch, best_device

MASKING = Masking(rate=0.15, mask_fraction=0.8, random_fraction=0.1)
TEMPERATURE = 2.0
LAYER_LOSSES = ("embedding", "hidden", "attention")
VOCABULARY_LOSSES = ("hard", "prediction")
ENDLESS_STEPS = 10**6


@dataclass(frozen=True)
class TextSetup:
    """What both do: the models, the rows of a batch, and whether the vocabulary losses are on."""

    teacher: Shape
    student: Shape
    vocabulary: int
    batch_rows: int
    length_tokens: int
    vocabulary_losses: bool = False

    @property
    def losses(self) -> tuple[str, ...]:
        """The losses that are on, each with λ = 1."""
        return LAYER_LOSSES + (VOCABULARY_LOSSES if self.vocabulary_losses else ())

    @property
    def tokens(self) -> int:
        """Of one step."""
        return self.batch_rows * self.length_tokens

    def batches(self) -> Iterator[Batch]:
        """Unpadded rows of random tokens, without end; newly masked if a vocabulary loss is on."""
        rng = np.random.default_rng(0)
        masker = Masker(MASKING, (0,), 1, self.vocabulary) if self.vocabulary_losses else None
        while True:
            rows = rng.integers(1, self.vocabulary, (self.batch_rows, self.length_tokens))
            yield text_batch(list(rows), masker, rng)

    def step_flops(self) -> float:
        """Of the matrix products that a step needs: teacher forward, student forward and backward."""
        projections = (self.student.layers + 1) * 2 * self.student.width * self.teacher.width * self.tokens
        trained = self._forward_flops(self.student) + projections
        return self._forward_flops(self.teacher) + 3 * trained  # backward: by inputs and by weights

    def _forward_flops(self, shape: Shape) -> float:
        weights = 4 * shape.width**2 + 2 * shape.width * shape.feed_forward
        attention = 2 * self.length_tokens * shape.width  # q·kᵀ, and weights·v
        flops = 2 * shape.layers * (weights + attention) * self.tokens
        if self.vocabulary_losses:
            flops += 2 * MASKING.rate * self.tokens * shape.width * (shape.width + self.vocabulary)
        return flops


PUBLISHED = TextSetup(BERT_BASE, TINYBERT4, VOCABULARY_SIZE, batch_rows=32, length_tokens=128)
SIZES = {
    "published": PUBLISHED,
    "large_batch": replace(PUBLISHED, batch_rows=512),  # fills a GPU
    "small": TextSetup(Shape(4, 24, 48, 3), Shape(2, 12, 24, 3), 50, batch_rows=4, length_tokens=16),
}


class StartedBatches(Batches):
    """The work's batches for the loop, each at its start."""

    def __init__(self, work: TextSetup, gun: StartGun) -> None:
        self.gun, self.endless, self.length_key = gun, work.batches(), "length_tokens"
        self.longest_row_tokens = work.length_tokens

    def __len__(self) -> int:
        return ENDLESS_STEPS

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """Yields batches as long as steps are requested."""
        for _ in self.gun:
            yield next(self.endless)


def run_ours(work: TextSetup, precision: str, gun: StartGun) -> None:
    """Trains with the project's loop, a step at each start."""
    teacher, student = (MaskedLM(ours.bert_config(shape, work.vocabulary)) for shape in (work.teacher, work.student))
    config = DistillationConfig(dict.fromkeys(work.losses, 1.0), temperature=TEMPERATURE)
    loss = DistillationLoss(config, student.config, teacher.config)
    settings = Settings(ours.training(epochs=1), ours.OPTIMIZER, 0, precision)
    batches = StartedBatches(work, gun)
    train(student, loss, batches, settings, teacher=LiveTeacher(teacher, loss), run=TrainRun("ours"))


def run_reference(work: TextSetup, gun: StartGun) -> None:
    """Trains with the plain reference, a step at each start."""
    torch.manual_seed(0)
    teacher, student = (
        reference.MaskedLM(shape, work.vocabulary, dropout=ours.DROPOUT) for shape in (work.teacher, work.student)
    )
    distillation = reference.GeneralDistillation(
        teacher, student, vocabulary_losses=work.vocabulary_losses, temperature=TEMPERATURE
    ).to(best_device())
    for _, batch in zip(gun, work.batches(), strict=False):
        on_device = batch.to(best_device())
        distillation.step(on_device.input_ids, on_device.mask, position_labels(on_device))


def position_labels(batch: Batch) -> torch.Tensor:
    """(batch, length) int64: the label of every position, reference.IGNORED where none is predicted."""
    labels = torch.full_like(batch.input_ids, reference.IGNORED)
    if batch.positions is not None:
        labels.view(-1)[batch.positions] = batch.labels
    return labels


def main() -> None:
    parser = ours.argument_parser(__doc__, SIZES)
    parser.add_argument("--pairs", type=int, default=7, help="timed pairs of steps")
    parser.add_argument("--warmup", type=int, default=2, help="steps of each before")
    parser.add_argument("--vocabulary", action="store_true", help="masked LM and prediction losses too")
    options = parser.parse_args()
    work = replace(SIZES[options.sizes], vocabulary_losses=options.vocabulary)

    def line(seconds: list[float]) -> str:
        middle = median(seconds)
        spread = f"({min(seconds):.3f} to {max(seconds):.3f})"
        return f"{middle:8.3f} s a step {spread}{work.tokens / middle:9.0f} tokens/s"

    print(f"{work.teacher} teaches {work.student}")
    print(f"{work.batch_rows} x {work.length_tokens} tokens a step; losses: {', '.join(work.losses)}")
    reference_seconds, our_seconds = compare(work, run_reference, run_ours, options, line)
    rate, peak = work.step_flops() / median(our_seconds), matrix_rate(getattr(torch, options.precision))
    of_peak = f"{rate / peak:.0%} of one large {options.precision} product's rate"
    print(f"ours: {rate / 1e9:.0f} GFLOP/s of matrix products, {of_peak}")
    print(f"ratio {median(map(truediv, reference_seconds, our_seconds)):.2f}")


if __name__ == "__main__":
    main()
