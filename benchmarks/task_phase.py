"""Both phases of task distillation, timed: what task_distill and prediction have in common.

BERT-base with random weights teaches TinyBERT4 on a task's training rows, 32 in a batch. The reference is
benchmarks/reference.py: every row padded to 64 tokens (pairs: 128), the teacher asked at every step, fp32. Ours is the
training run as the stages call it: padding computed in attention alone, bf16 where the hardware has it, the teacher's
outputs cached (up to 8 GB). Ours runs its first epoch alone, which checks cached outputs as it reads them; then the two
take turns: a step of the reference, all of whose steps are alike, and several of ours, whose batches come in the random
order of an epoch.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks import ours, reference
from benchmarks.task_work import SEED, Work, add_arguments, chosen_work
from benchmarks.timing import Contestant, StartGun, contestant, hardware
from tinybert.data.encoding import Encoded
from tinybert.distill.batches import Batches
from tinybert.distill.loop import Settings, train
from tinybert.distill.metric_log import TrainRun
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.teacher_cache import CachedTeacher, TeacherCache
from tinybert.models.bert import SequenceClassifier
from tinybert.models.outputs import Batch, best_device
from tinybert.pipeline.errors import UserError

ENDLESS_EPOCHS = 10**6
STORE_BYTES = 8 * 10**9
LIMIT_MIB = 6 * 1024
BLOCK_STEPS = 20  # of ours, to one of the reference


@dataclass(frozen=True)
class Phase:
    """A phase of the published recipe; `after`: the one before it, which fills the teacher cache."""

    name: str
    losses: tuple[str, ...]
    epochs: int
    after: "Phase | None" = None


INTERMEDIATE = Phase("intermediate", ("embedding", "hidden", "attention"), epochs=20)
PREDICTION = Phase("prediction", ("prediction",), epochs=3, after=INTERMEDIATE)


@dataclass(frozen=True)
class Measurement:
    """Seconds: what ours took until its first step, then its first epoch; each step of both in the turns after that."""

    our_start_s: float
    our_first_epoch_s: float
    reference_steps_s: list[float]
    our_steps_s: list[float]

    def totals_s(self, *, epochs: int, epoch_steps: int) -> tuple[float, float]:
        """Seconds of a whole phase: the reference's, whose steps are alike, and ours."""
        our_later_epochs_s = (epochs - 1) * epoch_steps * mean(self.our_steps_s)
        return (
            epochs * epoch_steps * median(self.reference_steps_s),
            self.our_start_s + self.our_first_epoch_s + our_later_epochs_s,
        )


def run_ours(work: Work, phase: Phase, precision: str, folder: Path, gun: StartGun) -> None:
    """Trains with the project's loop: up to its first step at the first start, then a step at each."""
    torch.manual_seed(SEED)
    teacher, student = (
        SequenceClassifier(ours.bert_config(shape, work.vocabulary), work.task.labels)
        for shape in (work.sizes.teacher, work.sizes.student)
    )
    run = partial(distill, teacher, student, work, precision=precision, folder=folder)
    if phase.after:
        run(phase.after, epochs=1)
    starts = iter(gun)
    next(starts)
    student.register_forward_pre_hook(lambda *_: next(starts))
    run(phase, epochs=ENDLESS_EPOCHS)


def distill(
    teacher: SequenceClassifier,
    student: SequenceClassifier,
    work: Work,
    phase: Phase,
    *,
    epochs: int,
    precision: str,
    folder: Path,
) -> None:
    """A phase as its stage runs it, the teacher cache in `folder`."""
    loss = DistillationLoss(DistillationConfig(dict.fromkeys(phase.losses, 1.0)), student.config, teacher.config)
    batches = Batches(work.examples, batch_size=work.sizes.batch_rows, seed=SEED)
    training = ours.training(epochs=epochs, batch_size=work.sizes.batch_rows)
    settings = Settings(training, ours.OPTIMIZER, SEED, precision)
    cached = CachedTeacher(teacher, loss, work.examples, TeacherCache(folder, STORE_BYTES))
    train(student, loss, batches, settings, teacher=cached, run=TrainRun(phase.name))


def run_reference(work: Work, phase: Phase, gun: StartGun) -> None:
    """Trains with the plain reference, a step at each start."""
    torch.manual_seed(SEED)
    teacher, student = (
        reference.Classifier(shape, work.vocabulary, len(work.task.labels), dropout=ours.DROPOUT)
        for shape in (work.sizes.teacher, work.sizes.student)
    )
    distillation = reference.TaskDistillation(teacher, student, layers=phase == INTERMEDIATE).to(best_device())
    batches = padded_batches(work.examples, batch_rows=work.sizes.batch_rows, length_tokens=work.padded_length_tokens)
    for _, batch in zip(gun, batches, strict=False):
        on_device = batch.to(best_device())
        distillation.step(on_device.input_ids, on_device.mask, on_device.token_type_ids)


