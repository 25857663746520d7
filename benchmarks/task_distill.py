"""Speed and memory of task distillation against a plain reference, taking turns in one run.

`python -m benchmarks.task_distill [--phase prediction]`: BERT-base with random weights teaches TinyBERT4 on a task's
training rows, 32 in a batch; embedding, hidden and attention losses for 20 epochs, or soft cross-entropy on the logits
for 3 epochs. The reference is benchmarks/reference.py: every row padded to 64 tokens (pairs: 128), the teacher asked at
every step, fp32. Ours is the training run as the stages call it: little padding computed, bf16 if the hardware has
it, the teacher's outputs cached (up to 8 GB). The intermediate phase fills the cache, the prediction phase
opens it after an epoch of the intermediate one; the total of ours counts both. Ours runs its first epoch alone, whose
steps may differ from later ones; then the two take turns: a step of the reference, all of whose steps are alike, and
several of ours, whose batches come in the random order of an epoch. The last line is the ratio of the totals.

The papers' rows are augmented (N_a = 30: about 31 times CoLA's rows, up to 61 times MRPC's), and CoLA has 50 epochs.
The cache of so many rows needs up to 27 and 156 GB; without it the teacher runs at every step.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from benchmarks import ours, reference
from benchmarks.reference import BERT_BASE, TINYBERT4, VOCABULARY_SIZE, Shape
from benchmarks.timing import Contestant, StartGun, contestant, hardware
from tinybert.config.tasks import TASKS, Task
from tinybert.data.encoding import Encoded, encode
from tinybert.data.task_sources import read_splits
from tinybert.data.tokenizer import folder_tokenizer, train_tokenizer
from tinybert.distill.batches import Batches
from tinybert.distill.loop import Settings, train
from tinybert.distill.metric_log import TrainRun
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.teacher_cache import CachedTeacher, TeacherCache
from tinybert.models.bert import SequenceClassifier
from tinybert.models.outputs import Batch, best_device
from tinybert.pipeline.errors import UserError

SEED = 0
# Training rows of the real task, and the length that the published code pads every one of them to.
PUBLISHED = {"cola": (8551, 64), "mrpc": (3668, 128)}
ENDLESS_EPOCHS = 10**6
STORE_BYTES = 8 * 10**9
LIMIT_MIB = 6 * 1024
BLOCK_STEPS = 20  # of ours, to one of the reference


class TaskSizes(NamedTuple):
    """Of the models and a batch, and how many training rows there are (None: all, as many as the real task has)."""

    teacher: Shape
    student: Shape
    vocabulary: int
    batch_rows: int
    rows: int | None = None


SIZES = {
    "published": TaskSizes(BERT_BASE, TINYBERT4, VOCABULARY_SIZE, batch_rows=32),
    "small": TaskSizes(Shape(4, 24, 48, 3), Shape(2, 12, 24, 3), 1000, batch_rows=4, rows=40),
}


class TaskSetup(NamedTuple):
    """A task's training rows, with what learns from them and how.

    padded_length_tokens: of every row in the reference. described: one line on data and vocabulary, for people.
    """

    sizes: TaskSizes
    task: Task
    examples: Encoded
    vocabulary: int
    padded_length_tokens: int
    described: str

    @property
    def epoch_steps(self) -> int:
        """Steps of an epoch, the same for both."""
        return -(-len(self.examples) // self.sizes.batch_rows)


class Phase(NamedTuple):
    """A phase of the published recipe; `after`: the one before it, which fills the teacher cache."""

    name: str
    losses: tuple[str, ...]
    epochs: int
    after: "Phase | None" = None


INTERMEDIATE = Phase("intermediate", ("embedding", "hidden", "attention"), epochs=20)
PREDICTION = Phase("prediction", ("prediction",), epochs=3, after=INTERMEDIATE)
PHASES = {phase.name: phase for phase in (INTERMEDIATE, PREDICTION)}


class Measurement(NamedTuple):
    """Seconds: what ours took until its first step, then its first epoch; each step of both in the turns after that."""

    our_start_s: float
    our_first_epoch_s: float
    reference_steps_s: list[float]
    our_steps_s: list[float]

    def totals_s(self, *, epochs: int, epoch_steps: int) -> tuple[float, float]:
        """Seconds of an entire phase: the reference's, whose steps are alike, and ours."""
        our_later_epochs_s = (epochs - 1) * epoch_steps * mean(self.our_steps_s)
        reference_s = epochs * epoch_steps * median(self.reference_steps_s)
        return reference_s, self.our_start_s + self.our_first_epoch_s + our_later_epochs_s


def chosen_work(options: argparse.Namespace) -> TaskSetup:
    """The work that the options choose; UserError if data or vocabulary cannot be read."""
    sizes, task = SIZES[options.sizes], TASKS[options.task]
    published_rows, padded_length_tokens = PUBLISHED[task.name]
    count = options.rows or sizes.rows
    synthetic = SimpleNamespace(train_examples=count or published_rows, dev_examples=1)
    settings = SimpleNamespace(local=SimpleNamespace(folder=options.data), synthetic=synthetic)
    rows = read_splits(task, "local" if options.data else "synthetic", settings=settings, seed=SEED)["train"]
    rows = random.Random(SEED).sample(rows, min(count or len(rows), len(rows)))
    tokenizer = _tokenizer(options.vocabulary, [row[column] for row in rows for column in task.columns], sizes)
    examples = encode(rows, task, tokenizer, max_length_tokens=padded_length_tokens)
    pieces = tokenizer.get_vocab_size()
    described = (
        f"{task.name}, {options.data or 'synthetic'}: {len(rows)} training rows of {examples.lengths.mean():.1f} "
        f"pieces in the mean; vocabulary of {pieces} pieces, {options.vocabulary or 'learned from the texts'}"
    )
    return TaskSetup(sizes, task, examples, max(pieces, sizes.vocabulary), padded_length_tokens, described)


