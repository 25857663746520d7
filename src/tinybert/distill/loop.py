"""The one training loop: pretraining, fine-tuning, every kind of distillation, and pruning."""

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, is_initialized
from torch import Tensor, nn

from tinybert.config.fields import Training
from tinybert.config.schema import Optimizer
from tinybert.config.students import Learnable
from tinybert.distill.batches import Batches, MicroBatch, micro_batches
from tinybert.distill.metric_log import Entry, MetricLogger, TrainRun
from tinybert.distill.objective import DistillationLoss
from tinybert.distill.resume import Checkpoint
from tinybert.distill.vocabulary import only_used_words
from tinybert.models.model_folders import Model
from tinybert.models.outputs import Batch, ModelOutput, OutputSpec, check_bfloat16
from tinybert.models.packed_linear import for_inference
from tinybert.pipeline.process import FreedMemory, stream

# How long processes wait for the one that fills the teacher cache.
LONGEST_WAIT = timedelta(hours=12)


@dataclass(frozen=True)
class Settings:
    """How to train: all that decides the result beside student, losses, teacher and data."""

    training: Training
    optimizer: Optimizer
    seed: int
    precision: str = "float32"
    pruner: Any = None  # or a Pruner of compress/pruning.py, a layer above


class LiveTeacher:
    """A teacher that runs at every step, in evaluation mode and without gradient, for the losses that read it.

    In bfloat16 all of it is converted once: autocast would convert its weights at every step.
    """

    def __init__(self, model: Model, loss: DistillationLoss) -> None:
        self.original, self.model, self.loss = model, model, loss  # it may serve several runs

    def check_length(self, batches: Batches) -> None:
        """Raises UserError if rows, or the length they are padded to, exceed the teacher's positions."""
        self.model.config.check_length(max(batches.longest_row_tokens, self.loss.padded_tokens), batches.length_key)

    def begin(self, accelerator: Accelerator, *, epochs: float = 1.0) -> None:
        """Puts the teacher on the run's device; `epochs` is how often each row will be read."""
        self.accelerator = accelerator
        model = self.original.to(accelerator.device).eval()
        self.model = for_inference(model, torch.bfloat16) if accelerator.mixed_precision == "bf16" else model

    def __call__(self, batch: Batch) -> ModelOutput:
        """The outputs that the losses of this step read."""
        return self.ask(self.loss.prepare(batch), self.loss.teacher_spec())

    @torch.no_grad()
    def ask(self, batch: Batch, spec: OutputSpec) -> ModelOutput:
        """The teacher's outputs."""
        with torch.autocast(batch.mask.device.type, enabled=False):
            return self.model(batch, spec)


class Distiller(nn.Module):
    """Student and losses as one module, which Accelerate wraps as a whole; `distillation_step` calls it."""

    def __init__(self, student: Model, loss: DistillationLoss) -> None:
        super().__init__()
        self.student, self.loss = student, loss

    def forward(self, micro_batch: MicroBatch, teacher_outputs: ModelOutput) -> tuple[Tensor, dict[str, Tensor]]:
        """The total loss and its unweighted terms, each times the micro-batch's share of the batch."""
        batch = self.loss.prepare(micro_batch.batch)
        terms = self.loss(self.student(batch, self.loss.student_spec), teacher_outputs, batch)
        terms = {name: term * micro_batch.shares[self.loss.unit(name)] for name, term in terms.items()}
        return self.loss.total(terms), terms


def distillation_step(
    batch: Batch, distiller: nn.Module, teacher: LiveTeacher | None, accelerator: Accelerator, accumulation_steps: int
) -> dict[str, Tensor]:
    """Computes the gradients of one batch's loss; the optimizer step follows in `train`.

    Args:
        batch: The rows of all processes; this one computes its share.
        distiller: A Distiller, as Accelerate wrapped it.
        teacher: Live or cached; None if no loss reads one.
        accumulation_steps: Micro-batches of each process.

    Returns:
        This process's share of the "total" loss and of each unweighted term.
    """
    sums: dict[str, Tensor] = {}
    processes, process = accelerator.num_processes, accelerator.process_index
    parts = micro_batches(batch, processes=processes, process=process, accumulation_steps=accumulation_steps)
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
    teacher: LiveTeacher | None = None,
    run: TrainRun,
) -> list[Entry]:
    """Trains the student, and what the losses learn, in place; returns the loss curve.

    With a checkpoint an interrupted run continues to the same weights bit for bit, as long as the teacher cache is the
    same. Under a launcher each process takes its share of every batch. Without losses nothing is trained.

    Raises:
        UserError: A loss or gradient is not finite, or rows are longer than a model allows.
    """
    steps = int(settings.training.steps(len(batches)))
    if not loss.weights or not steps:
        student.eval()
        return []
    student.config.check_length(max(batches.longest_row_tokens, loss.padded_tokens), batches.length_key)
    if teacher:
        teacher.check_length(batches)
    peak, optimizer, schedule = settings.training.learning_rate, settings.optimizer, settings.training.schedule
    factors = (lr_factor(step, steps, optimizer.warmup_fraction, schedule) for step in range(steps))
    decays = (1.0 - optimizer.weight_decay * (peak * factor) for factor in factors)  # AdamW multiplies weights by these
    with only_used_words(student, batches, decays):
        module = Distiller(student, loss).train()
        curve = _take_steps(module, batches, settings, teacher if loss.reads_teacher else None, run)
    student.eval()
    return curve


