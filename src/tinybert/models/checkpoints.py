"""Model folders: config.json and model.safetensors, in Hugging Face's format."""

import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tinybert.models.bert import BertConfig, BertModel, MaskedLM, SequenceClassifier
from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_json, write_json

REGRESSION_LABEL = "score"
HEADS = ("cls.", "classifier.")  # what the names of a head's weights begin with
NO_WEIGHTS = ("bert.embeddings.position_ids", "embeddings.position_ids")  # older checkpoints count positions in one
SHARES = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout",
    "layer_norm_eps",
    "initializer_range",
)
SIZE_LIMITS = (1, 10**7)
LIMITS = dict.fromkeys(SHARES, (0, 1)) | {"pad_token_id": (0, 10**7), "num_hidden_layers": (1, 1000)}
Classifier = SequenceClassifier | BiLstmClassifier
Model = BertModel | BiLstmClassifier
Config = BertConfig | BiLstmConfig
OneModel = TypeVar("OneModel", bound=Model)
OneBert = TypeVar("OneBert", MaskedLM, SequenceClassifier)
OneConfig = TypeVar("OneConfig", BertConfig, BiLstmConfig)


def save_model(model: Model, folder: str | Path) -> None:
    """Writes `model` into the existing `folder`, float32; a BERT so that transformers loads it too."""
    config: dict[str, Any] = {"architectures": [model.architecture], "model_type": model.model_type, "dtype": "float32"}
    config |= {"pair": model.pair} if isinstance(model, BiLstmClassifier) else {"hidden_act": "gelu"}
    config |= model.config.as_dict()
    if isinstance(model, Classifier):
        config["id2label"] = {str(index): label for index, label in enumerate(model.labels)}
        config["label2id"] = {label: index for index, label in enumerate(model.labels)}
        config["problem_type"] = "regression" if len(model.labels) == 1 else "single_label_classification"
    write_json(Path(folder) / "config.json", config)
    tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})


def copy_model(source: str | Path, folder: str | Path) -> None:
    """Copies a model folder into the existing `folder`, without what its objective learnt for training."""
    ignore = shutil.ignore_patterns("objective.safetensors")
    # Not their modes: safetensors files are written for their owner alone.
    shutil.copytree(source, folder, ignore=ignore, copy_function=shutil.copyfile, dirs_exist_ok=True)


def load_model(folder: str | Path) -> MaskedLM | Classifier:
    """The masked LM or classifier in `folder`, in evaluation mode, float32, on the CPU.

    UserError when the folder is none of ours: another architecture, missing files or weights.
    """
    config = read_config(folder, model_types=("bert", "bilstm"))
    kind = architecture_of(config)
    if kind == MaskedLM.architecture:
        shape = model_config(BertConfig, config, folder)
        return load_weights(lambda: MaskedLM(shape), folder).eval()
    if kind not in (SequenceClassifier.architecture, BiLstmClassifier.architecture):
        raise UserError(
            f"{folder}/config.json: architecture {kind!r} cannot be used here; "
            f"{MaskedLM.architecture}, {SequenceClassifier.architecture} and {BiLstmClassifier.architecture} can"
        )
    labels = label_names(config, folder)
    return load_weights(lambda: _classifier(config, folder, labels, pair=bool(config.get("pair"))), folder).eval()


def load_bert(kind: type[OneBert], folder: str | Path) -> OneBert:
    """As load_model, where only a `kind` of BERT will do; UserError for any other."""
    model = load_model(folder)
    if not isinstance(model, kind):
        raise _another(model, kind.architecture, folder)
    return model


def load_task_model(folder: str | Path) -> Classifier:
    """As load_model, where only a classifier will do; UserError for a masked LM."""
    model = load_model(folder)
    if isinstance(model, MaskedLM):
        raise _another(model, "classifier", folder)
    return model


def _another(model: Model, needed: str, folder: str | Path) -> UserError:
    return UserError(f"{folder}: holds a {model.architecture}, a {needed} is needed; make it again")


def architecture_of(config: dict) -> str | None:
    """The class that config.json names, if it does."""
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


def label_names(config: dict, folder: str | Path) -> tuple[str, ...]:
    """The class names that a config.json gives, in the order of the logits."""
    names = config.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})  # two classes need no entry
    if not isinstance(names, dict) or not names or set(names) != {str(number) for number in range(len(names))}:
        raise UserError(f"{folder}/config.json: id2label must name the classes 0, 1 and so on; correct it")
    return tuple(str(names[str(number)]) for number in range(len(names)))


