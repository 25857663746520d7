"""Initialization of students and teachers: random, teacher layers, cut out of a teacher, or a published model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from tinybert.config.fields import BiLstmArchitecture, ModelSource, source_folder
from tinybert.config.load import StageParams
from tinybert.config.schema import Params, TeacherSettings
from tinybert.config.students import LOGIT_LOSSES, Init, Student, check_subclone
from tinybert.config.tasks import REGRESSION_LABEL, Task
from tinybert.models.bert import BertConfig, MaskedLM, SequenceClassifier
from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig, embeddings_from
from tinybert.models.foreign import class_order
from tinybert.models.model_folders import load_bert, load_pretrained, read_weights
from tinybert.models.outputs import Batch
from tinybert.models.subcloning import InitializedStudent, subclone
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError

# Beside the encoder in Jiao et al.'s general students: one projection, or one for the embeddings and each layer.
SHARED_PROJECTION, LAYER_PROJECTION = "fit_dense.weight", "fit_denses.{layer}.weight"


def initialize_student(student: Student, teacher: MaskedLM, *, sample: Callable[[], list[Batch]]) -> InitializedStudent:
    """Makes a student with the teacher's vocabulary and positions by its `architecture` and `init`.

    Random weights come from the global generator. From a teacher: the layers that init.teacher names, copied if the
    shapes agree (Sanh et al. 2019, Sun et al. 2019), else cut to the student's shape by `subclone` on the plain text
    that `sample` gives. From a folder or the Hub: any BERT encoder. A BiLSTM takes the teacher's word embeddings.
    UserError if shapes do not fit.
    """
    shape, init = student.architecture, student.init
    if shape.kind == "bilstm":
        return InitializedStudent(_bilstm(shape, teacher, from_teacher=bool(init.teacher)))
    config = teacher.config.resized(shape)
    if init.folder or init.hub:
        return _published_student(config, init, teacher_width=teacher.config.hidden_size)
    if not init.teacher:
        return InitializedStudent(MaskedLM(config))
    return subclone(teacher, config, init.teacher, batches=sample())


def start_teacher(teacher: TeacherSettings, *, vocab_size: int, seed: int) -> MaskedLM:
    """The masked-LM teacher before its (further) pretraining; UserError if it does not fit the tokenizer.

    `seed` draws new weights: all of a synthetic teacher, the head that a given model lacks.
    """
    torch.manual_seed(seed)
    if teacher.source == "synthetic":
        return MaskedLM(BertConfig.of(teacher.synthetic.architecture, vocab_size=vocab_size))
    folder = given_teacher(teacher)
    model, has_head = load_pretrained(folder)
    check_vocabulary(model.config, vocab_size, "teacher", may_be_padded=True)
    if not has_head and teacher.pretraining.epochs == 0:
        problem = f"{folder} has no masked-LM head to use untrained (got 0)"
        raise UserError(f"teacher.pretraining.epochs: {problem}; allowed: 1 or more; fix: give it at least 1 epoch")
    return model


def given_teacher(teacher: TeacherSettings) -> Path:
    """The folder of a teacher from the Hub or a local folder, as it is before pretraining; UserError if none."""
    if teacher.source == "hub":
        return source_folder(ModelSource(hub=teacher.hub), key="teacher")
    return source_folder(ModelSource(folder=teacher.local.folder), key="teacher.local")


def general_teacher(params: Params | StageParams, student: Student) -> MaskedLM:
    """The model that a student imitates: the teacher before pretraining if `tasks.teacher_encoder` is `given`.

    Otherwise, and for losses that read logits, it is the pretrained teacher, which has a trained masked-LM head.
    """
    reads_logits = student.general and student.general.active_losses.keys() & set(LOGIT_LOSSES)
    if params.tasks.teacher_encoder != "given" or reads_logits:
        return load_bert(MaskedLM, paths.TEACHER)
    torch.manual_seed(params.seed)  # draws the masked-LM head if the given model has none; nothing reads it
    return load_pretrained(given_teacher(params.teacher))[0]


def finetuned_teacher(folder: Path, task: Task, *, key: str) -> SequenceClassifier:
    """A published BERT as task teacher, in evaluation mode, with its classes in the task's order (`class_order`).

    `key` is the section of params that names the folder. UserError if the classes do not fit.
    """
    teacher = load_bert(SequenceClassifier, folder)
    order = class_order(list(teacher.labels), task, key=key, stated=teacher.config.problem_type)
    with torch.no_grad():
        for parameter in teacher.classifier.parameters():
            parameter.copy_(parameter[order])
    teacher.labels = task.outputs
    teacher.config = replace(teacher.config, problem_type=task.problem_type)
    return teacher


def check_vocabulary(config: BertConfig, vocab_size: int, key: str, *, may_be_padded: bool) -> None:
    """Raises UserError for a model with fewer tokens than the tokenizer, or with more unless that may be padding."""
    if config.vocab_size < vocab_size or (config.vocab_size > vocab_size and not may_be_padded):
        problem = f"its vocabulary is not the tokenizer's (got {config.vocab_size} tokens)"
        raise UserError(f"{key}: {problem}; allowed: {vocab_size}; fix: use weights and tokenizer of one model")


def _bilstm(shape: BiLstmArchitecture, teacher: MaskedLM, *, from_teacher: bool) -> BiLstmClassifier:
    """A BiLSTM whose head is a placeholder: each task draws its own."""
    sizes = (teacher.config.vocab_size, shape.embedding, shape.width, shape.layers, shape.feed_forward)
    config = BiLstmConfig(*sizes, dropout=shape.dropout, pad_token_id=teacher.config.pad_token_id)
    student = BiLstmClassifier(config, (REGRESSION_LABEL,), pair=False)
    if from_teacher:
        check_subclone(shape, teacher.config.shape)
        words = embeddings_from(teacher.bert.embeddings.word_embeddings.weight, shape.embedding)
        student.encoder.word_embeddings.weight.data.copy_(words)
    return student


def _published_student(config: BertConfig, init: Init, *, teacher_width: int) -> InitializedStudent:
    """A published general student, with its positions and its projection if that fits; ours have no bias."""
    folder = source_folder(init, key="init")
    stored, _ = load_pretrained(folder)
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
        ours, theirs = getattr(config, name), getattr(stored.config, name)
        if ours != theirs:
            model = init.hub.model if init.hub else init.folder
            raise UserError(f"init: {model}: wrong {name} (got {theirs}); allowed: {ours}; fix: change one of them")
    student = MaskedLM(stored.config.resized(config.shape))
    student.load_state_dict(stored.state_dict())
    weights = read_weights(folder / "model.safetensors")
    names = [LAYER_PROJECTION.format(layer=layer) for layer in range(config.num_hidden_layers + 1)]
    names = names if names[0] in weights else [SHARED_PROJECTION]
    found = [weights[name].float() for name in names if name in weights]
    if len(found) < len(names) or any(part.shape != (teacher_width, config.hidden_size) for part in found):
        return InitializedStudent(student)
    return InitializedStudent(student, torch.stack(found).squeeze(0))