def padded_batches(examples: Encoded, *, batch_rows: int, length_tokens: int) -> Iterator[Batch]:
    """Random rows without end, each padded to `length_tokens`, however short all are."""
    whole = examples.batch(range(len(examples)))
    missing = length_tokens - whole.mask.shape[1]
    parts = [F.pad(part, (0, missing)) for part in (whole.input_ids, whole.mask, whole.token_type_ids)]
    rng = np.random.default_rng(SEED)
    while True:
        rows = torch.from_numpy(rng.choice(len(examples), batch_rows, replace=False))
        yield Batch(*(part[rows] for part in parts))


def measure(plain: Contestant, mine: Contestant, *, epoch_steps: int, blocks: int) -> Measurement:
    """Lets ours go through its first epoch, then both take their steps in turn."""
    our_start_s = mine.step()
    our_first_epoch_s = sum(mine.step() for _ in range(epoch_steps))
    plain.step()  # to warm up
    reference_steps_s, our_steps_s = [], []
    for _ in range(blocks):
        reference_steps_s.append(plain.step())
        our_steps_s.extend(mine.step() for _ in range(BLOCK_STEPS))
    return Measurement(our_start_s, our_first_epoch_s, reference_steps_s, our_steps_s)


def compare(work: Work, phase: Phase, precision: str, *, blocks: int) -> float:
    """Times both in turn, prints what they take; returns the ratio of their total times.

    Ends with 1 where one holds more than 6 GiB.
    """
    print(work.described)
    print(f"{work.sizes.teacher} teaches {work.sizes.student}; losses: {', '.join(phase.losses)}")
    print(f"{phase.epochs} epochs of {work.epoch_steps} steps; {work.sizes.batch_rows} rows a step")
    print(f"{hardware()}; reference in float32, rows of {work.padded_length_tokens}; ours in {precision}", flush=True)
    with tempfile.TemporaryDirectory(prefix="teacher-cache.") as name:
        folder = Path(name)
        with (
            contestant(run_reference, work, phase) as plain,
            contestant(run_ours, work, phase, precision, folder) as mine,
        ):
            found = measure(plain, mine, epoch_steps=work.epoch_steps, blocks=blocks)
        cached_mb = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    totals_s = found.totals_s(epochs=phase.epochs, epoch_steps=work.epoch_steps)
    print(report("reference", found.reference_steps_s, median(found.reference_steps_s), totals_s[0], plain))
    print(report("ours", found.our_steps_s, mean(found.our_steps_s), totals_s[1], mine))
    print(
        f"ours: {found.our_start_s:.1f} s before the first step, {found.our_first_epoch_s:.1f} s for the first epoch; "
        f"{cached_mb:.1f} MB of cached teacher outputs"
    )
    if max(plain.peak_mib, mine.peak_mib) > LIMIT_MIB:
        sys.exit(f"peak memory: {max(plain.peak_mib, mine.peak_mib):.0f} MiB; at most {LIMIT_MIB} MiB are allowed")
    return totals_s[0] / totals_s[1]


def report(name: str, steps_s: list[float], typical_s: float, total_s: float, system: Contestant) -> str:
    """One line on a contestant."""
    return (
        f"{name:10}{typical_s:9.4f} s a step ({len(steps_s)} steps of {min(steps_s):.4f} to {max(steps_s):.4f})"
        f"   total {total_s:.1f} s = {total_s / 3600:.2f} hours   peak memory {system.peak_mib:.0f} MiB"
    )


def main(phase: Phase, description: str) -> None:
    """The command line of a phase's benchmark."""
    parser = argparse.ArgumentParser(description=description)
    add_arguments(parser)
    parser.add_argument("--precision", choices=("bfloat16", "float32"), default=ours.best_precision(), help="ours")
    parser.add_argument(
        "--blocks", type=int, default=14, help=f"of one reference step and {BLOCK_STEPS} of ours (default: %(default)s)"
    )
    options = parser.parse_args()
    os.environ["TQDM_DISABLE"] = "1"  # the loop's progress bar, in the process that inherits this
    try:
        work = chosen_work(options)
    except UserError as error:
        sys.exit(str(error))
    ratio = compare(work, phase, options.precision, blocks=options.blocks)
    print(f"ratio {ratio:.2f}")
