"""A rough estimate of a run from its sizes: steps, tokens and time of each training stage, disk and memory.

Sizes that depend on a download are NaN, and so is all that follows from them.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.benchmark import Timer

from tinybert.config.fields import Architecture, StudentArchitecture, Training, read_config, source_folder
from tinybert.config.schema import Params
from tinybert.config.students import LOGIT_LOSSES, TASK_PHASES, training_of
from tinybert.config.tasks import TrainingRows, teacher_source
from tinybert.data.corpus import documents, file_articles, matching_files
from tinybert.models.outputs import best_device
from tinybert.pipeline import paths
from tinybert.pipeline.process import MOST_GROWTH_BYTES

TOKENS_PER_WORD = 1.3
SEEN_BYTES = 10**6  # of local text; the rest is assumed to be alike
TRIAL_ROWS, TRIAL_SECONDS = 512, 0.3
# Fitted on two cores (docs/log.md, "estimate of a run on a processor with AMX"): seconds of a stage besides its steps,
# of a step besides its matrix products, and of the optimizer for each weight (GPUs: a guess from memory bandwidth).
# EFFICIENCY: the speed of a complete model as a share of half a layer's.
STAGE_SECONDS, STEP_SECONDS = 4.0, 0.003
UPDATE_SECONDS = {"cpu": 4e-9, "cuda": 5e-11}
EFFICIENCY = {"float32": 0.65, "bfloat16": 0.4}
BASE_BYTES = 5e8  # Python with PyTorch
FINAL_COPIES = 7  # of a task model as ONNX variants and in models/final, in sizes of its weights
# What families call their sizes in config.json.
FIELDS = {
    "layers": ("num_hidden_layers", "n_layers", "n_layer", "num_layers"),
    "width": ("hidden_size", "dim", "d_model", "n_embd"),
    "feed_forward": ("intermediate_size", "hidden_dim", "d_ff", "encoder_ffn_dim", "n_inner"),
    "vocabulary": ("vocab_size",),
}


@dataclass(frozen=True)
class RowStatistics:
    """Rows of training data, their mean length in tokens, and the limit of their length."""

    count: float
    tokens: float
    limit: int


class ModelSize(NamedTuple):
    """What the sizes of a model follow from."""

    shape: StudentArchitecture
    vocabulary: int

    @property
    def matrices(self) -> float:
        """The weights that each token is multiplied by, without a head."""
        shape = self.shape
        if shape.kind == "bilstm":
            return 8 * shape.width * (shape.embedding + shape.width + (shape.layers - 1) * 3 * shape.width)
        return shape.layers * (4 * shape.width**2 + 2 * shape.width * shape.feed_forward)

    @property
    def head(self) -> float:
        """Those of a masked-LM head."""
        return self.shape.width * (self.shape.width + self.vocabulary)

    @property
    def weights(self) -> float:
        """All weights: matrices, word embeddings and positions."""
        width = self.shape.embedding if self.shape.kind == "bilstm" else self.shape.width
        return self.matrices + (self.vocabulary + 512) * width


class Work(NamedTuple):
    """What one or several instances of a stage compute; updates: steps × weights; memory: bytes of the largest."""

    steps: float = 0.0
    tokens: float = 0.0
    flops: float = 0.0
    updates: float = 0.0
    memory: float = 0.0

    @classmethod
    def of(
        cls,
        training: Training,
        rows: RowStatistics,
        model: ModelSize,
        *,
        head_share: float = 0.0,
        teacher: ModelSize | None = None,
        teacher_epochs: float = math.inf,
    ) -> "Work":
        """A training: 6 operations per token and weight of the model, 2 per token and weight of the teacher.

        Its memory: weights, gradients, Adam's moments, the teacher, states and logits of a batch (no attention).

        Args:
            head_share: The share of the tokens that reach a masked-LM head.
            teacher_epochs: The epochs in which the teacher runs; in others its outputs are cached.
        """
        if not training.epochs:
            return cls()
        steps = training.steps(-(-rows.count // training.batch_size))
        tokens = steps * training.batch_size * rows.tokens
        flops = 6 * tokens * (model.matrices + head_share * model.head)
        if teacher:
            read = min(tokens, teacher_epochs * rows.count * rows.tokens)
            flops += 2 * read * (teacher.matrices + head_share * teacher.head)
        shape, batch = model.shape, rows.limit * training.batch_size / training.accumulation_steps
        states = shape.layers * (10 * shape.width + 3 * shape.feed_forward) + 3 * head_share * model.vocabulary
        floats = 4 * model.weights + (teacher.weights if teacher else 0) + batch * states
        memory = BASE_BYTES + 4 * floats + min(MOST_GROWTH_BYTES, 4 * batch * states)
        return cls(steps, tokens, flops, steps * model.weights, memory)

    @classmethod
    def sum(cls, works: Iterable["Work"]) -> "Work":
        *amounts, memory = zip(cls(), *works, strict=True)
        return cls._make([*map(sum, amounts), float(np.max(memory))])  # NaN, if one is NaN


class Sizes:
    """The sizes that an estimate follows from.

    Args:
        params: Their local sources have been checked (source_checks.py).
        rows: The training rows of the tasks whose rows are here.
    """

    def __init__(self, params: Params, rows: Mapping[str, TrainingRows]) -> None:
        self.params, self.text = params, text_rows(params)
        self.tasks = {task: params.tasks[task] for task in params.tasks.run}
        teacher = params.teacher
        if teacher.source == "synthetic":
            self.teacher = ModelSize(teacher.synthetic.architecture, teacher.synthetic.vocabulary_size)
        else:
            is_local = teacher.source == "local"
            self.teacher = model_of(read_config(paths.resolve(teacher.local.folder)) if is_local else {})
        self.teachers = {task: self._task_teacher(task) for task in self.tasks}
        students = params.used_students.items()
        self.students = {name: ModelSize(student.architecture, self.teacher.vocabulary) for name, student in students}
        self.rows, self.unlabeled = {}, {task: read.unlabeled for task, read in rows.items()}
        for task, settings in self.tasks.items():
            count, tokens, limit = math.nan, math.nan, settings.max_length_tokens
            if read := rows.get(task):
                count, tokens = read.count, min(TOKENS_PER_WORD * read.words + 1 + len(read.task.columns), limit)
            self.rows[task] = RowStatistics(count, tokens, limit)

    def works(self) -> dict[str, list[Work]]:
        """The instances of the stages that train, by stage; and those of the others."""
        params, seeds = self.params, len(self.params.seeds)
        pairs = list(product(self.tasks, params.tasks.students))
        phases = {phase: [self._task_work(*pair, phase) for pair in pairs] for phase in TASK_PHASES}
        controls = [[self._task_work(*pair, phase, is_taught=False) for phase in TASK_PHASES] for pair in pairs]
        others = len(params.tasks.students) + len(params.quantization.models)
        pretraining, rate = params.teacher.pretraining, params.masking.rate
        return {
            "prepare_teacher": [Work.of(pretraining, self.text, self.teacher, head_share=rate)],
            "general_distill": [self._text_work(name, "general") for name in params.general.students],
            "domain_distill": [self._text_work(name, "domain") for name in params.domain.students] * seeds,
            "finetune_teacher": [
                Work() if task.finetuned_teacher else Work.of(task.teacher, self.rows[name], self.teachers[name])
                for name, task in self.tasks.items()
            ],
            "augment": [self._augmentation(task) for task in self.tasks],
            **{f"task_distill_{phase}": works * seeds for phase, works in phases.items()},
            "finetune_student": [Work.sum(both * seeds) for both in controls],
            "prune": [self._task_work(*pair, "pruning") for pair in pairs] * len(params.pruning.sparsities_percent),
            "all others": [Work()] * (10 + len(self.tasks) * (2 + others)),
        }

    def memory_bytes(self) -> float:
        """The memory of the largest training."""
        return Work.sum(chain(*self.works().values())).memory

    def disk_bytes(self) -> float:
        """Of all model folders, twice because DVC's cache holds a copy; without the teacher cache."""
        params, seeds = self.params, len(self.params.seeds)
        of_task = len(self.tasks) * (2 * seeds + len(params.pruning.sparsities_percent) + FINAL_COPIES)
        copies = 1 + FINAL_COPIES * ("teacher" in params.quantization.models)
        weights = self.teacher.weights + copies * sum(size.weights for size in self.teachers.values())
        for name, student in self.students.items():
            folders = 1 + (seeds + 1) * (name in params.domain.students) + of_task * (name in params.tasks.students)
            weights += folders * student.weights
        return 2 * 4 * weights

    def _task_teacher(self, task: str) -> ModelSize:
        """A task's teacher; an empty model if its predictions are known."""
        if found := teacher_source(self.params.tasks, task):
            return model_of(read_config(source_folder(found[0], key=found[1], files=("config.json",))))
        ready = self.tasks[task].finetuned_teacher
        return model_of({"num_hidden_layers": 0, "hidden_size": 0}) if ready else self.teacher

    def _text_work(self, name: str, track: str) -> Work:
        if (losses := getattr(self.params.students[name], track)) is None:
            return Work()
        heads = self.params.masking.rate * bool(losses.active_losses.keys() & set(LOGIT_LOSSES))
        training = training_of(self.params, name, track)
        return Work.of(training, self.text, self.students[name], head_share=heads, teacher=self.teacher)

    def _task_work(self, task: str, name: str, phase: str, *, is_taught: bool = True) -> Work:
        """The teacher's outputs are cached: it runs in one epoch of one seed, and phase 2 reads those of phase 1."""
        params, settings, student, rows = self.params, self.tasks[task], self.params.students[name], self.rows[task]
        is_pruning = phase == "pruning"
        if not is_pruning and getattr(student, phase) is None:
            return Work()
        training = settings.pruning if is_pruning else training_of(params, name, phase, task=task)
        copies = 1 if is_pruning else 1 + settings.augmented_copies
        unlabeled = 0 if is_pruning else self.unlabeled.get(task, 0)
        rows = replace(rows, count=rows.count * copies * settings.train_fraction + unlabeled)
        runs = 1.0 if is_pruning else 1 / len(params.seeds)
        if phase == "prediction" and student.intermediate:
            runs *= not training_of(params, name, "intermediate", task=task).epochs
        runs = runs if params.tasks.teacher_cache_gb else math.inf
        teacher = self.teachers[task] if is_taught else None
        return Work.of(training, rows, self.students[name], teacher=teacher, teacher_epochs=runs)

    def _augmentation(self, task: str) -> Work:
        """The masked LM reads a row, and its unmasked copy, for each word that may be replaced: about every second."""
        settings, rows = self.tasks[task], self.rows[task]
        if not settings.augmented_copies or self.params.augmentation.strategy != "substitution":
            return Work()
        tokens = rows.count * settings.train_fraction * rows.tokens**2 / TOKENS_PER_WORD
        return Work(flops=2 * self.teacher.matrices * tokens)


