"""The one training loop: pretraining, fine-tuning, every kind of distillation, and pruning."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn

from tinybert.config.fields import Training
from tinybert.config.schema import Optimizer
from tinybert.config.students import LOSSES
from tinybert.distill.hardware import keep_memory, start_accelerator
from tinybert.distill.metric_log import Entry, MetricLogger
from tinybert.distill.objective import DistillationLoss
from tinybert.distill.resume import Checkpoint, Resumable, TrainState
from tinybert.models.checkpoints import Model
from tinybert.models.outputs import Batch, ModelOutput, OutputSpec
from tinybert.pipeline.process import torch_seed


class Batches(Protocol):
    """The data of a training run; every epoch has the same number of steps.

    Attributes:
        longest_row_tokens: Compared with the positions of the models.
        length_key: The key of params.yaml that sets how long rows are.
    """

    longest_row_tokens: int
    length_key: str

    def __len__(self) -> int:
        """Steps of an epoch."""

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """The batches of epoch `number` (from 0), beginning with step `first`; skipped steps cost nothing.

        The seed and the number alone decide them.
        """


class Teacher(Protocol):
    """A teacher, asked live or cached."""

    model: Model

    def begin(self, accelerator: Accelerator, *, epochs: float) -> None:
        """Called once before the first step; `epochs` is how often each row will be read."""

    def __call__(self, batch: Batch) -> ModelOutput:
        """The teacher outputs that the losses of this step read, without gradient."""


class Pruner(Resumable, Protocol):
    """What prunes the student while it trains; built when the student is on its device."""

    def begin(self, steps: int) -> None:
        """Called once before the first of `steps` steps."""

    def before_step(self, step: int) -> None:
        """Called between the backward pass and the optimizer step."""

    def after_step(self) -> None:
        """Called after the optimizer step."""


@dataclass(frozen=True)
class Settings:
    """How to train: all that decides the result beside student, losses, teacher and data."""

    training: Training
    optimizer: Optimizer
    seed: int
    precision: str = "float32"
    pruner: Pruner | None = None


@dataclass(frozen=True)
class TrainRun:
    """How a run reports and resumes; nothing here changes the result.

    Attributes:
        title: Shown on the progress bar.
        on_entry: Called with each entry of the loss curve.
        checkpoint: Saves and resumes the run.
    """

    title: str
    on_entry: Callable[[Entry], None] = lambda entry: None
    checkpoint: Checkpoint | None = None

    def describe_checkpoint(self) -> str:
        """What is saved, for error messages."""
        return self.checkpoint.describe() if self.checkpoint else "no checkpoint is kept"


class LiveTeacher:
    """A teacher that is asked at every step, in evaluation mode and without gradient."""

    def __init__(self, model: Model, loss: DistillationLoss) -> None:
        self.model, self.loss = model, loss

    def begin(self, accelerator: Accelerator, *, epochs: float = 1.0) -> None:
        """Puts the teacher on the run's device."""
        self.accelerator = accelerator
        self.model.to(accelerator.device).eval()

    def __call__(self, batch: Batch) -> ModelOutput:
        """The outputs that the losses of this step read."""
        return self.ask(batch, self.loss.teacher_spec)

    @torch.no_grad()
    def ask(self, batch: Batch, spec: OutputSpec) -> ModelOutput:
        """The teacher's outputs in the precision of the run."""
        with self.accelerator.autocast():
            return self.model(batch, spec)


@dataclass(frozen=True)
class MicroBatch:
    """Some rows of a batch, and their share of the units (Batch.counts) that losses are means over."""

    batch: Batch
    shares: dict[str, float]


