"""The loss curve of a run: means between entries, reported during training; a non-finite value stops the run."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor

from tinybert.distill.resume import Checkpoint
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.process import progress_bar

CURVE_ENTRIES = 50  # at least, and below 100; each step of a shorter run

# step, epoch, learning_rate, total, the mean of each loss term since the last entry, weights of a learnable map
Entry = dict[str, float]


class TrainRun(NamedTuple):
    """How a run reports and resumes; nothing here changes the result.

    Attributes:
        title: Shown on the progress bar.
        on_entry: Called with each entry of the loss curve.
        checkpoint: Saves and resumes the run.
    """

    title: str
    on_entry: Callable[[Entry], None] = lambda entry: None
    checkpoint: Checkpoint | None = None


class MetricLogger:
    """Averages loss terms between entries of the curve, reports them, and rejects non-finite values.

    Reading a number from a GPU synchronizes with it, so values stay on the device until an entry or a checkpoint.

    Args:
        accelerator: Adds up the processes' shares.
        learned: Returns further values of an entry by name.
    """

    def __init__(self, steps: int, run: TrainRun, accelerator: Accelerator, learned: Callable[[], Entry]) -> None:
        self.curve: list[Entry] = []
        self.steps, self.run, self.accelerator, self.learned = steps, run, accelerator, learned
        self.every = max(1, steps // CURVE_ENTRIES)
        self.names: list[str] = []  # gradient, total, terms
        self.recent: list[Tensor] = []  # (names,) of each step since the last entry
        self.step = 0
        self.bar = progress_bar(total=steps, desc=run.title, unit="step")

    def add(self, epoch: int, learning_rate: float, terms: dict[str, Tensor], gradient_norm: Tensor) -> None:
        """Counts one step; every so often the mean becomes an entry of the curve.

        Args:
            terms: This process's share of the total and of each term, by name.
            gradient_norm: Of all processes, before clipping.
        """
        self.names = ["gradient", *terms]
        values = self.accelerator.reduce(torch.stack(list(terms.values())), "sum")
        self.recent.append(torch.cat([gradient_norm.reshape(1), values]))
        self.step += 1
        self.bar.update()
        if self.step % self.every and self.step != self.steps:
            return
        self.check_finite()
        _, *sums = sum(self.recent, torch.zeros_like(self.recent[0])).tolist()  # the first is the gradient's norm
        means = {name: value / len(self.recent) for name, value in zip(terms, sums, strict=True)}
        self.curve.append({"step": self.step, "epoch": epoch, "learning_rate": learning_rate} | means | self.learned())
        self.run.on_entry(self.curve[-1])
        self.bar.set_postfix({name: f"{value:.3g}" for name, value in means.items()}, refresh=False)
        self.recent = []

    def check_finite(self) -> None:
        """Raises UserError if a loss or gradient of a step since the last entry is not finite."""
        if not self.recent or (values := torch.stack(self.recent)).isfinite().all():
            return
        step = int((~values.isfinite()).nonzero()[0, 0])
        # A non-finite term spreads to total and gradient: the last such value of the first such step is the cause.
        index = int((~values[step].isfinite()).nonzero()[-1])
        name = "gradient" if index == 0 else f"{self.names[index]} loss"
        self.bar.close()
        saved = self.run.checkpoint
        last = f"last good checkpoint: step {saved.step}, {saved.path}" if saved and saved.step else "no checkpoint"
        place = f"step {self.step - len(values) + step + 1} of {self.steps}"
        fix = f"lower learning_rate{' or its λ' if index else ''}"
        fix += f", or set precision to float32 ({last})" if self.accelerator.mixed_precision == "bf16" else f" ({last})"
        raise UserError(f"{place}: the {name} is {values[step, index].item()}; fix: {fix}")

    def state_dict(self) -> dict[str, Any]:
        """The curve, and the values since its last entry; all of them are finite."""
        return {"step": self.step, "curve": self.curve, "recent": self.recent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a checkpoint; its entries are reported again."""
        self.step, self.curve = state["step"], state["curve"]
        self.recent = [values.to(self.accelerator.device) for values in state["recent"]]
        for entry in self.curve:
            self.run.on_entry(entry)
        self.bar.initial = self.bar.n = self.bar.last_print_n = self.step  # the rate shown is that of this process
