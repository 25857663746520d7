"""The one training loop: pretraining, fine-tuning, and every kind of distillation and pruning."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from tinybert.errors import UserError
from tinybert.models.activations import Activations, Batch
from tinybert.models.bert import BertModel
from tinybert.objective import Objective
from tinybert.progress import progress_bar

if TYPE_CHECKING:
    from tinybert.compress.pruning import Pruner

CURVE_POINTS = 50  # logged in a run, whatever its length

Point = dict[str, float]  # step, epoch, learning_rate, total, and the mean of each loss term since the last point


class Batches(Protocol):
    """Data of a training run: as many steps in each epoch, and any epoch can be asked for."""

    longest_row_tokens: int
    length_key: str  # the key of params that sets how long rows are

    def __len__(self) -> int:
        """Steps an epoch."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of epoch `number` (from 0), in an order that only the seed and the number decide."""


@dataclass(frozen=True)
class Settings:
    """How to train. `training` and `optimizer` are sections of params of that kind."""

    training: object
    optimizer: object
    seed: int
    precision: str


class Distiller(nn.Module):
    """Student and objective as one module, so that Accelerate wraps all that is trained at once."""

    def __init__(self, student: BertModel, objective: Objective) -> None:
        super().__init__()
        self.student, self.objective = student, objective

    def forward(self, batch: Batch, teacher: Activations | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The total loss and its unweighted terms."""
        terms = self.objective(self.student(batch, self.objective.student_wants), teacher, batch)
        return self.objective.total(terms), terms


def train(
    student: BertModel,
    objective: Objective,
    batches: Batches,
    settings: Settings,
    *,
    title: str,
    teacher: BertModel | None = None,
    pruner_for: "Callable[[int], Pruner] | None" = None,
    on_point: Callable[[Point], None] = lambda point: None,
) -> list[Point]:
    """Trains `student` and the objective's projections in place; returns the loss curve.

    `title` names the run on the progress bar. The teacher is always in evaluation mode and without gradient.
    `pruner_for` makes, from the number of steps, what prunes the student while it trains. `on_point` gets each
    point of the curve at once. UserError when a loss is no longer finite.
    """
    for model in filter(None, (student, teacher)):
        model.config.refuse_longer(batches.longest_row_tokens, batches.length_key)
    torch.manual_seed(settings.seed)  # dropout
    accelerator = Accelerator(mixed_precision=mixed_precision(settings.precision))
    if accelerator.num_processes > 1:
        raise UserError("several processes: not supported yet, each would train on everything; start one process")
    ask = Teacher(teacher, objective, accelerator)
    distiller = Distiller(student, objective).train()
    optimizer = adamw(distiller, settings.optimizer.weight_decay)
    distiller, optimizer = accelerator.prepare(distiller, optimizer)
    steps = total_steps(batches, settings.training)
    pruner = pruner_for(steps) if pruner_for else None
    recorder = Recorder(steps, title, on_point)
    for step, (epoch, batch) in enumerate(itertools.islice(all_epochs(batches), steps)):
        learning_rate = settings.training.learning_rate * lr_factor(step, steps, settings.optimizer.warmup_fraction)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        batch = batch.to(accelerator.device)
        with accelerator.autocast():
            total, terms = distiller(batch, ask(batch))
        accelerator.backward(total)
        if pruner:
            pruner.before_step(step)
        accelerator.clip_grad_norm_(distiller.parameters(), settings.optimizer.max_gradient_norm)
        optimizer.step()
        optimizer.zero_grad()
        if pruner:
            pruner.after_step()
        recorder.add(epoch, learning_rate, {"total": total, **terms})
    student.eval()
    return recorder.curve


class Teacher:
    """The teacher's answers to a batch, as the objective wants them: evaluation mode, no gradient."""

    def __init__(self, model: BertModel | None, objective: Objective, accelerator: Accelerator) -> None:
        self.wants = objective.teacher_wants
        self.model = model.to(accelerator.device).eval() if self.wants else None

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Activations | None:
        return self.model(batch, self.wants) if self.wants else None


class Recorder:
    """Averages the terms between curve points, shows them, and refuses what is not finite."""

    def __init__(self, steps: int, title: str, on_point: Callable[[Point], None]) -> None:
        self.curve: list[Point] = []
        self.on_point, self.steps = on_point, steps
        self.every = max(1, steps // CURVE_POINTS)
        self.sums: dict[str, Tensor] = {}
        self.count = self.step = 0
        self.bar = progress_bar(total=steps, desc=title, unit="step")

    def add(self, epoch: int, learning_rate: float, terms: dict[str, Tensor]) -> None:
        """Takes the terms of one step; every so often they become a point of the curve."""
        for name, value in terms.items():
            self.sums[name] = self.sums.get(name, 0.0) + value.detach().float()
        self.count += 1
        self.step += 1
        self.bar.update()
        if self.step % self.every == 0 or self.step == self.steps:
            self._add_point({"step": self.step, "epoch": epoch, "learning_rate": learning_rate})
        if self.step == self.steps:
            self.bar.close()

    def _add_point(self, point: Point) -> None:
        means = {name: value.item() / self.count for name, value in self.sums.items()}
        for name, value in reversed(means.items()):
            if not math.isfinite(value):
                raise UserError(
                    f"step {self.step} of {self.steps}: the {name} loss is {value}; lower learning_rate or its λ, "
                    "or set precision to float32"
                )
        self.curve.append(point | means)
        self.on_point(point | means)
        self.bar.set_postfix({name: f"{value:.3g}" for name, value in means.items()}, refresh=False)
        self.sums, self.count = {}, 0


def total_steps(batches: Batches, training) -> int:
    """Optimizer steps of a run: all epochs, or max_steps if that is less."""
    return min(training.epochs * len(batches), training.max_steps or math.inf)


def all_epochs(batches: Batches) -> Iterator[tuple[int, Batch]]:
    """(epoch, batch) without end."""
    for epoch in itertools.count():
        for batch in batches.epoch(epoch):
            yield epoch, batch


def lr_factor(step: int, steps: int, warmup_fraction: float) -> float:
    """Share of the peak learning rate at `step` (from 0): linear warm-up, then linear decay to 0 at the end."""
    warmup = round(warmup_fraction * steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return (steps - step) / max(1, steps - warmup)


def adamw(module: nn.Module, weight_decay: float) -> torch.optim.Optimizer:
    """Fused AdamW; biases and layer norms, which are vectors, are not decayed (BERT)."""
    parameters = list(module.parameters())
    groups = [
        {"params": [parameter for parameter in parameters if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, fused=True)


def mixed_precision(precision: str) -> str:
    """Accelerate's name of a precision; UserError where the hardware lacks it."""
    if precision == "float32":
        return "no"
    if torch.cuda.is_available():
        supported = torch.cuda.is_bf16_supported()
    else:
        supported = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if not supported:
        raise UserError("precision: bfloat16 is not supported by this machine; set it to float32")
    return "bf16"