def _take_steps(
    module: Distiller, batches: Batches, settings: Settings, teacher: LiveTeacher | None, run: TrainRun
) -> list[Entry]:
    """Takes the steps that an interrupted run has not taken yet; returns the loss curve of all."""
    steps, loss = int(settings.training.steps(len(batches))), module.loss
    accelerator = start_accelerator(settings.precision)
    if teacher:
        teacher.begin(accelerator, epochs=steps / len(batches))
    distiller, optimizer = accelerator.prepare(module, adamw(module, settings))
    # What the next steps depend on. The order of rows, masks and dropout need no state: seed and step determine them.
    state: dict[str, Any] = {"module": module, "optimizer": optimizer}
    state["logger"] = logger = MetricLogger(steps, run, accelerator, loss.map.learned)
    resume(state, run.checkpoint, accelerator)
    if settings.pruner:
        settings.pruner.begin(steps)
    memory = FreedMemory()
    for step, (epoch, batch) in zip(range(logger.step, steps), all_epochs(batches, logger.step), strict=False):
        torch.manual_seed(int(stream(settings.seed, "dropout", step, accelerator.process_index).integers(2**63)))
        loss.map.redraw(step)
        learning_rate = set_learning_rate(step, steps, optimizer, settings)
        terms = distillation_step(batch, distiller, teacher, accelerator, settings.training.accumulation_steps)
        norm = optimizer_step(step, distiller, optimizer, accelerator, settings)
        logger.add(epoch, learning_rate, terms, norm)
        memory.after_step()
        if run.checkpoint and run.checkpoint.is_due:
            logger.check_finite()
            run.checkpoint.save({"step": logger.step} | {name: part.state_dict() for name, part in state.items()})
    logger.bar.close()
    return logger.curve


def start_accelerator(precision: str) -> Accelerator:
    """Accelerate for this process, which may be one of several; UserError if the machine lacks the precision."""
    if precision == "bfloat16":
        check_bfloat16()
    # Not every loss reaches all of a student's weights.
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)
    patient = InitProcessGroupKwargs(timeout=LONGEST_WAIT)
    mixed_precision = "bf16" if precision == "bfloat16" else "no"
    if is_initialized() and AcceleratorState().mixed_precision != mixed_precision:
        AcceleratorState._reset_state()  # a notebook trains again, in another precision
    return Accelerator(mixed_precision=mixed_precision, kwargs_handlers=[unused, patient])


def optimizer_step(
    step: int, distiller: nn.Module, optimizer: AcceleratedOptimizer, accelerator: Accelerator, settings: Settings
) -> Tensor:
    """Updates the weights that are not pruned; returns the gradient's norm before clipping."""
    if settings.pruner:
        settings.pruner.before_step(step)  # before clipping, so that pruned weights have no part in the norm
    norm = accelerator.clip_grad_norm_(distiller.parameters(), settings.optimizer.max_gradient_norm)
    optimizer.step()
    optimizer.zero_grad()
    if settings.pruner:
        settings.pruner.after_step()
    return norm


def all_epochs(batches: Batches, first: int = 0) -> Iterator[tuple[int, Batch]]:
    """(epoch, batch) without end, from step `first` of the run."""
    begin, skipped = divmod(first, len(batches))
    for epoch in itertools.count(begin):
        for batch in batches.epoch(epoch, skipped if epoch == begin else 0):
            yield epoch, batch


def lr_factor(step: int, steps: int, warmup_fraction: float, schedule: str) -> float:
    """Fraction of the peak learning rate at `step` (from 0): linear warm-up, then linear decay to 0; or constant."""
    if schedule == "constant":
        return 1.0
    warmup = round(warmup_fraction * steps)
    return (step + 1) / (warmup + 1) if step < warmup else (steps - step) / max(1, steps - warmup)


def set_learning_rate(step: int, steps: int, optimizer: torch.optim.Optimizer, settings: Settings) -> float:
    """Sets the learning rates of a step; returns the student's."""
    factor = lr_factor(step, steps, settings.optimizer.warmup_fraction, settings.training.schedule)
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor
    return settings.training.learning_rate * factor


def adamw(module: Distiller, settings: Settings) -> torch.optim.Optimizer:
    """Fused AdamW without weight decay on vectors, which are biases and layer norms (BERT).

    Each group has a `peak_lr`, from which the schedule starts; that of a learnable layer map is its own.
    """
    of_map = list(module.loss.map.parameters())
    others = [parameter for name, parameter in module.named_parameters() if not name.startswith("loss.map.")]
    peak, decay = settings.training.learning_rate, settings.optimizer.weight_decay
    groups = [
        {"params": [parameter for parameter in others if parameter.ndim > 1], "weight_decay": decay, "peak_lr": peak},
        {"params": [parameter for parameter in others if parameter.ndim <= 1], "weight_decay": 0.0, "peak_lr": peak},
    ]
    if of_map and isinstance(layer_map := module.loss.config.layer_map, Learnable):
        groups.append({"params": of_map, "weight_decay": 0.0, "peak_lr": layer_map.learnable.learning_rate})
    return torch.optim.AdamW(groups, lr=0.0, fused=True)


def resume(state: dict[str, Any], checkpoint: Checkpoint | None, accelerator: Accelerator) -> None:
    """Restores the saved state of all parts, if there is one."""
    saved = checkpoint.load() if checkpoint else None
    step = torch.tensor([saved["step"] if saved else 0], device=accelerator.device)
    # All processes must see the same state, or none may use it.
    if len(set(accelerator.gather(step).tolist())) == 1 and saved:
        for name, part in state.items():
            part.load_state_dict(saved[name])
