"""Classifiers that are no BERTs: computed by transformers, known by their predictions only, or read as BERTs.

The first two are task teachers that share no tokens with students, so that only their outputs for rows can be compared:
logits, and states of the first token. BERT's relatives (RoBERTa, DistilBERT, ELECTRA and others) are read for INT8.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tinybert.config.fields import HUGE, Architecture
from tinybert.config.students import LOGIT_LOSSES, ROW_LOSSES
from tinybert.config.tasks import MULTILABEL, ProblemType, Task
from tinybert.models.outputs import Batch, ModelOutput, OutputSpec, PositionLimit, Sized
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import one_line

OWN_TOKENIZER = "own_tokenizer"  # key of config.json that marks a ForeignClassifier's folder
PREDICTIONS_FILE = "predictions.safetensors"
DEFAULT_LABEL = re.compile(r"label_\d+")
WORDS = "bert.embeddings.word_embeddings.weight"
POSITIONS = "bert.embeddings.position_embeddings.weight"
SEGMENTS = "bert.embeddings.token_type_embeddings.weight"
HEAD = {"classifier.dense.": "bert.pooler.dense.", "classifier.out_proj.": "classifier."}


@dataclass(frozen=True)
class ForeignConfig(PositionLimit):
    """What training reads of such a teacher's config; `details` are all that its outputs depend on beside weights."""

    hidden_size: int = 0
    num_hidden_layers: int = 0
    max_position_embeddings: int = HUGE
    problem_type: ProblemType | None = None
    details: str = ""
    losses: tuple[str, ...] = LOGIT_LOSSES  # those that it has targets for

    @property
    def shape(self) -> Architecture:
        """The sizes that layer maps are checked against."""
        layers, width = self.num_hidden_layers, self.hidden_size
        return Architecture.model_construct(layers=layers, width=width, heads=0, feed_forward=0, dropout=0.0)


class ForeignClassifier(Sized):
    """A classifier of transformers with its own tokenizer; logits (batch, classes) in the order of `labels`.

    Args:
        model: A ...ForSequenceClassification.
        tokenizer: The model's, of transformers.
        order: The model's output of each of the task's outputs.
    """

    order: Tensor
    tokenizer: Any

    def __init__(self, model: Any, tokenizer: Any, task: Task, order: list[int]) -> None:
        super().__init__()
        self.model, self.tokenizer, self.labels = model, tokenizer, task.outputs
        self.register_buffer("order", torch.tensor(order))
        config, accepted = model.config, inspect.signature(model.forward).parameters
        self.takes_segments = "token_type_ids" in accepted and "token_type_ids" in tokenizer.model_input_names
        if config.pad_token_id is None:  # of decoders, which find a row's last token by it
            config.pad_token_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        details = {key: value for key, value in config.to_dict().items() if key != "_name_or_path"}
        details["takes_segments"] = self.takes_segments
        known = {name: getattr(config, name, 0) for name in ("hidden_size", "num_hidden_layers")}
        self.config = ForeignConfig(
            **known, max_position_embeddings=_positions(model), problem_type=task.problem_type,
            details=json.dumps(details, sort_keys=True, default=str), losses=row_losses(details),
        )  # fmt: skip

    def forward(self, batch: Batch, spec: OutputSpec = OutputSpec()) -> ModelOutput:  # noqa: B008 (frozen)
        """Logits, and as hidden states those of each row's first token: (batch, width)."""
        inputs = {"input_ids": batch.input_ids.masked_fill(~batch.mask, self.model.config.pad_token_id)}
        inputs["attention_mask"] = batch.mask.long()
        if self.takes_segments:
            inputs["token_type_ids"] = batch.token_type_ids
        found = self.model(**inputs, output_hidden_states=bool(spec.hidden))
        hidden = {layer: found.hidden_states[layer][:, 0] for layer in spec.hidden}
        return ModelOutput(hidden=hidden, logits=found.logits[:, self.order])

    def save(self, folder: str | Path) -> None:
        """Writes model and tokenizer into an existing folder that transformers loads too."""
        setattr(self.model.config, OWN_TOKENIZER, True)
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


