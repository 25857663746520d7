"""The one training loop: pretraining, fine-tuning, and every kind of distillation and pruning."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
from torch import Tensor, nn

from tinybert.distill.memory import keep_memory
from tinybert.distill.metric_log import MetricLogger, Point
from tinybert.distill.micro_batches import Part, parts
from tinybert.distill.objective import UNITS, DistillationLoss
from tinybert.distill.precision import check_missing_bfloat16
from tinybert.distill.resume import Checkpoint, restore_training_state, training_state
from tinybert.distill.teacher import LiveTeacher
from tinybert.models.checkpoints import Model
from tinybert.models.outputs import Batch, ModelOutput
from tinybert.pipeline.process import torch_seed

if TYPE_CHECKING:
    from tinybert.compress.pruning import Pruner


LONGEST_WAIT = timedelta(hours=12)  # of processes for the one that asks the teacher about a whole data set
Asks = Callable[[Batch], ModelOutput]  # a teacher, live or kept


class Batches(Protocol):
    """Data of a training run: as many steps in each epoch, and any epoch can be asked for."""

    longest_row_tokens: int
    length_key: str  # the key of params that sets how long rows are

    def __len__(self) -> int:
        """Steps an epoch."""

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """The batches of epoch `number` (from 0), in an order that only the seed and the number decide.

        `first`: the step of the epoch to begin with; the steps before cost nothing.
        """


@dataclass(frozen=True)
class Settings:
    """How to train. `training` and `optimizer` are sections of params of that kind."""

    training: Any
    optimizer: Any
    seed: int
    precision: str


class Distiller(nn.Module):
    """Student and objective as one module, so that Accelerate wraps all that is trained at once."""

    def __init__(self, student: Model, objective: DistillationLoss) -> None:
        super().__init__()
        self.student, self.objective = student, objective

    def forward(self, part: Part, teacher: ModelOutput) -> tuple[Tensor, dict[str, Tensor]]:
        """The total loss of a part of a batch and its unweighted terms, each times the part's share of the batch."""
        terms = self.objective(self.student(part.batch, self.objective.student_spec), teacher, part.batch)
        terms = {name: term * part.shares[UNITS[name]] for name, term in terms.items()}
        return self.objective.total(terms), terms


def train(
    student: Model,
    objective: DistillationLoss,
    batches: Batches,
    settings: Settings,
    *,
    title: str,
    teacher: Model | None = None,
    kept_for: Callable[[LiveTeacher], Asks] | None = None,
    pruner_for: "Callable[[int], Pruner] | None" = None,
    on_entry: Callable[[Point], None] = lambda point: None,
    checkpoint: Checkpoint | None = None,
) -> list[Point]:
    """Trains `student` and what the objective learns in place; returns the loss curve.

    The teacher is in evaluation mode and without gradient; `kept_for` makes of it one whose answers are kept, if the
    run takes an epoch at least. `pruner_for` makes, from the number of steps, what prunes the student. `on_entry` gets
    each point of the curve at once. With a `checkpoint` an interrupted run goes on, to the same weights bit for bit
    while the same answers are kept. Under a launcher each process takes its part of every batch. Without any loss
    nothing is trained. UserError when a loss is not finite.
    """
    steps = total_steps(batches, settings.training)
    if not objective.weights or not steps:
        student.eval()
        return []
    keep_memory()
    _check_long_rows(batches, student, teacher)
    accelerator = start_accelerator(settings.precision)
    live = LiveTeacher(teacher, objective, accelerator) if teacher and objective.reads_teacher else None
    ask: Asks = live or (lambda batch: ModelOutput())
    if kept_for and live and steps >= len(batches):  # else fewer rows are asked for than are kept
        ask = kept_for(live)
    module = Distiller(student, objective).train()
    distiller, optimizer = accelerator.prepare(module, adamw(module, settings))
    last_good = {"last_good": checkpoint.describe} if checkpoint else {}
    recorder = MetricLogger(steps, title, accelerator, on_entry=on_entry, observe=objective.observed, **last_good)
    pruner = pruner_for(steps) if pruner_for else None
    first = _resume(checkpoint, module, optimizer, recorder, accelerator, pruner)
    for step, (epoch, batch) in enumerate(itertools.islice(all_epochs(batches, first), steps - first), start=first):
        torch.manual_seed(torch_seed(settings.seed, "dropout", step, accelerator.process_index))
        objective.begin_step(step)
        _set_learning_rates(optimizer, factor := lr_factor(step, steps, settings.optimizer.warmup_fraction))
        terms = _gradients(batch, distiller, ask, accelerator, passes=settings.training.accumulation_steps)
        norm = _update(distiller, optimizer, accelerator, pruner, step, max_norm=settings.optimizer.max_gradient_norm)
        recorder.add(epoch, settings.training.learning_rate * factor, terms, norm)
        if checkpoint and checkpoint.is_due:
            _save(checkpoint, module, optimizer, recorder, pruner)
    recorder.bar.close()
    student.eval()
    return recorder.curve


def _check_long_rows(batches: Batches, *models: Model | None) -> None:
    for model in models:
        if model:
            model.config.check_length(batches.longest_row_tokens, batches.length_key)