def estimate(params: Params, rows: Mapping[str, TrainingRows]) -> Iterator[str]:
    """The lines of an estimate for this machine, whose speed it measures for a third of a second."""
    sizes = Sizes(params, rows)
    name, speed, update_seconds = measured_machine(sizes.teacher.shape, params.precision)
    reached = EFFICIENCY[params.precision] * speed
    yield f"estimate for this machine ({name}) if nothing else runs, within a factor of about two on CPUs:"
    yield f"{'stage':<26}{'instances':>9}{'steps':>10}{'tokens':>15}{'time':>10}"
    seconds = []
    for stage, works in sizes.works().items():
        work = Work.sum(works)
        if work == Work() and stage != "all others":  # nothing is trained
            continue
        of_steps = work.steps * STEP_SECONDS + work.updates * update_seconds + work.flops / reached
        seconds.append(len(works) * STAGE_SECONDS + of_steps)
        steps, tokens = ("?" if math.isnan(count) else f"{count:,.0f}" if count else "–" for count in work[:2])
        yield f"{stage:<26}{len(works):>9}{steps:>10}{tokens:>15}{duration(seconds[-1]):>10}"
    known = [part for part in seconds if not math.isnan(part)]
    yield f"time: {duration(sum(known))}" + " at least; ?: unknown until downloaded" * (len(known) < len(seconds))
    amounts = [f"{amount / 1e9:.2g} GB" for amount in (sizes.disk_bytes(), sizes.memory_bytes())]
    disk, memory = (amount.replace("nan GB", "unknown until downloaded") for amount in amounts)
    yield f"disk: models {disk}, teacher cache at most {params.tasks.teacher_cache_gb:g} GB; memory: {memory}"


