"""The loss curve of a training run: means between points, shown while they come; what is not finite is refused."""

from collections.abc import Callable

import torch
from accelerate import Accelerator
from torch import Tensor

from tinybert.pipeline.errors import UserError
from tinybert.pipeline.process import progress_bar

CURVE_POINTS = 50  # logged in a run, whatever its length
PREFIX = "recorder."

# step, epoch, learning_rate, total, the mean of each loss term since the last point, and what else is observed.
Point = dict[str, float]


class MetricLogger:
    """Averages the terms between curve points, shows them, and refuses what is not finite.

    observe: what else belongs into a point, by name. last_good: words for the checkpoint that a refusal names.

    Asking a GPU for a number makes it wait, so that faults are looked for at points and before checkpoints alone; the
    step where one began is counted on the device.
    """

    def __init__(
        self,
        steps: int,
        title: str,
        accelerator: Accelerator,
        *,
        on_entry: Callable[[Point], None],
        observe: Callable[[], dict[str, float]],
        last_good: Callable[[], str] = lambda: "no checkpoint is kept",
    ) -> None:
        self.curve: list[Point] = []
        self.steps, self.accelerator, self.on_entry, self.observe = steps, accelerator, on_entry, observe
        self.last_good = last_good
        self.every = max(1, steps // CURVE_POINTS)
        self.names: list[str] = []  # gradient, total, and the terms
        self.sums = torch.zeros((), device=accelerator.device)  # (names,) since the last point
        self.sound_steps = torch.zeros((), dtype=torch.int64, device=accelerator.device)  # (names,) till a fault
        self.count = self.step = 0
        self.bar = progress_bar(total=steps, desc=title, unit="step", disable=not accelerator.is_main_process)

    def add(self, epoch: int, learning_rate: float, terms: dict[str, Tensor], gradient_norm: Tensor) -> None:
        """Takes one step: this process's share of its terms; every so often they become a point of the curve.

        gradient_norm: that of all processes, before it is clipped.
        """
        self.names = ["gradient", *terms]
        values = self.accelerator.reduce(torch.stack(list(terms.values())), "sum")
        sums = self.sums + torch.cat([gradient_norm.reshape(1), values])
        self.sums = torch.where(self.sums.isfinite(), sums, self.sums)  # a fault stays as it came
        self.sound_steps = self.sound_steps + self.sums.isfinite()
        self.count += 1
        self.step += 1
        self.bar.update()
        if self.step % self.every == 0 or self.step == self.steps:
            self._add_point({"step": self.step, "epoch": epoch, "learning_rate": learning_rate})

    def _add_point(self, point: Point) -> None:
        self.check_faults()
        means = {name: value / self.count for name, value in zip(self.names, self.sums.tolist(), strict=True)}
        del means["gradient"]
        self.curve.append(point | means | self.observe())
        self.on_entry(self.curve[-1])
        self.bar.set_postfix({name: f"{value:.3g}" for name, value in means.items()}, refresh=False)
        self.sums, self.sound_steps, self.count = self.sums.new_zeros(()), self.sound_steps.new_zeros(()), 0

    def check_faults(self) -> None:
        """UserError where a step since the last point had a loss or a gradient that is not finite."""
        sound_steps = self.sound_steps.flatten().tolist()
        earliest = min(sound_steps)
        if earliest == self.count:
            return
        # A term spoils the total, and that the gradient: the last of them is the cause.
        index = len(sound_steps) - 1 - sound_steps[::-1].index(earliest)
        name = "gradient" if index == 0 else f"{self.names[index]} loss"
        step = self.step - self.count + earliest + 1
        self.bar.close()
        raise UserError(
            f"step {step} of {self.steps}: the {name} is {self.sums[index].item()}; lower learning_rate"
            f"{' or its λ' if index else ''}, or set precision to float32 ({self.last_good()})"
        )

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of the sums since the last point, all of them finite."""
        return {f"{PREFIX}sums": self.sums}

    def facts(self) -> dict:
        """What a checkpoint keeps beside them."""
        return {"step": self.step, "count": self.count, "curve": self.curve}

    def restore(self, tensors: dict[str, Tensor], facts: dict) -> None:
        """Goes on where `tensors` and `facts` were taken; the points so far are given out again."""
        self.step, self.count, self.curve = facts["step"], facts["count"], facts["curve"]
        self.sums = tensors[f"{PREFIX}sums"].to(self.accelerator.device)
        self.sound_steps = torch.full_like(self.sums, self.count, dtype=torch.int64)
        for point in self.curve:
            self.on_entry(point)
        self.bar.initial = self.bar.n = self.step  # or its rate would count steps of an earlier run
