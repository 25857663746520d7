"""The code shared by stages that train a model: resuming, reporting, saving the result, and task distillation."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tinybert.compress.pruning import Pruner, linear_sparsity
from tinybert.config.fields import Training
from tinybert.config.students import training_of
from tinybert.config.tasks import Task, read_task
from tinybert.data.encoding import encode
from tinybert.data.sequences import Sequences
from tinybert.data.tokenizer import load_tokenizer, save_tokenizer
from tinybert.distill.batches import Batches, Masker
from tinybert.distill.loop import LiveTeacher, Settings, train
from tinybert.distill.metric_log import Entry, TrainRun
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.resume import Checkpoint
from tinybert.distill.task_teacher import TaskTeacher, cut_classifier
from tinybert.distill.teacher_cache import CachedTeacher, TeacherCache
from tinybert.distill.vocabulary import trim_vocabulary
from tinybert.models import model_folders
from tinybert.models.bert import BertConfig, MaskedLM, SequenceClassifier
from tinybert.models.model_folders import Classifier, Model, load_bert, load_classifier, load_task_model, save_model
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_folder, read_jsonl, write_json
from tinybert.pipeline.process import is_main_process
from tinybert.stage import Stage


@dataclass
class StageTraining:
    """A model that a stage trains: `run`, `distill` or `learn_text`, then `finish`.

    Attributes:
        loss: Trained with the model.
        target: The folder that the model is saved in.
        source: The folder of the model that this stage continues, if any.
        tokenizer: The model's; None: the project's, or none for a third-party teacher.
        pruner: Prunes the model during training.
        curve: Of the run; empty without one.
    """

    stage: Stage
    model: Model
    loss: DistillationLoss
    target: Path
    source: Path | None = None
    tokenizer: Tokenizer | None = None
    pruner: Pruner | None = None
    curve: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        folder = paths.checkpoints(self.stage.name, self.stage.items)
        self.checkpoint = Checkpoint(folder, self.stage.fingerprint(), is_writer=is_main_process())

    def run(self, batches: Batches, training: Training, seed: int, *, teacher: LiveTeacher | None = None) -> None:
        """Trains the model, or continues an interrupted run."""
        params = self.stage.params
        settings = Settings(training, params.optimizer, seed, params.precision, self.pruner)
        run = TrainRun(" ".join([self.stage.name, *self.stage.items.values()]), self.stage.log_entry, self.checkpoint)
        self.curve = train(self.model, self.loss, batches, settings, teacher=teacher, run=run)

    def distill(self, teacher: TaskTeacher, rows: list[dict], training: Training, seed: int) -> None:
        """As `run`, on training rows of a task, whose teacher runs once."""
        examples, teacher_rows = teacher.read_both(rows, by_token=self.loss.compares_tokens)
        cache = TeacherCache(paths.teacher_cache(), int(self.stage.params.tasks.teacher_cache_gb * 1e9))
        cached = CachedTeacher(teacher.model, self.loss, teacher_rows, cache)
        batches = cached.student_batches(examples, teacher.task, batch_size=training.batch_size, seed=seed)
        self.run(batches, training, seed, teacher=cached)

    def learn_text(self, teacher: MaskedLM | None, corpus: str, training: Training, seed: int) -> None:
        """As `run`, on a corpus: masked if a loss reads predictions, otherwise plain text, as TinyBERT's code does.

        No teacher is needed if no loss reads one.
        """
        tokenizer, sequences = load_tokenizer(paths.TOKENIZER), Sequences.open(paths.sequences(corpus, "train"))
        masker = Masker.of(self.stage.params.masking, tokenizer) if self.loss.student_spec.logits else None
        batches = Batches(sequences, masker, batch_size=training.batch_size, seed=seed)
        self.run(batches, training, seed, teacher=LiveTeacher(teacher, self.loss) if teacher else None)

    def finish(self, measure: Callable[[], dict] = dict) -> None:
        """Saves the model, writes the metrics of the run and what `measure` returns, and removes the checkpoint.

        Only the first of several processes does so. The model folder has all that later stages need.
        """
        if not is_main_process():
            return
        earlier = model_folders.read_provenance(self.source) if self.source else []
        with atomic_folder(self.target) as folder:
            save_model(self.model, folder)
            self.loss.save(folder)
            write_json(folder / model_folders.PROVENANCE_FILE, self.stage.provenance(self.curve, earlier))
            if self.tokenizer:
                save_tokenizer(self.tokenizer, folder)
            elif isinstance(self.model, model_folders.OwnModel):  # third-party teachers read rows in their own way
                shutil.copytree(paths.TOKENIZER, folder, dirs_exist_ok=True)
        self.stage.write_curve(self.curve)
        self.stage.write_metrics(training_metrics(self.model, self.curve) | measure())
        self.stage.earlier_seconds = self.checkpoint.earlier_seconds
        self.checkpoint.remove()


def distill_phase(stage: Stage) -> None:
    """Trains a task student on the rows of stage augment with the losses of the phase that the stage is named after.

    The intermediate phase starts from the student of `start_task_student`, the prediction phase from the result of the
    intermediate phase. No model is selected: the last step counts.
    """
    params, task = stage.params, read_task(stage.items["task"])
    name, seed = stage.items["student"], int(stage.items["seed"])
    between, limit = paths.intermediate(task.name, seed, name), params.tasks[task.name].max_length_tokens
    rows = list(read_jsonl(paths.augmented(task.name)))
    torch.manual_seed(seed)
    phase = stage.name.removeprefix("task_distill_")
    if phase == "intermediate":
        source, target = paths.general_student(name), between
        student, tokenizer, projection = start_task_student(stage, task, rows)
    else:
        source, target = between, paths.task_model(task.name, seed, name)
        student, tokenizer, projection = load_task_model(source), load_tokenizer(source), None
    teacher = TaskTeacher.load(task, stage.names["seed"], tokenizer, max_length_tokens=limit)
    config = DistillationConfig.of(params.students[name], phase, seed=seed, length_tokens=limit)
    loss = DistillationLoss(config, student.config, teacher.model.config)
    loss.load(source)
    loss.start_projections(projection)
    pruner, pruning = None, getattr(params.students[name].intermediate, "pruning", None)
    if pruning:  # phase 2 only keeps the zeros
        share = pruning.percent / 100 if phase == "intermediate" else 0.0
        pruner = Pruner(student, share, pruning.ramp_fraction, pruning.increments)
    training = StageTraining(stage, student, loss, target, source, tokenizer=tokenizer, pruner=pruner)
    training.distill(teacher, rows, training_of(params, name, phase, task=task.name), seed)
    training.finish(lambda: {"sparsity": linear_sparsity(student)} if pruner else {})


def start_task_student(stage: Stage, task: Task, rows: Sequence[dict]) -> tuple[Classifier, Tokenizer, Tensor | None]:
    """The stage's student before phase 1, in training mode, its tokenizer, and the projection if it was cut here.

    It is the general student with a new head; or, with `init.per_task`, cut out of the task's teacher on its rows.
    """
    params, name = stage.params, stage.items["student"]
    init, source, limit = params.students[name].init, paths.general_student(name), params.tasks.vocabulary_tokens
    student = load_classifier(source, task)
    tokenizer, projection = load_tokenizer(source), None
    if not (init.per_task or limit):
        return student, tokenizer, projection
    examples = encode(rows, task, tokenizer, max_length_tokens=params.tasks[task.name].max_length_tokens)
    if init.per_task:
        teacher = load_bert(SequenceClassifier, paths.task_model(task.name, int(stage.names["seed"]), "teacher"))
        student, projection = cut_classifier(teacher, cast(BertConfig, student.config).shape, init.teacher, examples)
    if limit:
        tokenizer = trim_vocabulary(student, tokenizer, examples, limit=limit)
    return student, tokenizer, projection


def training_metrics(model: Model, curve: Sequence[Entry]) -> dict:
    """Parameters, steps, the last means of each loss term, and the weights of a learnable layer map."""
    last = curve[-1] if curve else {"step": 0}
    layer_map = {name: value for name, value in last.items() if name.startswith("map_")}
    terms = {key: value for key, value in last.items() if key not in ("step", "epoch", "learning_rate", *layer_map)}
    metrics = {"parameters": model.parameter_count, "steps": last["step"], "loss": terms}
    return metrics | ({"layer_map": layer_map} if layer_map else {})