class PredictedTeacher(nn.Module):
    """A teacher of which only predictions are known: it reads rows of one "token", a place in its table of logits.

    Args:
        logits: (rows, classes) float32 by split.
        numbers: "idx" of these rows, (rows,) int64 by split.
    """

    parameter_count = None
    table: Tensor

    def __init__(self, logits: Mapping[str, Tensor], numbers: Mapping[str, Tensor], task: Task) -> None:
        super().__init__()
        self.labels, self.logits, self.numbers = task.outputs, logits, numbers
        self.register_buffer("table", torch.cat([logits[split] for split in numbers]))
        keys = ((split, number) for split in numbers for number in numbers[split].tolist())
        self.places = {key: place for place, key in enumerate(keys)}
        self.config = ForeignConfig(problem_type=task.problem_type)

    def forward(self, batch: Batch, spec: OutputSpec = OutputSpec()) -> ModelOutput:  # noqa: B008 (frozen)
        """The logits of the rows at these places."""
        return ModelOutput(logits=self.table[batch.input_ids[:, 0]])

    def save(self, folder: str | Path) -> None:
        """Writes the table into an existing folder."""
        parts = {"logits": self.logits, "numbers": self.numbers}
        stored = {f"{name}.{split}": part[split] for name, part in parts.items() for split in part}
        save_file(stored, Path(folder) / PREDICTIONS_FILE)

    @classmethod
    def load(cls, folder: str | Path, task: Task) -> "PredictedTeacher":
        """The teacher that `save` wrote."""
        stored = load_file(Path(folder) / PREDICTIONS_FILE)
        splits = [key.removeprefix("logits.") for key in stored if key.startswith("logits.")]
        logits, numbers = ({split: stored[f"{name}.{split}"] for split in splits} for name in ("logits", "numbers"))
        return cls(logits, numbers, task)


def load_foreign(folder: Path, task: Task, *, key: str, with_head: bool = True) -> ForeignClassifier:
    """A classifier of any family and its tokenizer, in evaluation mode, float32, on the CPU.

    No code of the folder is run, no pickle opened; UserError that begins with `key` if loading fails or classes differ.

    Args:
        folder: config.json, safetensors and tokenizer files.
        with_head: Whether the folder has the task's head; otherwise the global generator draws it.
    """
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if not list(folder.glob("model*.safetensors")):
        raise UserError(f"{key}: {folder} has no model.safetensors; fix: tinybert convert, if it has pytorch_model.bin")
    known: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    names = dict(enumerate(task.outputs))
    numbers = {name: number for number, name in names.items()}
    head: dict[str, Any] = {"id2label": names, "label2id": numbers, "problem_type": task.problem_type}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **known)
        model, found = AutoModelForSequenceClassification.from_pretrained(
            folder, use_safetensors=True, dtype=torch.float32, output_loading_info=True,
            ignore_mismatched_sizes=not with_head, **known, **({} if with_head else head),
        )  # fmt: skip
    except Exception as error:  # of many types, by family and file
        reason = f"{one_line(error):.200}"
        raise UserError(f"{key}: {folder} cannot be loaded ({reason}); fix: choose another model") from None
    missing = {*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])}
    _check_loaded(model, tokenizer, missing, f"{key}: {folder}", with_head=with_head)
    theirs = [str(name) for _, name in sorted(model.config.id2label.items())]
    order = class_order(theirs, task, key=key, stated=model.config.problem_type)
    return ForeignClassifier(model, tokenizer, task, order).eval()


