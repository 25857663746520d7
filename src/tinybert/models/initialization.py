"""How students and teachers start: at random, from teacher layers, or from a published model."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from tinybert.config.fields import BiLstmArchitecture, ModelSource
from tinybert.config.schema import Teacher
from tinybert.config.students import Init, Student, mapped_layers
from tinybert.models.bert import BertConfig, MaskedLM, SequenceClassifier
from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig, embeddings_from
from tinybert.models.checkpoints import REGRESSION_LABEL, checkpoint_folder, load_bert, load_pretrained, read_weights
from tinybert.models.outputs import Batch
from tinybert.models.subclone import InitializedStudent, subclone
from tinybert.pipeline.errors import UserError

# Beside the encoder in Jiao et al.'s general students: one projection, or one for the embeddings and each layer.
SHARED_PROJECTION, LAYER_PROJECTION = "fit_dense.weight", "fit_denses.{layer}.weight"
DEFAULT_LABEL = re.compile(r"label_\d+")


def initialize_student(
    student: Student, teacher: MaskedLM, *, sample: Callable[[], Iterable[Batch]]
) -> InitializedStudent:
    """Makes a student with the teacher's vocabulary and positions by its `architecture` and `init`.

    Random weights come from the global generator. From a teacher: the layers that init.teacher names, copied if the
    shapes agree (Sanh et al. 2019, Sun et al. 2019), else cut to the student's shape (models/subclone.py). From a
    folder or the Hub: any BERT encoder. A BiLSTM takes the teacher's word embeddings. UserError if shapes do not fit.

    Args:
        student: The student's config.
        teacher: The teacher of the general corpus.
        sample: Gives plain text for the cut.
    """
    shape, init = student.architecture, student.init
    if shape.kind == "bilstm":
        return InitializedStudent(_bilstm(shape, teacher, from_teacher=bool(init.teacher)))
    positions = teacher.config.max_position_embeddings
    config = BertConfig.of(shape, vocab_size=teacher.config.vocab_size, max_position_embeddings=positions)
    if init.folder or init.hub:
        return _published_student(config, init, teacher_width=teacher.config.hidden_size)
    if not init.teacher:
        return InitializedStudent(MaskedLM(config))
    mapped = mapped_layers(init.teacher, config.num_hidden_layers, teacher.config.num_hidden_layers)
    return subclone(teacher, config, [layer for (layer,) in mapped], batches=sample())


def start_teacher(teacher: Teacher, *, vocab_size: int, seed: int) -> MaskedLM:
    """The masked-LM teacher before its (further) pretraining; UserError if it does not fit the tokenizer.

    Args:
        teacher: The section of params.
        vocab_size: Of the teacher's tokenizer.
        seed: Draws new weights: all of a synthetic teacher, the head that a checkpoint lacks.
    """
    torch.manual_seed(seed)
    if teacher.source == "synthetic":
        shape = teacher.synthetic.architecture
        return MaskedLM(BertConfig.of(shape, vocab_size=vocab_size))
    if teacher.source == "hub":
        folder = checkpoint_folder(ModelSource(hub=teacher.hub), key="teacher")
    else:
        folder = checkpoint_folder(ModelSource(folder=teacher.local.folder), key="teacher.local")
    model, has_head = load_pretrained(folder)
    _check_vocabulary(model.config, vocab_size, "teacher")
    if not has_head and teacher.pretraining.epochs == 0:
        problem = f"{folder} has no masked-LM head to use untrained (got 0)"
        raise UserError(f"teacher.pretraining.epochs: {problem}; allowed: 1 or more; fix: give it at least 1 epoch")
    return model


def finetuned_teacher(source: ModelSource, labels: tuple[str, ...], *, key: str, vocab_size: int) -> SequenceClassifier:
    """A published task teacher, in evaluation mode, with its classes in the task's order; UserError if it does not fit.

    They are ordered by the names in its config.json if those are the task's, and taken as they are if the names mean
    nothing (LABEL_0).

    Args:
        source: Where it is, the section `key` of params.
        labels: The task's classes; none for a regression.
        vocab_size: Of the teacher's tokenizer.
    """
    teacher = load_bert(SequenceClassifier, checkpoint_folder(source, key=key))
    _check_vocabulary(teacher.config, vocab_size, key)
    labels = labels or (REGRESSION_LABEL,)
    if len(teacher.labels) != len(labels):
        problem = f"wrong number of outputs (got {len(teacher.labels)})"
        raise UserError(f"{key}: {problem}; allowed: {len(labels)}; fix: choose a model fine-tuned on this task")
    found = [label.lower().replace(" ", "_").replace("-", "_") for label in teacher.labels]
    if sorted(found) == sorted(labels):
        order = torch.tensor([found.index(label) for label in labels])
        with torch.no_grad():
            for parameter in teacher.classifier.parameters():
                parameter.copy_(parameter[order])
    elif len(labels) > 1 and not all(DEFAULT_LABEL.fullmatch(label) for label in found):
        problem = f"unknown classes (got {', '.join(teacher.labels)}); allowed: {', '.join(labels)}"
        raise UserError(f"{key}: {problem}; fix: name all of them by id2label in config.json, or choose another model")
    teacher.labels = labels
    return teacher


def _check_vocabulary(config: BertConfig, vocab_size: int, key: str) -> None:
    if config.vocab_size != vocab_size:
        problem = f"its vocabulary is not the tokenizer's (got {config.vocab_size} pieces)"
        raise UserError(f"{key}: {problem}; allowed: {vocab_size}; fix: use weights and tokenizer of one model")


def _bilstm(shape: BiLstmArchitecture, teacher: MaskedLM, *, from_teacher: bool) -> BiLstmClassifier:
    """A BiLSTM whose head is a placeholder: each task draws its own."""
    sizes = (shape.embedding, shape.width, shape.layers, shape.feed_forward)
    vocab_size, padding = teacher.config.vocab_size, teacher.config.pad_token_id
    config = BiLstmConfig(vocab_size, *sizes, dropout=shape.dropout, pad_token_id=padding)
    student = BiLstmClassifier(config, (REGRESSION_LABEL,), pair=False)
    if from_teacher:
        words = teacher.bert.embeddings.word_embeddings.weight
        with torch.no_grad():
            student.encoder.word_embeddings.weight.copy_(embeddings_from(words, shape.embedding))
    return student


def _published_student(config: BertConfig, init: Init, *, teacher_width: int) -> InitializedStudent:
    """A published general student, with its positions and its projection if that fits; ours have no bias."""
    folder = checkpoint_folder(init, key="init")
    stored, _ = load_pretrained(folder)
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
        ours, theirs = getattr(config, name), getattr(stored.config, name)
        if ours != theirs:
            model = init.hub.model if init.hub else init.folder
            raise UserError(f"init: {model}: wrong {name} (got {theirs}); allowed: {ours}; fix: change one of them")
    student = MaskedLM(replace(config, max_position_embeddings=stored.config.max_position_embeddings))
    student.load_state_dict(stored.state_dict())
    weights = read_weights(folder / "model.safetensors")
    names = [LAYER_PROJECTION.format(layer=layer) for layer in range(config.num_hidden_layers + 1)]
    names = names if names[0] in weights else [SHARED_PROJECTION]
    found = [weights[name].float() for name in names if name in weights]
    if len(found) < len(names) or any(part.shape != (teacher_width, config.hidden_size) for part in found):
        return InitializedStudent(student)
    return InitializedStudent(student, torch.stack(found).squeeze(0))