def _tokenizer(vocabulary: str | None, texts: list[str], sizes: TaskSizes) -> Tokenizer:
    if vocabulary is None:
        return train_tokenizer(texts, vocabulary_size=sizes.vocabulary)
    if not Path(vocabulary).is_file():
        raise UserError(f"--vocabulary: {vocabulary} is no file; give the vocab.txt of a BERT, or leave it out")
    with tempfile.TemporaryDirectory() as name:
        # Alone in a folder: a tokenizer.json beside the file would be read instead of it.
        (Path(name) / "vocab.txt").symlink_to(Path(vocabulary).resolve())
        return folder_tokenizer(name)


def run_ours(work: TaskSetup, phase: Phase, precision: str, folder: Path, gun: StartGun) -> None:
    """Trains with the project's loop: up to its first step at the first start, then a step at each.

    The teacher cache is in `folder`.
    """
    torch.manual_seed(SEED)
    teacher, student = (
        SequenceClassifier(ours.bert_config(shape, work.vocabulary), work.task.labels)
        for shape in (work.sizes.teacher, work.sizes.student)
    )

    def distill(trained: Phase, epochs: int) -> None:  # as its stage does
        loss = DistillationLoss(DistillationConfig(dict.fromkeys(trained.losses, 1.0)), student.config, teacher.config)
        batches = Batches(work.examples, batch_size=work.sizes.batch_rows, seed=SEED)
        training = ours.training(epochs=epochs, batch_size=work.sizes.batch_rows)
        settings = Settings(training, ours.OPTIMIZER, SEED, precision)
        cached = CachedTeacher(teacher, loss, work.examples, TeacherCache(folder, STORE_BYTES))
        train(student, loss, batches, settings, teacher=cached, run=TrainRun(trained.name))

    if phase.after:
        distill(phase.after, epochs=1)
    starts = iter(gun)
    next(starts)
    student.register_forward_pre_hook(lambda *_: next(starts))
    distill(phase, epochs=ENDLESS_EPOCHS)


def run_reference(work: TaskSetup, phase: Phase, gun: StartGun) -> None:
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
    rng, count = np.random.default_rng(SEED), min(batch_rows, len(examples))
    while True:
        rows = torch.from_numpy(rng.choice(len(examples), count, replace=False))
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


def compare(work: TaskSetup, phase: Phase, precision: str, *, blocks: int) -> float:
    """Times both in turn, prints what they take; returns the ratio of their total times.

    Ends with 1 if one holds more than 6 GiB.
    """
    print(work.described)
    print(f"{work.sizes.teacher} teaches {work.sizes.student}; losses: {', '.join(phase.losses)}")
    print(f"{phase.epochs} epochs of {work.epoch_steps} steps; {work.sizes.batch_rows} rows a step")
    print(f"{hardware()}; reference in float32, rows of {work.padded_length_tokens}; ours in {precision}", flush=True)
    with tempfile.TemporaryDirectory(prefix="teacher-cache.") as name:
        folder = Path(name)
        ours_in_folder = contestant(run_ours, work, phase, precision, folder)
        with contestant(run_reference, work, phase) as plain, ours_in_folder as mine:
            found = measure(plain, mine, epoch_steps=work.epoch_steps, blocks=blocks)
        cached_mb = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    theirs_s, ours_s = found.totals_s(epochs=phase.epochs, epoch_steps=work.epoch_steps)
    plain.report("reference", line(found.reference_steps_s, median(found.reference_steps_s), theirs_s))
    mine.report("ours", line(found.our_steps_s, mean(found.our_steps_s), ours_s))
    print(
        f"ours: {found.our_start_s:.1f} s before the first step, {found.our_first_epoch_s:.1f} s for the first epoch; "
        f"{cached_mb:.1f} MB of cached teacher outputs"
    )
    if (peak_mib := max(plain.peak_mib, mine.peak_mib)) > LIMIT_MIB:
        sys.exit(f"peak memory: {peak_mib:.0f} MiB; at most {LIMIT_MIB} MiB are allowed")
    return theirs_s / ours_s


def line(steps_s: list[float], typical_s: float, total_s: float) -> str:
    """The seconds of a contestant, for people."""
    return (
        f"{typical_s:9.4f} s a step ({len(steps_s)} steps of {min(steps_s):.4f} to {max(steps_s):.4f})"
        f"   total {total_s:.1f} s = {total_s / 3600:.2f} hours"
    )


def main() -> None:
    parser = ours.argument_parser(__doc__, SIZES)
    parser.add_argument("--phase", choices=PHASES, default="intermediate")
    parser.add_argument("--task", choices=PUBLISHED, default="cola")
    parser.add_argument("--data", metavar="FOLDER", help="GLUE in the official layout (default: synthetic examples)")
    wordpiece = "vocab.txt of a BERT WordPiece tokenizer (default: learned from the texts)"
    parser.add_argument("--vocabulary", metavar="FILE", help=wordpiece)
    parser.add_argument("--rows", type=int, help="so many of the training rows, at random (default: all)")
    blocks = f"of one reference step and {BLOCK_STEPS} of ours (default: %(default)s)"
    parser.add_argument("--blocks", type=int, default=14, help=blocks)
    options = parser.parse_args()
    try:
        work = chosen_work(options)
    except UserError as error:
        sys.exit(str(error))
    ratio = compare(work, PHASES[options.phase], options.precision, blocks=options.blocks)
    print(f"ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
