"""A rough estimate of a run from its sizes: steps, tokens and time of each training stage, disk and memory.

Sizes that depend on a download are NaN, and so is all that follows from them.
"""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from tinybert.config.fields import Architecture, StudentArchitecture, Training
from tinybert.config.schema import Params
from tinybert.config.students import LOGIT_LOSSES, training_of
from tinybert.data.corpus import documents, file_articles, matching_files
from tinybert.data.table_files import tables_of
from tinybert.data.task_sources import read_splits
from tinybert.data.tasks import TASKS
from tinybert.pipeline import paths
from tinybert.pipeline.files import read_json

TOKENS_PER_WORD = 1.3
SEEN_BYTES = 10**6  # of local text; the rest is assumed to be alike
PRODUCT_ROWS, PRODUCT_SECONDS = 512, 0.3
# Fitted on two cores (docs/log.md, "estimate of a run"): what a stage takes beside its steps, what a step takes
# beside its matrix products, and which share of the speed of a single product these reach.
STAGE_SECONDS, STEP_SECONDS = 4.0, 0.005
EFFICIENCY = {"float32": 0.5, "bfloat16": 0.3}
BASE_BYTES = 5e8  # Python with PyTorch
FINAL_COPIES = 7  # of a task model as ONNX variants and in models/final, in sizes of its weights
PHASES = ("intermediate", "prediction")
BERT_VOCABULARY = 30522


@dataclass(frozen=True)
class Rows:
    """Rows of training data and their mean length."""

    count: float
    tokens: float