def micro_batches(batch: Batch, *, processes: int, process: int, accumulation_steps: int) -> list[MicroBatch]:
    """The micro-batches that `process` (from 0) computes, one for each accumulation step.

    A loss that is a mean over a micro-batch, times the share, adds up over all micro-batches to the mean over the
    batch. The usual mean of means would give few masked tokens the weight of many.
    """
    counts = batch.counts()
    if processes == accumulation_steps == 1:
        return [MicroBatch(batch, dict.fromkeys(counts, 1.0))]
    # Rows are dealt in turn by length, so that processes have similar work.
    by_length = batch.mask.sum(dim=1).argsort(stable=True)
    found = []
    for first in range(process, processes * accumulation_steps, processes):
        if len(rows := by_length[first :: processes * accumulation_steps].sort().values):
            part = batch.rows(rows)
            shares = {unit: count / max(counts[unit], 1) for unit, count in part.counts().items()}
        else:
            # Every process takes part in each step, if only with a row of another whose share is 0.
            part, shares = batch.rows(torch.zeros(1, dtype=torch.int64)), dict.fromkeys(counts, 0.0)
        found.append(MicroBatch(part, shares))
    return found


class Distiller(nn.Module):
    """Student and losses as one module, which Accelerate wraps as a whole; `distillation_step` calls it."""

    def __init__(self, student: Model, loss: DistillationLoss) -> None:
        super().__init__()
        self.student, self.loss = student, loss

    def forward(self, micro_batch: MicroBatch, teacher_outputs: ModelOutput) -> tuple[Tensor, dict[str, Tensor]]:
        """The total loss and its unweighted terms, each times the micro-batch's share of the batch."""
        student_outputs = self.student(micro_batch.batch, self.loss.student_spec)
        terms = self.loss(student_outputs, teacher_outputs, micro_batch.batch)
        terms = {name: term * micro_batch.shares[LOSSES[name].unit] for name, term in terms.items()}
        return self.loss.total(terms), terms


def distillation_step(
    batch: Batch, distiller: nn.Module, teacher: Teacher | None, accelerator: Accelerator, *, accumulation_steps: int
) -> dict[str, Tensor]:
    """Computes the gradients of one batch's loss; the optimizer step follows in `train`.

    Args:
        batch: The batch of all processes.
        distiller: A Distiller, as Accelerate wrapped it.
        teacher: Live or cached; None if no loss reads one.

    Returns:
        This process's share of the "total" loss and of each unweighted term.
    """
    processes, process = accelerator.num_processes, accelerator.process_index
    parts = micro_batches(batch, processes=processes, process=process, accumulation_steps=accumulation_steps)
    sums: dict[str, Tensor] = {}
    for number, part in enumerate(parts, start=1):
        part = MicroBatch(part.batch.to(accelerator.device), part.shares)
        # Processes exchange gradients after the last micro-batch only.
        with contextlib.nullcontext() if number == len(parts) else accelerator.no_sync(distiller):
            with accelerator.autocast():
                teacher_outputs = teacher(part.batch) if teacher else ModelOutput()
                total, terms = distiller(part, teacher_outputs)  # the student's forward pass, then the losses
            # Accelerate averages gradients over processes; shares make the sum the right one.
            accelerator.backward(total * processes)
        for name, value in {"total": total, **terms}.items():
            sums[name] = sums.get(name, 0.0) + value.detach().float()
    return sums