def measured_machine(teacher: StudentArchitecture, precision: str) -> tuple[str, float, float]:
    """This machine's name, operations per second when half a layer is trained, and seconds of the optimizer a weight.

    Half a layer, because on a CPU with AMX a single product runs three times as fast: memory limits GELU and norm. The
    best trial of one thread is multiplied by the number of threads, which wait for each other if other processes run.
    """
    device, dtype = best_device(), getattr(torch, precision)
    width, outer = (768, 3072) if math.isnan(teacher.width) else (teacher.width, teacher.feed_forward)
    parts = nn.Linear(width, outer), nn.GELU(), nn.Linear(outer, width), nn.LayerNorm(width)
    half_layer, hidden = nn.Sequential(*parts).to(device), torch.ones((TRIAL_ROWS, width), device=device)
    hidden.requires_grad_()

    def step() -> None:
        with torch.autocast(device.type, dtype, enabled=precision != "float32"):
            loss = half_layer(hidden)[:, 0].sum()  # the sum of all outputs of a norm has gradient 0
        loss.backward()

    trials = Timer("step()", globals={"step": step}, num_threads=1).blocked_autorange(min_run_time=TRIAL_SECONDS)
    threads = 1 if device.type == "cuda" else torch.get_num_threads()
    speed = threads * 12 * TRIAL_ROWS * width * outer / min(trials.times)
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"{threads} CPU threads"
    return f"{name}, {speed / 1e9:,.0f} GFLOP/s", speed, UPDATE_SECONDS[device.type]