def _set_learning_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor


def _save(
    checkpoint: Checkpoint, module: nn.Module, optimizer, recorder: MetricLogger, pruner: "Pruner | None"
) -> None:
    """What _resume restores; UserError instead where a step was not finite."""
    recorder.check_faults()
    pruning = pruner.tensors() if pruner else {}
    checkpoint.save(training_state(module, optimizer) | recorder.tensors() | pruning, recorder.facts())


def _resume(
    checkpoint: Checkpoint | None,
    module: nn.Module,
    optimizer,
    recorder: MetricLogger,
    accelerator: Accelerator,
    pruner: "Pruner | None",
) -> int:
    """The step to go on with: 0 without a saved state, or where processes do not see the same one."""
    saved = checkpoint.load() if checkpoint else None
    step = torch.tensor([saved[1]["step"] if saved else 0], device=accelerator.device)
    if len(set(accelerator.gather(step).tolist())) > 1 or not saved:
        return 0
    tensors, facts = saved
    recorder.restore(tensors, facts)
    restore_training_state(tensors, module, optimizer)
    if pruner:
        pruner.restore(tensors)
    return recorder.step


def _update(distiller: nn.Module, optimizer, accelerator: Accelerator, pruner, step: int, *, max_norm: float) -> Tensor:
    """One optimizer step, within what pruning leaves; the gradient's norm before it is clipped."""
    if pruner:
        pruner.before_step(step)
    norm = accelerator.clip_grad_norm_(distiller.parameters(), max_norm)
    optimizer.step()
    optimizer.zero_grad()
    if pruner:
        pruner.after_step()
    return norm


def _gradients(
    batch: Batch, distiller: nn.Module, ask: Asks, accelerator: Accelerator, *, passes: int
) -> dict[str, Tensor]:
    """Leaves the gradients of the whole batch's loss; returns this process's share of the total and of the terms."""
    sums: dict[str, Tensor] = {}
    mine = parts(batch, processes=accelerator.num_processes, process=accelerator.process_index, passes=passes)
    for number, part in enumerate(mine, start=1):
        part = Part(part.batch.to(accelerator.device), part.shares)
        # Processes exchange gradients in the last pass alone.
        with contextlib.nullcontext() if number == len(mine) else accelerator.no_sync(distiller):
            with accelerator.autocast():
                total, terms = distiller(part, ask(part.batch))
            # The mean that is taken over processes is to be a sum: each has its share of the batch already.
            accelerator.backward(total * accelerator.num_processes)
        for name, value in {"total": total, **terms}.items():
            sums[name] = sums.get(name, 0.0) + value.detach().float()
    return sums


def start_accelerator(precision: str) -> Accelerator:
    """Accelerate for this process, or this one of several; not all of a student's weights have a part in each loss."""
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)
    patient = InitProcessGroupKwargs(timeout=LONGEST_WAIT)
    return Accelerator(mixed_precision=mixed_precision(precision), kwargs_handlers=[unused, patient])


def total_steps(batches: Batches, training) -> int:
    """Optimizer steps of a run: all epochs, or max_steps if that is less."""
    return min(training.epochs * len(batches), training.max_steps or math.inf)


def all_epochs(batches: Batches, first: int = 0) -> Iterator[tuple[int, Batch]]:
    """(epoch, batch) without end, from step `first` of the run on."""
    begin, skipped = divmod(first, len(batches))
    for epoch in itertools.count(begin):
        for batch in batches.epoch(epoch, skipped if epoch == begin else 0):
            yield epoch, batch


def lr_factor(step: int, steps: int, warmup_fraction: float) -> float:
    """Share of the peak learning rate at `step` (from 0): linear warm-up, then linear decay to 0 at the end."""
    warmup = round(warmup_fraction * steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return (steps - step) / max(1, steps - warmup)


def adamw(module: Distiller, settings: Settings) -> torch.optim.Optimizer:
    """Fused AdamW; biases and layer norms, which are vectors, are not decayed (BERT).

    A learnable layer map has its own peak learning rate. `peak_lr` of each group is what a schedule starts from.
    """
    of_map = list(module.objective.map.parameters())
    others = [parameter for parameter in module.parameters() if all(parameter is not theta for theta in of_map)]
    peak, decay = settings.training.learning_rate, settings.optimizer.weight_decay
    groups = [
        {"params": [parameter for parameter in others if parameter.ndim > 1], "weight_decay": decay, "peak_lr": peak},
        {"params": [parameter for parameter in others if parameter.ndim <= 1], "weight_decay": 0.0, "peak_lr": peak},
    ]
    if of_map:
        map_peak = module.objective.imitation.map_learning_rate
        groups.append({"params": of_map, "weight_decay": 0.0, "peak_lr": map_peak})
    return torch.optim.AdamW(groups, lr=0.0, fused=True)


def mixed_precision(precision: str) -> str:
    """Accelerate's name of a precision; UserError where the hardware lacks it."""
    if precision == "float32":
        return "no"
    check_missing_bfloat16()
    return "bf16"
