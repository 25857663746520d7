"""The schema of params.yaml: every key, its type and range, and what must fit together.

params.yaml itself says what the keys mean, with units and sources.
"""

import re
from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import Field

from tinybert.config.fields import (
    AboveZero,
    Architecture,
    ConfigModel,
    Fraction,
    HubDataset,
    HubModel,
    ListOf,
    LocalFolder,
    Name,
    NonEmptyList,
    NonEmptyStr,
    NonNegative,
    NonNegativeInt,
    Percent,
    PositiveFraction,
    PositiveInt,
    RowTokens,
    Seed,
    SmallPositiveInt,
    Source,
    Training,
    UniqueList,
    UniqueOrEmpty,
)
from tinybert.config.students import TASK_PHASES, Student, check_students, training_of
from tinybert.config.tasks import TASKS, Tasks
from tinybert.pipeline.errors import UserError

RESERVED_NAMES = ("teacher", "untrained", "tfidf", "static")  # not for students: reports have them for references


class LocalFile(ConfigModel):
    file: NonEmptyStr


class LocalFiles(ConfigModel):
    files: NonEmptyList[NonEmptyStr]


class Optimizer(ConfigModel):
    weight_decay: NonNegative
    max_gradient_norm: AboveZero
    warmup_fraction: Fraction


class Masking(ConfigModel):
    """Masked-LM corruption: the share of tokens that is predicted, and what the model sees in their place."""

    rate: PositiveFraction
    mask_fraction: Fraction
    random_fraction: Fraction

    def check(self) -> None:
        if (total := self.mask_fraction + self.random_fraction) > 1:
            raise ValueError(f"mask_fraction + random_fraction must be at most 1 (got {total})")


class SyntheticTeacher(ConfigModel):
    """A teacher that is pretrained here from scratch, and the size of its tokenizer."""

    vocabulary_size: Annotated[int, Field(ge=200, le=10**7)]
    architecture: Architecture


class TeacherSettings(ConfigModel):
    source: Source
    hub: HubModel
    local: LocalFolder
    synthetic: SyntheticTeacher
    pretraining: Training

    def check(self) -> None:
        if self.source == "synthetic" and self.pretraining.epochs == 0:
            raise ValueError("pretraining.epochs: a synthetic teacher starts from scratch (got 0); allowed: 1 or more")


class HubCorpus(HubDataset):
    config: NonEmptyStr
    split: NonEmptyStr


class Corpus(ConfigModel):
    source: Source
    unit: Literal["article", "paragraph"]
    max_documents: PositiveInt | None
    heldout_every: Annotated[int, Field(ge=2)]
    hub: HubCorpus
    local: LocalFiles


class Filter(ConfigModel):
    """Which documents belong to the domain."""

    subjects: Annotated[dict[Name, NonEmptyList[NonEmptyStr]], Field(min_length=1)]
    matching: Literal["whole_word", "substring"]
    ignore_case: bool
    min_hits: PositiveInt
    min_hits_per_1000_words: NonNegative


class Tokenize(ConfigModel):
    """How documents become fixed-length token sequences."""

    sequence_tokens: RowTokens
    packing: Literal["pack", "paragraphs", "truncate"]


class Track(ConfigModel):
    """The students of general or domain distillation and their training; an empty list skips the distillation."""

    students: UniqueOrEmpty[Name]
    training: Training


class Quiz(ConfigModel):
    source: Literal["synthetic", "local"]
    local: LocalFile


class DomainEvaluation(ConfigModel):
    heldout_sequences: PositiveInt
    quiz: Quiz


class WordVectorSettings(ConfigModel):
    """Where the neighbors of words of several tokens come from."""

    source: Literal["corpus", "file"]
    file: NonEmptyStr
    dimensions: PositiveInt
    window_words: SmallPositiveInt
    max_words: PositiveInt


class Substitution(ConfigModel):
    """Word substitution (TinyBERT, algorithm 1)."""

    probability: Fraction
    candidates: PositiveInt
    stop_words: NonEmptyStr
    word_vectors: WordVectorSettings


class Sampling(ConfigModel):
    """Masking, POS-guided replacement and n-gram sampling (Tang et al. 2019, section 4.3)."""

    mask_probability: Fraction
    replacement_probability: Fraction
    ngram_probability: Fraction
    longest_ngram: PositiveInt
    pos_tagger: Literal["rules", "off"]

    def check(self) -> None:
        if (total := self.mask_probability + self.replacement_probability) > 1:
            raise ValueError(f"mask_probability + replacement_probability must be at most 1 (got {total})")


class Augmentation(ConfigModel):
    strategy: Literal["substitution", "sampling"]
    substitution: Substitution
    sampling: Sampling


class Pruning(ConfigModel):
    """Unstructured pruning of task students, none without a percent; sparsity rises along a cubic ramp."""

    sparsities_percent: UniqueOrEmpty[Percent]
    ramp_fraction: PositiveFraction