@dataclass(frozen=True)
class Work:
    """What one or several instances of a stage compute."""

    steps: float = 0.0
    tokens: float = 0.0
    flops: float = 0.0

    @classmethod
    def of(cls, training: Training, rows: Rows, matrices: float, taught_by: float = 0.0) -> "Work":
        """A training: 6 operations for each weight and token, and 2 for each weight of a teacher."""
        if not training.epochs:
            return cls()
        steps = min(training.epochs * -(-rows.count // training.batch_size), training.max_steps or math.inf)
        tokens = steps * training.batch_size * rows.tokens
        return cls(steps, tokens, tokens * (6 * matrices + 2 * taught_by))

    @classmethod
    def sum(cls, works: Iterable["Work"]) -> "Work":
        """The work of all."""
        parts = [(work.steps, work.tokens, work.flops) for work in works]
        return cls(*map(sum, zip(*parts, strict=True)))


class Sizes:
    """The sizes that an estimate follows from.

    Args:
        params: Their local sources have been checked (source_checks.py).
    """

    def __init__(self, params: Params) -> None:
        self.params = params
        self.teacher, self.vocabulary = teacher_shape(params)
        self.text = text_rows(params)
        self.rows = {task: task_rows(params, task) for task in params.tasks.run}

    def works(self) -> dict[str, list[Work]]:
        """The instances of the stages that train, by stage; and those of the others."""
        params, tasks, seeds = self.params, self.params.tasks, len(self.params.seeds)
        pairs, sections = list(product(tasks.run, tasks.students)), [getattr(tasks, task) for task in tasks.run]
        phases = {phase: [self._task_work(*pair, phase) for pair in pairs] for phase in PHASES}
        encoder, others = self._matrices(self.teacher), len(tasks.students) + len(params.quantization.models)
        return {
            "prepare_teacher": [
                Work.of(params.teacher.pretraining, self.text, encoder + self._head(self.teacher)),
            ],
            "general_distill": [self._text_work(name, "general") for name in params.general.students],
            "domain_distill": [self._text_work(name, "domain") for name in params.domain.students] * seeds,
            "finetune_teacher": [
                Work() if of.finetuned_teacher else Work.of(of.teacher, self.rows[task], encoder)
                for task, of in zip(tasks.run, sections, strict=True)
            ],
            "augment": [self._augmentation(task) for task in tasks.run],
            **{f"task_distill_{phase}": works * seeds for phase, works in phases.items()},
            "finetune_student": [Work.sum(both * seeds) for both in zip(*phases.values(), strict=True)],
            "prune": [self._task_work(*pair, "pruning") for pair in pairs] * len(params.pruning.sparsities_percent),
            "all others": [Work()] * (10 + len(tasks.run) * (2 + others)),
        }

    def memory_bytes(self) -> float:
        """Of the largest training: weights, gradients and Adam's moments, a teacher, and what a batch computes."""
        params, shapes = self.params, [self.teacher, *(of.architecture for of in self.params.used_students.values())]
        rows = max(params.teacher.pretraining.batch_size, params.general.training.batch_size)
        text = rows * params.tokenize.sequence_tokens
        of_tasks = (getattr(params.tasks, task) for task in params.tasks.run)
        tokens = max(text, *(of.teacher.batch_size * of.max_length_tokens for of in of_tasks))
        logits = 3 * params.masking.rate * text * self.vocabulary  # themselves, probabilities and gradients
        batch = tokens * max(of.layers * (10 * of.width + 3 * of.feed_forward) for of in shapes)
        weights = 4 * max(map(self._weights, shapes)) + self._weights(self.teacher)
        return BASE_BYTES + 4 * (weights + logits + batch)

    def disk_bytes(self) -> float:
        """Of all model folders, twice because DVC's cache holds a copy; without the teacher cache."""
        params, tasks, seeds = self.params, self.params.tasks, len(self.params.seeds)
        of_task = len(tasks.run) * (2 * seeds + len(params.pruning.sparsities_percent) + FINAL_COPIES)
        weights = self._weights(self.teacher) * (1 + len(tasks.run) * (1 + FINAL_COPIES))
        for name, student in params.used_students.items():
            folders = 1 + (seeds + 1) * (name in params.domain.students) + of_task * (name in tasks.students)
            weights += folders * self._weights(student.architecture)
        return 2 * 4 * weights

    def _text_work(self, name: str, track: str) -> Work:
        student = self.params.students[name]
        if (losses := getattr(student, track)) is None:
            return Work()
        reads_logits = bool(losses.active_losses.keys() & set(LOGIT_LOSSES))
        shapes = (student.architecture, self.teacher)
        ours, theirs = (self._matrices(shape) + reads_logits * self._head(shape) for shape in shapes)
        return Work.of(training_of(self.params, name, track), self.text, ours, theirs)

    def _task_work(self, task: str, name: str, phase: str) -> Work:
        """The teacher's outputs are cached: of all epochs, it runs in one, and later phases read them."""
        settings, student, rows = getattr(self.params.tasks, task), self.params.students[name], self.rows[task]
        is_pruning = phase == "pruning"
        if not is_pruning and getattr(student, phase) is None:
            return Work()
        training = settings.pruning if is_pruning else training_of(self.params, name, phase, task=task)
        copies = 1 if is_pruning else 1 + settings.augmented_copies
        rows = Rows(rows.count * copies * settings.train_fraction, rows.tokens)
        is_cached = phase == "prediction" and student.intermediate and settings.intermediate.epochs
        taught_by = 0.0 if is_cached else self._matrices(self.teacher) / max(1, training.epochs)
        return Work.of(training, rows, self._matrices(student.architecture), taught_by)

    def _augmentation(self, task: str) -> Work:
        """The masked LM reads a row, and its unmasked copy, for each word that may be replaced: about every second."""
        settings, rows = getattr(self.params.tasks, task), self.rows[task]
        if not settings.augmented_copies or self.params.augmentation.strategy != "substitution":
            return Work()
        reads = rows.tokens / TOKENS_PER_WORD / 2 * (1 + self.params.augmentation.substitution.second_segment)
        tokens = rows.count * settings.train_fraction * rows.tokens * reads
        return Work(flops=2 * self._matrices(self.teacher) * tokens)

    @staticmethod
    def _matrices(shape: StudentArchitecture) -> float:
        """The weights that each token is multiplied by, without a head."""
        if shape.kind == "bilstm":
            return 8 * shape.width * (shape.embedding + shape.width + (shape.layers - 1) * 3 * shape.width)
        return shape.layers * (4 * shape.width**2 + 2 * shape.width * shape.feed_forward)

    def _head(self, shape: StudentArchitecture) -> float:
        """Those of the masked-LM head, for the share of tokens that is masked."""
        return self.params.masking.rate * shape.width * (shape.width + self.vocabulary)

    def _weights(self, shape: StudentArchitecture) -> float:
        """All weights: matrices, word embeddings and positions."""
        width = shape.embedding if shape.kind == "bilstm" else shape.width
        return self._matrices(shape) + (self.vocabulary + 512) * width


def estimate(params: Params) -> Iterator[str]:
    """The lines of an estimate for this machine, whose speed a third of a second of products measures."""
    sizes = Sizes(params)
    speed, machine = measured_speed(sizes.teacher, params.precision)
    reached = EFFICIENCY[params.precision] * speed
    yield f"estimate for this machine ({machine}, nothing else running), right within a factor of about two:"
    yield f"{'stage':<26}{'instances':>9}{'steps':>10}{'tokens':>15}{'time':>10}"
    seconds = []
    for stage, works in sizes.works().items():
        work = Work.sum(works)
        if work == Work() and stage != "all others":  # nothing is trained
            continue
        seconds.append(len(works) * STAGE_SECONDS + work.steps * STEP_SECONDS + work.flops / reached)
        steps, tokens = ("?" if math.isnan(of) else f"{of:,.0f}" if of else "–" for of in (work.steps, work.tokens))
        yield f"{stage:<26}{len(works):>9}{steps:>10}{tokens:>15}{duration(seconds[-1]):>10}"
    known = [part for part in seconds if not math.isnan(part)]
    yield f"time: {duration(sum(known))}" + " at least; ?: unknown until downloaded" * (len(known) < len(seconds))
    amounts = [f"{amount / 1e9:.2g} GB" for amount in (sizes.disk_bytes(), sizes.memory_bytes())]
    disk, memory = (amount.replace("nan GB", "unknown until downloaded") for amount in amounts)
    yield f"disk: models {disk}, teacher cache at most {params.tasks.teacher_cache_gb:g} GB; memory: {memory}"


def measured_speed(teacher: Architecture, precision: str) -> tuple[float, str]:
    """The operations per second of products as large as the teacher's, and the machine's name.

    The best product of one CPU thread counts for all: several threads wait for each other if other processes run.
    """
    import torch

    from tinybert.models.outputs import best_device

    device, dtype = best_device(), getattr(torch, precision)
    width, outer = (768, 3072) if math.isnan(teacher.width) else (teacher.width, teacher.feed_forward)
    left, right = (torch.ones(shape, device=device, dtype=dtype) for shape in ((PRODUCT_ROWS, width), (width, outer)))
    threads = 1 if device.type == "cuda" else torch.get_num_threads()
    torch.set_num_threads(1)
    best, end = math.inf, time.perf_counter() + PRODUCT_SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        float((left @ right)[0, 0])  # waits for a GPU
        best = min(best, time.perf_counter() - start)
    torch.set_num_threads(threads)
    speed = threads * 2 * PRODUCT_ROWS * width * outer / best
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"{threads} CPU threads"
    return speed, f"{name}, {speed / 1e9:,.0f} GFLOP/s"


def teacher_shape(params: Params) -> tuple[Architecture, int]:
    """The teacher's shape, and its vocabulary or that of the published BERT."""
    if params.teacher.source == "synthetic":
        return params.teacher.synthetic.architecture, params.teacher.synthetic.vocabulary_size
    fields = {"layers": "num_hidden_layers", "width": "hidden_size", "feed_forward": "intermediate_size"}
    config = {}
    if params.teacher.source == "local":
        config = read_json(paths.resolve(params.teacher.local.folder) / "config.json")
    sizes = {name: config.get(field, math.nan) for name, field in fields.items()}
    return Architecture.model_construct(**sizes), config.get("vocab_size", BERT_VOCABULARY)


def text_rows(params: Params) -> Rows:
    """The training sequences of the general corpus; the domain has at most as many."""
    corpus, body, read_share = params.corpus, params.tokenize.sequence_tokens - 2, 1.0
    if corpus.source == "hub":
        return Rows(math.nan, math.nan)
    if corpus.source == "synthetic":
        texts = [document["text"] for document in documents(corpus, seed=params.seed)]
    else:
        texts, read_share = local_texts(corpus.local.files)
    read_share = max(read_share, len(texts) / (corpus.max_documents or math.inf))
    if params.tokenize.packing == "paragraphs" or corpus.unit == "paragraph":
        texts = [line for text in texts for line in text.split("\n") if line.strip()]
    tokens = [len(text.split()) * TOKENS_PER_WORD for text in texts]
    if params.tokenize.packing == "truncate":
        tokens = [min(count, body) for count in tokens]
    sequences = sum(math.ceil(count / body) for count in tokens)
    scale = (1 - 1 / corpus.heldout_every) / read_share
    return Rows(sequences * scale, sum(tokens) / max(1, sequences) + 2)


def local_texts(patterns: Iterable[str]) -> tuple[list[str], float]:
    """The first articles of the local files, and their share of the files' bytes."""
    files = matching_files(patterns)
    texts: list[str] = []
    read_bytes: list[int] = []
    for article in (article for file in files for article in file_articles(file, on_read=read_bytes.append)):
        texts.append(article["text"])
        if sum(read_bytes) >= SEEN_BYTES:
            break
    return texts, min(1.0, sum(read_bytes) / max(1, sum(file.stat().st_size for file in files)))


def task_rows(params: Params, task: str) -> Rows:
    """The training rows of a task; reads all of them, so that a broken row is found too."""
    tasks, data = params.tasks, getattr(params.tasks, task).data
    if data.hub if data else tasks.source == "hub":
        return Rows(math.nan, math.nan)
    columns = data.texts if data else TASKS[task].columns
    if data:
        rows: Iterable[dict] = (cells for _, cells in tables_of(task, data)["train"].rows(columns))
    else:
        rows = read_splits(TASKS[task], tasks.source, settings=tasks, seed=params.seed)["train"]
    words = [sum(len(str(row[column]).split()) for column in columns) for row in rows]
    tokens = TOKENS_PER_WORD * sum(words) / max(1, len(words)) + 1 + len(columns)
    return Rows(len(words) * (1 - tasks.heldout_fraction), min(tokens, getattr(tasks, task).max_length_tokens))


def duration(seconds: float) -> str:
    """Seconds as seconds, minutes or hours, to about two digits; NaN stays without a unit."""
    if math.isnan(seconds):
        return "?"
    size, unit = (1, "s") if seconds < 90 else (60, "min") if seconds < 5400 else (3600, "h")
    return f"{seconds / size:,.{int(seconds < 10 * size)}f} {unit}"