def train(
    student: Model,
    loss: DistillationLoss,
    batches: Batches,
    settings: Settings,
    *,
    teacher: Teacher | None = None,
    run: TrainRun,
) -> list[Entry]:
    """Trains the student, and what the losses learn, in place.

    With a checkpoint an interrupted run continues to the same weights bit for bit, as long as the teacher cache is the
    same. Under a launcher each process takes its share of every batch. Without losses nothing is trained.

    Returns:
        The loss curve.

    Raises:
        UserError: A loss or gradient is not finite, or rows are longer than a model allows.
    """
    steps = total_steps(batches, settings.training)
    if not loss.weights or not steps:
        student.eval()
        return []
    keep_memory()
    for model in (student, *((teacher.model,) if teacher else ())):
        model.config.check_length(batches.longest_row_tokens, batches.length_key)
    accelerator = start_accelerator(settings.precision)
    teacher = teacher if loss.reads_teacher else None
    if teacher:
        teacher.begin(accelerator, epochs=steps / len(batches))
    module = Distiller(student, loss).train()
    distiller, optimizer = accelerator.prepare(module, adamw(module, settings))
    if settings.pruner:
        settings.pruner.begin(steps)
    logger = MetricLogger(steps, run.title, accelerator, run.on_entry, loss.map.learnt, run.describe_checkpoint)
    state = TrainState(module, optimizer, logger, settings.pruner)
    first = state.resume(run.checkpoint, accelerator)
    accumulation_steps = settings.training.accumulation_steps
    for step, (epoch, batch) in enumerate(itertools.islice(all_epochs(batches, first), steps - first), start=first):
        torch.manual_seed(torch_seed(settings.seed, "dropout", step, accelerator.process_index))
        loss.map.redraw(step)
        factor = lr_factor(step, steps, settings.optimizer.warmup_fraction)
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor
        terms = distillation_step(batch, distiller, teacher, accelerator, accumulation_steps=accumulation_steps)
        norm = optimizer_step(step, distiller, optimizer, accelerator, settings)
        logger.add(epoch, settings.training.learning_rate * factor, terms, norm)
        if run.checkpoint and run.checkpoint.is_due:
            state.save(run.checkpoint)
    logger.bar.close()
    student.eval()
    return logger.curve


def optimizer_step(
    step: int, distiller: nn.Module, optimizer: AcceleratedOptimizer, accelerator: Accelerator, settings: Settings
) -> Tensor:
    """Updates the weights, within what pruning leaves of them; returns the gradient's norm before clipping."""
    if settings.pruner:
        settings.pruner.before_step(step)  # before clipping, so that pruned weights have no part in the norm
    norm = accelerator.clip_grad_norm_(distiller.parameters(), settings.optimizer.max_gradient_norm)
    optimizer.step()
    optimizer.zero_grad()
    if settings.pruner:
        settings.pruner.after_step()
    return norm


def total_steps(batches: Batches, training: Training) -> int:
    """Optimizer steps of a run: all epochs, or max_steps if that is less."""
    return int(min(training.epochs * len(batches), training.max_steps or math.inf))


def all_epochs(batches: Batches, first: int = 0) -> Iterator[tuple[int, Batch]]:
    """(epoch, batch) without end, from step `first` of the run."""
    begin, skipped = divmod(first, len(batches))
    for epoch in itertools.count(begin):
        for batch in batches.epoch(epoch, skipped if epoch == begin else 0):
            yield epoch, batch


def lr_factor(step: int, steps: int, warmup_fraction: float) -> float:
    """Fraction of the peak learning rate at `step` (from 0): linear warm-up, then linear decay to 0."""
    warmup = round(warmup_fraction * steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return (steps - step) / max(1, steps - warmup)


def adamw(module: Distiller, settings: Settings) -> torch.optim.Optimizer:
    """Fused AdamW without weight decay on vectors, which are biases and layer norms (BERT).

    Each group has a `peak_lr`, from which the schedule starts; that of a learnable layer map is its own.
    """
    of_map = list(module.loss.map.parameters())
    others = [parameter for parameter in module.parameters() if all(parameter is not theta for theta in of_map)]
    peak, decay = settings.training.learning_rate, settings.optimizer.weight_decay
    groups = [
        {"params": [parameter for parameter in others if parameter.ndim > 1], "weight_decay": decay, "peak_lr": peak},
        {"params": [parameter for parameter in others if parameter.ndim <= 1], "weight_decay": 0.0, "peak_lr": peak},
    ]
    if of_map:
        map_peak = module.loss.config.map_learning_rate
        groups.append({"params": of_map, "weight_decay": 0.0, "peak_lr": map_peak})
    return torch.optim.AdamW(groups, lr=0.0, fused=True)
