"""The loss curve of a run: means between entries, reported during training; a non-finite value stops the run."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor

from tinybert.distill.resume import Checkpoint
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.process import progress_bar

CURVE_ENTRIES = 50  # of a run of any length
PREFIX = "logger."

# step, epoch, learning_rate, total, the mean of each loss term since the last entry, weights of a learnable map
Entry = dict[str, float]


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


class MetricLogger:
    """Averages loss terms between entries of the curve, reports them, and rejects non-finite values.

    Reading a number from a GPU synchronizes with it, so finiteness is checked for entries and checkpoints only. The
    step of the first non-finite value is counted on the device.

    Args:
        steps: Of the run.
        run: Its `on_entry` is called with each entry.
        accelerator: Adds up the processes' shares.
        learned: Returns further values of an entry by name.
    """

    def __init__(
        self, steps: int, run: TrainRun, accelerator: Accelerator, learned: Callable[[], dict[str, float]]
    ) -> None:
        self.curve: list[Entry] = []
        self.steps, self.run, self.accelerator, self.learned = steps, run, accelerator, learned
        self.every = max(1, steps // CURVE_ENTRIES)
        self.names: list[str] = []  # gradient, total, terms
        self.sums = torch.zeros((), device=accelerator.device)  # (names,) since the last entry
        self.finite_steps = torch.zeros((), dtype=torch.int64, device=accelerator.device)  # (names,) since then
        self.count = self.step = 0
        self.bar = progress_bar(total=steps, desc=run.title, unit="step", disable=not accelerator.is_main_process)

    def add(self, epoch: int, learning_rate: float, terms: dict[str, Tensor], gradient_norm: Tensor) -> None:
        """Counts one step; every so often the mean becomes an entry of the curve.

        Args:
            terms: This process's share of the total and of each term, by name.
            gradient_norm: Of all processes, before clipping.
        """
        self.names = ["gradient", *terms]
        values = self.accelerator.reduce(torch.stack(list(terms.values())), "sum")
        sums = self.sums + torch.cat([gradient_norm.reshape(1), values])
        self.sums = torch.where(self.sums.isfinite(), sums, self.sums)  # the first value that is not finite stays
        self.finite_steps = self.finite_steps + self.sums.isfinite()
        self.count += 1
        self.step += 1
        self.bar.update()
        if self.step % self.every == 0 or self.step == self.steps:
            self._add_entry({"step": self.step, "epoch": epoch, "learning_rate": learning_rate})

    def _add_entry(self, entry: Entry) -> None:
        self.check_finite()
        means = {name: value / self.count for name, value in zip(self.names, self.sums.tolist(), strict=True)}
        del means["gradient"]
        self.curve.append(entry | means | self.learned())
        self.run.on_entry(self.curve[-1])
        self.bar.set_postfix({name: f"{value:.3g}" for name, value in means.items()}, refresh=False)
        self.sums, self.finite_steps, self.count = self.sums.new_zeros(()), self.finite_steps.new_zeros(()), 0

    def check_finite(self) -> None:
        """Raises UserError if a loss or gradient of a step since the last entry is not finite."""
        finite_steps = self.finite_steps.flatten().tolist()
        earliest = min(finite_steps)
        if earliest == self.count:
            return
        # A term spoils the total, and the total the gradient: of those that end first the last one is the cause.
        index = len(finite_steps) - 1 - finite_steps[::-1].index(earliest)
        name = "gradient" if index == 0 else f"{self.names[index]} loss"
        step = self.step - self.count + earliest + 1
        self.bar.close()
        checkpoint = self.run.checkpoint.describe() if self.run.checkpoint else "no checkpoint is kept"
        raise UserError(
            f"step {step} of {self.steps}: the {name} is {self.sums[index].item()}; fix: lower learning_rate"
            f"{' or its λ' if index else ''}, or set precision to float32 ({checkpoint})"
        )

    def tensors(self) -> dict[str, Tensor]:
        """The sums since the last entry, for a checkpoint; all of them are finite."""
        return {f"{PREFIX}sums": self.sums}

    def facts(self) -> dict:
        """What a checkpoint keeps beside the tensors."""
        return {"step": self.step, "count": self.count, "curve": self.curve}

    def restore(self, tensors: dict[str, Tensor], facts: dict) -> None:
        """Continues from a checkpoint; its entries are reported again."""
        self.step, self.count, self.curve = facts["step"], facts["count"], facts["curve"]
        self.sums = tensors[f"{PREFIX}sums"].to(self.accelerator.device)
        self.finite_steps = torch.full_like(self.sums, self.count, dtype=torch.int64)
        for entry in self.curve:
            self.run.on_entry(entry)
        self.bar.initial = self.bar.n = self.step  # the rate shown is that of this process