def load_classifier(folder: str | Path, labels: tuple[str, ...], *, pair: bool) -> Classifier:
    """A classifier with the encoder of the model in `folder` and a new head from the global generator.

    labels: the class names; none for a regression, whose head has one output. pair: whether rows hold two sentences.
    """
    config = read_config(folder, model_types=("bert", "bilstm"))
    names = labels or (REGRESSION_LABEL,)
    return load_weights(lambda: _classifier(config, folder, names, pair=pair), folder, head=False)


def _classifier(config: dict, folder: str | Path, labels: tuple[str, ...], *, pair: bool) -> Classifier:
    if config.get("model_type") == BiLstmClassifier.model_type:
        return BiLstmClassifier(model_config(BiLstmConfig, config, folder), labels, pair=pair)
    return SequenceClassifier(model_config(BertConfig, config, folder), labels)


def load_weights(build: Callable[[], OneModel], folder: str | Path, *, head: bool = True) -> OneModel:
    """The model that `build` makes, with the folder's weights; without `head` only with those of the encoder."""
    path = Path(folder) / "model.safetensors"
    if not path.is_file():
        raise UserError(f"{path}: absent; a model folder holds config.json and model.safetensors")
    stored = read_weights(path)
    if head:
        return with_weights(build, stored, path)
    encoder = {name: tensor for name, tensor in stored.items() if not name.startswith(HEADS)}
    return with_weights(build, encoder, path, optional=HEADS)


def with_weights(
    build: Callable[[], OneModel], stored: dict[str, Tensor], path: Path, *, optional: tuple[str, ...] = ()
) -> OneModel:
    """The model that `build` makes with the weights `stored` in `path`; what `optional` begins may be missing there.

    UserError where one is missing or has another shape, before a mistaken config.json takes memory.
    """
    with torch.device("meta"):
        shapes = build().state_dict()
    if missing := sorted(name for name in shapes.keys() - stored.keys() if not name.startswith(optional)):
        raise UserError(f"{path}: lacks {missing[0]} and {len(missing) - 1} more weights of that model; get it again")
    _check_other_shapes(path, stored, shapes)
    model = build()
    model.load_state_dict(model.state_dict() | {name: stored[name] for name in shapes.keys() & stored.keys()})
    return model


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file; UserError where it is damaged, or holds what no weights are."""
    try:
        stored = load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError) as error:  # the last of unknown dtypes
        reason = f"{' '.join(str(error).split())}"
        raise UserError(f"{path}: no whole safetensors file ({reason:.200}); get it again") from None
    for name, tensor in stored.items():
        if name not in NO_WEIGHTS and not (tensor.is_floating_point() and tensor.float().isfinite().all()):
            kind = "NaN or infinity" if tensor.is_floating_point() else str(tensor.dtype)
            raise UserError(f"{path}: {name[:80]!r} holds {kind}; weights are finite floating-point numbers")
    return stored


def _check_other_shapes(path: Path, stored: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """UserError where a stored tensor has not the shape that config.json makes of it."""
    for name in (name for name in wanted if name in stored):  # in the model's order
        found, expected = tuple(stored[name].shape), tuple(wanted[name].shape)
        if found != expected:
            raise UserError(
                f"{path}: {name} has shape {found}, by config.json it is {expected}; they do not belong together"
            )


def read_config(folder: str | Path, *, model_types: tuple[str, ...] = ("bert",)) -> dict:
    """The folder's config.json; UserError where there is none or it is no model of these types."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise UserError(f"{path}: absent; a model folder holds config.json and model.safetensors")
    try:
        config = read_json(path)
    except ValueError as error:
        raise UserError(f"{path}: no JSON ({error}); get the file again") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: holds no JSON object; get the file again")
    allowed = {"model_type": model_types, "hidden_act": ("gelu",), "position_embedding_type": ("absolute",)}
    for key, values in allowed.items():
        if config.get(key, values[0]) not in values:
            names = " or ".join(map(repr, values))
            found = f"{config[key]!r:.40}"
            raise UserError(f"{path}: {key} is {found}; only {names} can be used here; choose another model")
    return config


def model_config(kind: type[OneConfig], config: dict, folder: str | Path) -> OneConfig:
    """The fields of config.json that the computation depends on; UserError where one is missing."""
    known = {field.name: config[field.name] for field in fields(kind) if field.name in config}
    for name, value in known.items():
        least, greatest = LIMITS.get(name, SIZE_LIMITS)
        if type(value) not in ((int,) if name not in SHARES else (int, float)) or not least <= value <= greatest:
            expected = f"a number is needed{'' if name in SHARES else ', a whole one'} from {least} to {greatest}"
            raise UserError(f"{folder}/config.json: {name} is {value!r:.40}; {expected}")
    try:
        return kind(**known)
    except (TypeError, UserError) as error:
        raise UserError(f"{folder}/config.json: {error}".replace(f"{kind.__name__}.__init__() ", "")) from None