def model_of(config: Mapping[str, Any]) -> ModelSize:
    """A model by its config.json, with the vocabulary of the published BERT if it names none."""
    known = {size: config[name] for size, names in FIELDS.items() for name in names if config.get(name) is not None}
    width = known.get("width", math.nan)
    layers, feed_forward = known.get("layers", math.nan), known.get("feed_forward", 4 * width)
    shape = Architecture.model_construct(layers=layers, width=width, feed_forward=feed_forward)
    return ModelSize(shape, known.get("vocabulary", 30522))


def text_rows(params: Params) -> RowStatistics:
    """The training sequences of the general corpus; the domain has at most as many."""
    corpus, limit, read_share = params.corpus, params.tokenize.sequence_tokens, 1.0
    if corpus.source == "hub":
        return RowStatistics(math.nan, math.nan, limit)
    if corpus.source == "synthetic":
        texts = [document["text"] for document in documents(corpus, seed=params.seed)]
    else:  # the first articles, and their share of the files' bytes
        files, texts, read = matching_files(corpus.local.files), [], Counter[str]()
        on_read = lambda size_bytes: read.update(bytes=size_bytes)  # noqa: E731
        for article in (article for file in files for article in file_articles(file, on_read=on_read)):
            texts.append(article["text"])
            if read["bytes"] >= SEEN_BYTES:
                break
        read_share = min(1.0, read["bytes"] / max(1, sum(file.stat().st_size for file in files)))
    paragraphs = [line for text in texts for line in text.split("\n") if line.strip()]
    documents_read = len(paragraphs if corpus.unit == "paragraph" else texts)
    read_share = max(read_share, documents_read / (corpus.max_documents or math.inf))
    if params.tokenize.packing == "paragraphs" or corpus.unit == "paragraph":
        texts = paragraphs
    tokens = [len(text.split()) * TOKENS_PER_WORD for text in texts]
    if params.tokenize.packing == "truncate":
        tokens = [min(count, limit - 2) for count in tokens]
    sequences = sum(math.ceil(count / (limit - 2)) for count in tokens)
    scale = (1 - 1 / corpus.heldout_every) / (read_share or 1.0)  # read_share is 0 if all files are empty
    return RowStatistics(sequences * scale, sum(tokens) / max(1, sequences) + 2, limit)


def duration(seconds: float) -> str:
    """Seconds as seconds, minutes or hours, to about two digits; NaN stays without a unit."""
    if math.isnan(seconds):
        return "?"
    size, unit = (1, "s") if seconds < 90 else (60, "min") if seconds < 5400 else (3600, "h")
    return f"{seconds / size:,.{int(seconds < 10 * size)}f} {unit}"
