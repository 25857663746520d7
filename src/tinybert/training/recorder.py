"""The loss curve of a training run: means between points, shown while they come."""

import math
from collections.abc import Callable

import torch
from accelerate import Accelerator
from torch import Tensor

from tinybert.errors import UserError
from tinybert.progress import progress_bar

CURVE_POINTS = 50  # logged in a run, whatever its length
PREFIX = "recorder."

# step, epoch, learning_rate, total, the mean of each loss term since the last point, and what else is observed.
Point = dict[str, float]


class Recorder:
    """Averages the terms between curve points, shows them, and refuses what is not finite.

    observe: what else belongs into a point, by name.
    """

    def __init__(
        self,
        steps: int,
        title: str,
        accelerator: Accelerator,
        *,
        on_point: Callable[[Point], None],
        observe: Callable[[], dict[str, float]],
    ) -> None:
        self.curve: list[Point] = []
        self.steps, self.accelerator, self.on_point, self.observe = steps, accelerator, on_point, observe
        self.every = max(1, steps // CURVE_POINTS)
        self.sums: dict[str, Tensor] = {}
        self.count = self.step = 0
        self.bar = progress_bar(total=steps, desc=title, unit="step", disable=not accelerator.is_main_process)

    def add(self, epoch: int, learning_rate: float, terms: dict[str, Tensor]) -> None:
        """Takes this process's share of the terms of one step; every so often they become a point of the curve."""
        values = self.accelerator.reduce(torch.stack(list(terms.values())), "sum")
        for name, value in zip(terms, values, strict=True):
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.count += 1
        self.step += 1
        self.bar.update()
        if self.step % self.every == 0 or self.step == self.steps:
            self._add_point({"step": self.step, "epoch": epoch, "learning_rate": learning_rate})

    def _add_point(self, point: Point) -> None:
        means = {name: value.item() / self.count for name, value in self.sums.items()}
        for name, value in reversed(means.items()):
            if not math.isfinite(value):
                raise UserError(
                    f"step {self.step} of {self.steps}: the {name} loss is {value}; lower learning_rate or its λ, "
                    "or set precision to float32"
                )
        self.curve.append(point | means | self.observe())
        self.on_point(self.curve[-1])
        self.bar.set_postfix({name: f"{value:.3g}" for name, value in means.items()}, refresh=False)
        self.sums, self.count = {}, 0

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of the sums since the last point."""
        return {f"{PREFIX}{name}": value for name, value in self.sums.items()}

    def facts(self) -> dict:
        """What a checkpoint keeps beside them."""
        return {"step": self.step, "count": self.count, "terms": list(self.sums), "curve": self.curve}

    def restore(self, tensors: dict[str, Tensor], facts: dict) -> None:
        """Goes on where `tensors` and `facts` were taken; the points so far are given out again."""
        device = self.accelerator.device
        self.sums = {name: tensors[f"{PREFIX}{name}"].to(device) for name in facts["terms"]}
        self.step, self.count, self.curve = facts["step"], facts["count"], facts["curve"]
        for point in self.curve:
            self.on_point(point)
        self.bar.initial = self.bar.n = self.step  # or its rate would count steps of an earlier run