def row_losses(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The losses that a model with its own vocabulary has targets for, by its config.json.

    pkd compares states of first tokens: those of a decoder do not see the row, and encoder-decoders return none.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    is_encoder = config.get("model_type", "bert") in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return ROW_LOSSES if is_encoder and not config.get("is_encoder_decoder") else LOGIT_LOSSES


def class_order(found: list[str], task: Task, *, key: str, stated: str | None) -> list[int]:
    """The place of each of the task's outputs among a model's, matched by name; UserError if they are others.

    Generic names (LABEL_0) are read in the order of the task's labels. `stated`: problem_type of config.json.
    """
    labels = task.outputs
    if len(found) != len(labels):
        problem = f"wrong number of outputs (got {len(found)})"
        raise UserError(f"{key}: {problem}; allowed: {len(labels)}; fix: choose a model fine-tuned on this task")
    if stated and (stated == MULTILABEL) != task.is_multilabel:
        allowed = task.problem_type or "another problem_type"
        raise UserError(f"{key}: wrong kind of task (got {stated}); allowed: {allowed}; fix: choose another model")
    theirs, wanted = list(map(_plain_name, found)), list(map(_plain_name, labels))
    if len(set(wanted)) < len(wanted):  # they differ in what plain names leave out
        theirs, wanted = found, list(labels)
    if sorted(theirs) == sorted(wanted):
        return [theirs.index(label) for label in wanted]
    if len(labels) > 1 and not all(DEFAULT_LABEL.fullmatch(_plain_name(label)) for label in found):
        fix = "name all of them by id2label in config.json, or write its names into the table"
        raise UserError(f"{key}: unknown classes (got {', '.join(found)}); allowed: {', '.join(labels)}; fix: {fix}")
    if len(labels) > 1 and not task.has_label_order:
        problem = f"its classes have no names (LABEL_0, ...), those of {task.name} no order"
        fix = f"name them by id2label of config.json, or by tasks.{task.name}.data.labels in the teacher's order"
        raise UserError(f"{key}: {problem}; allowed: names or an order; fix: {fix}")
    return list(range(len(labels)))


def _plain_name(label: str) -> str:
    return label.lower().replace(" ", "_").replace("-", "_")


def _check_loaded(model: Any, tokenizer: Any, missing: Iterable[str], where: str, *, with_head: bool) -> None:
    """UserError that begins with `where` if weights are missing or not finite, or rows cannot be padded."""
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise UserError(f"{where} has no tokenizer.json; fix: write one with save_pretrained of a fast tokenizer")
    ids = (model.config.pad_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id)
    has_mask = "attention_mask" in inspect.signature(model.forward).parameters
    if not has_mask or tokenizer.padding_side == "left" or all(one is None for one in ids):
        problem = f"a {model.config.model_type} cannot ignore padding on the right"
        raise UserError(f"{where}: {problem}; allowed: models with an attention mask; fix: choose another model")
    of_encoder = f"{model.base_model_prefix}."
    lacking = sorted(name for name in missing if with_head or (name.startswith(of_encoder) and "pooler" not in name))
    if lacking:
        problem = f"lacks {lacking[0]} and {len(lacking) - 1} more weights"
        raise UserError(f"{where} {problem}; fix: choose a model fine-tuned on this task, or get it again")
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise UserError(f"{where}: {name}: has NaN or infinity; fix: get the file again")


def _positions(model: Any) -> int:
    """The longest row in tokens; RoBERTa's family counts positions from behind the padding's."""
    limit = getattr(model.config, "max_position_embeddings", None) or HUGE
    tables = (part for name, part in model.named_modules() if name.endswith("position_embeddings"))
    padding = next((table.padding_idx for table in tables if getattr(table, "padding_idx", None) is not None), -1)
    return limit - padding - 1


class Relative(NamedTuple):
    """How a family differs from BERT."""

    names: Mapping[str, str]  # parts of the names of its weights -> BERT's, replaced in this order
    activation: Callable[[Tensor], Tensor]  # of the pooler; the family calls it the head's dense layer
    fields: Mapping[str, str] = {}  # BERT's fields of config.json -> its own
    numbers_from_padding: bool = False  # whether its positions are numbered from pad_token_id + 1


# Older files of RoBERTa hold a pooler that its head does not read.
ROBERTA = Relative({"roberta.pooler.": "unused.", "roberta.": "bert."} | HEAD, torch.tanh, numbers_from_padding=True)
DISTILBERT = Relative(
    {"distilbert.transformer.": "bert.encoder.", "distilbert.": "bert.", "pre_classifier.": "bert.pooler.dense.",
     ".q_lin.": ".self.query.", ".k_lin.": ".self.key.", ".v_lin.": ".self.value.", ".out_lin.": ".output.dense.",
     ".sa_layer_norm.": ".attention.output.LayerNorm.", ".ffn.lin1.": ".intermediate.dense.",
     ".ffn.lin2.": ".output.dense.", ".output_layer_norm.": ".output.LayerNorm."},
    F.relu,
    {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
     "intermediate_size": "hidden_dim"},
)  # fmt: skip
RELATIVES = {
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), ROBERTA),
    "distilbert": DISTILBERT,
    "electra": Relative({"electra.": "bert."} | HEAD, F.gelu),
}


def as_bert(
    relative: Relative, config: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Renames and completes a relative's files.

    Args:
        config: Its config.json.
        weights: By the family's names.

    Returns:
        The config and weights of a BERT that computes the same, except for the pooler's activation.

    Raises:
        UserError: Its embeddings are narrower than its layers.
    """
    renamed = {}
    for name, tensor in weights.items():
        for theirs, ours in relative.names.items():
            name = name.replace(theirs, ours)
        renamed[name] = tensor
    if "bert.embeddings_project.weight" in renamed:
        raise UserError("embedding_size: differs from hidden_size; allowed: equal sizes; fix: choose another model")
    adapted = dict(config) | {ours: config[theirs] for ours, theirs in relative.fields.items() if theirs in config}
    if WORDS in renamed and SEGMENTS not in renamed:  # DistilBERT has none
        renamed[SEGMENTS] = torch.zeros_like(renamed[WORDS][:1])
    if SEGMENTS in renamed and len(renamed[SEGMENTS]) == 1:  # the same for both texts of a pair
        renamed[SEGMENTS] = torch.cat([renamed[SEGMENTS]] * 2)
    adapted["type_vocab_size"] = len(renamed.get(SEGMENTS, "12"))
    if POSITIONS in renamed and relative.numbers_from_padding and isinstance(config.get("pad_token_id", 1), int):
        renamed[POSITIONS] = renamed[POSITIONS][config.get("pad_token_id", 1) + 1 :]
        adapted["max_position_embeddings"] = len(renamed[POSITIONS])
    return adapted, renamed