class Calibration(ConfigModel):
    """The training examples that set the ranges of activations (minimum to maximum), and their smoothing."""

    examples: PositiveInt
    batch_size: PositiveInt
    smoothing: Fraction


class Latency(ConfigModel):
    batch_sizes: UniqueList[PositiveInt]
    length_tokens: Annotated[int, Field(ge=3, le=512)]
    dev_examples: PositiveInt
    warmup_runs: NonNegativeInt
    runs: PositiveInt
    threads: SmallPositiveInt


class Quantization(ConfigModel):
    """INT8 models; `exclude` holds patterns (*, ?) of names of ONNX nodes that stay in float.

    The chosen variant's score may be at most `max_score_drop` below FP32's; None: any loss is accepted.
    """

    models: UniqueList[Name]
    method: Literal["smoothed", "published"]
    calibration: Calibration
    exclude: ListOf[NonEmptyStr]
    max_score_drop: Fraction | None
    latency: Latency

    def check(self) -> None:
        if self.exclude and self.method == "published":
            raise ValueError("exclude: method published takes all nodes; fix: [], or method smoothed")


class Params(ConfigModel):
    """All of params.yaml."""

    language: NonEmptyStr
    seed: Seed
    seeds: UniqueList[Seed]
    precision: Literal["float32", "bfloat16"]
    teacher: TeacherSettings
    masking: Masking
    optimizer: Optimizer
    corpus: Corpus
    filter: Filter
    tokenize: Tokenize
    students: Annotated[dict[Name, Student], Field(min_length=1)]
    general: Track
    domain: Track
    domain_evaluation: DomainEvaluation
    tasks: Tasks
    augmentation: Augmentation
    pruning: Pruning
    quantization: Quantization

    def check(self) -> None:
        for name in RESERVED_NAMES:
            if name in self.students:
                raise ValueError(f"students.{name}: the name is reserved; fix: rename this student")
        if self.seed not in self.seeds:
            raise ValueError(f"seeds: must contain seed {self.seed} (got {', '.join(map(str, self.seeds))})")
        self._check_names()
        self._check_language()
        if self.teacher.source == "synthetic":
            check_students(self.used_students, self.teacher.synthetic.architecture)
        self._check_stages()
        self._check_published()
        tasks = {name: self.tasks[name] for name in self.tasks.run}
        encoders = {f"tasks.{name}.teacher.encoder": task.teacher.encoder for name, task in tasks.items()}
        for key, encoder in {"tasks.teacher_encoder": self.tasks.teacher_encoder, **encoders}.items():
            if self.teacher.source == "synthetic" and encoder == "given":
                raise ValueError(f"{key}: a synthetic teacher starts from scratch (got given); allowed: pretrained")
        for name, task in tasks.items():
            if (ready := task.finetuned_teacher) and ready.predictions:
                key = f"tasks.{name}.finetuned_teacher.predictions"
                self.check_row_teacher(key, "files of predictions", ready.predictions.losses)
                if name == "mnli":
                    raise ValueError(f"{key}: mnli has two dev splits; allowed: tasks with one; fix: null")

    def check_row_teacher(self, key: str, teacher: str, losses: Collection[str]) -> None:
        """Checks that students and stages only read outputs for rows of a task teacher; UserError if one reads more.

        Args:
            key: That of the teacher.
            teacher: What it is, such as "a roberta with its own vocabulary".
            losses: Those that it can give targets for.
        """
        if "teacher" in self.quantization.models:
            problem = f"teacher cannot be exported: {key} names {teacher}"
            raise UserError(f"quantization.models: {problem}; allowed: students; fix: remove teacher from the list")
        for name in self.tasks.students:
            if self.students[name].init.per_task:
                problem = f"no layers to start from: {key} names {teacher} (got true)"
                raise UserError(f"students.{name}.init.per_task: {problem}; allowed: false; fix: a BERT as teacher")
            for stage in TASK_PHASES:
                section = self.students[name].stages.get(stage)
                if lacking := [loss for loss in section.active_losses if loss not in losses] if section else []:
                    problem = f"no targets for {lacking[0]}: {key} names {teacher} (got {lacking[0]})"
                    fix = f", or set students.{name}.intermediate to null" * (stage == "intermediate")
                    allowed = f"allowed: {', '.join(losses)}; fix: use these{fix}"
                    raise UserError(f"students.{name}.{stage}.losses: {problem}; {allowed}")

    def _check_language(self) -> None:
        """Synthetic texts, and the built-in data of augmentation that tasks use, are English."""
        if self.language == "en":
            return
        if not re.fullmatch("[a-z]{2,3}|multilingual", self.language):
            raise ValueError(f"language: no code (got {self.language}); allowed: two or three letters of ISO 639, "
                             f"such as en, or multilingual")  # fmt: skip
        sources = {"teacher": self.teacher.source} | ({"corpus": self.corpus.source} if self.reads_text else {})
        sources |= {"tasks": self.tasks.source} if set(self.tasks.run) & set(TASKS) else {}
        sources |= {"domain_evaluation.quiz": self.domain_evaluation.quiz.source} if self.domain.students else {}
        for section, source in sources.items():
            if source == "synthetic":
                raise ValueError(f"{section}.source: synthetic texts are English (got language {self.language}); "
                                 f"allowed: your own; fix: bring some, or set language to en")  # fmt: skip
        if not self.augments:
            return
        found, augmentation = f"is for English (got language {self.language})", self.augmentation
        if augmentation.strategy == "substitution" and augmentation.substitution.stop_words == "english":
            fix = "allowed: off, or a file of words that are not replaced; fix: name one"
            raise ValueError(f"augmentation.substitution.stop_words: english {found}; {fix}")
        if augmentation.strategy == "sampling" and (tagger := augmentation.sampling.pos_tagger) != "off":
            fix = "allowed: off, which replaces no word; fix: set it, or take strategy substitution"
            raise ValueError(f"augmentation.sampling.pos_tagger: {tagger} {found}; {fix}")

    def _check_names(self) -> None:
        """Lists refer to existing students and tasks."""
        general, models = self.general.students, self.task_models
        for key, names, owner, known in (
            ("general.students", general, "students", tuple(self.students)),
            ("domain.students", self.domain.students, "general.students", general),
            ("tasks.students", self.tasks.students, "general.students", general),
            ("quantization.models", self.quantization.models, "the models of the tasks", models),
        ):
            for name in names:
                if name not in known:
                    raise ValueError(f"{key}: not among {owner} (got {name}); allowed: {', '.join(known) or 'none'}")
        for name in self.tasks.students:
            if models.count(name) > 1:
                raise ValueError(f"tasks.students: {name} is also the name of a pruned student; fix: rename it")

    def _check_stages(self) -> None:
        """Students have the sections of the stages that they are listed for."""
        listed = [("domain", "domain", name) for name in self.domain.students]
        listed += [("tasks", "prediction", name) for name in self.tasks.students]
        for track, stage, name in listed:
            if getattr(self.students[name], stage) is None:
                raise ValueError(f"{track}.students: {name} has no section students.{name}.{stage}; fix: add it")
            # DVC reads the key, so it may not be absent.
            if track == "tasks" and "intermediate" not in self.students[name].model_fields_set:
                raise ValueError(f"students.{name}.intermediate: missing; fix: add it, or null to skip that phase")
        least = min(self.pruning.sparsities_percent, default=100)
        for name in self.tasks.students:
            pruning = getattr(self.students[name].intermediate, "pruning", None)
            for task in self.tasks.run if pruning else ():
                if not training_of(self, name, "intermediate", task=task).epochs:
                    problem = f"{task} has 0 epochs of phase 1; fix: raise its epochs, or remove pruning"
                    raise ValueError(f"students.{name}.intermediate.pruning: {problem}")
            if pruning and least < pruning.percent:
                problem = f"below {name}'s {pruning.percent} in phase 1 (got {least}); allowed: that or more"
                raise ValueError(f"pruning.sparsities_percent: {problem}; fix: raise it, or prune less in phase 1")

    def _check_published(self) -> None:
        """ONNX Runtime's quantizer, method published, is for BERT only."""
        for model in self.quantization.models if self.quantization.method == "published" else ():
            name = model if model in self.students else model.rpartition("_pruned")[0]
            if model != "teacher" and self.students[name].architecture.kind == "bilstm":
                problem = f"published supports BERT only (got the BiLSTM {model}); allowed: smoothed"
                fix = f"use smoothed, or remove {model} from quantization.models"
                raise ValueError(f"quantization.method: {problem}; fix: {fix}")

    @property
    def augments(self) -> bool:
        """Whether a task has augmented rows."""
        return any(self.tasks[task].augmented_copies for task in self.tasks.run)

    @property
    def reads_text(self) -> bool:
        """Whether the tokenizer or a model that is used may depend on the corpus."""
        run = [settings for task in self.tasks.run if not (settings := self.tasks[task]).finetuned_teacher]
        starts = [settings.teacher.encoder or self.tasks.teacher_encoder for settings in run]
        used = self.used_students.values()
        copied = any(student.init.teacher and not student.init.per_task for student in used)
        students = self.domain.students or copied or any(student.general for student in used)
        return bool(self.teacher.source == "synthetic" or self.augments or students or "pretrained" in starts)

    @property
    def used_students(self) -> dict[str, Student]:
        """The students that are trained, by name."""
        return {name: self.students[name] for name in self.general.students}

    @property
    def task_models(self) -> tuple[str, ...]:
        """All models of a task: teacher, students, and the pruned ones, <student>_pruned<percent>."""
        students, percents = self.tasks.students, self.pruning.sparsities_percent
        return ("teacher", *students, *(f"{student}_pruned{percent}" for student in students for percent in percents))
