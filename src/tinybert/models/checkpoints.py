"""Model folders in Hugging Face's format, ours and published ones: config.json, model.safetensors, training.json.

Folders come from strangers, too: everything read from them is checked, pickles are never opened, and each
mistake is one line.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tinybert.config.fields import ModelSource
from tinybert.config.students import Init
from tinybert.models.bert import BertConfig, BertModel, MaskedLM, SequenceClassifier
from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_json, write_json
from tinybert.pipeline.hub import hub_folder

CHECKPOINT_FILES = ["config.json", "model.safetensors"]
PROVENANCE_FILE = "training.json"
REGRESSION_LABEL = "score"
HEADS = ("cls.", "classifier.")  # what the names of a head's weights begin with
MASKED_LM_HEAD = "cls.predictions.transform.dense.weight"
INTEGER_BUFFERS = ("bert.embeddings.position_ids", "embeddings.position_ids")  # in older checkpoints; not weights
# The values of config.json that the computation knows; the first is Hugging Face's default.
ALLOWED_VALUES = {"hidden_act": ("gelu",), "position_embedding_type": ("absolute",)}
# Field of config.json -> (least, greatest) value. Larger ones are mistakes that would only exhaust memory.
SIZE_RANGE = (1, 10**7)
RANGES = {"pad_token_id": (0, 10**7), "num_hidden_layers": (1, 1000)}
REAL_FIELDS = {
    "hidden_dropout_prob": (0, 1),
    "attention_probs_dropout_prob": (0, 1),
    "dropout": (0, 1),
    "layer_norm_eps": (0, 1),
    "initializer_range": (0, 1),
}

Classifier = SequenceClassifier | BiLstmClassifier
Model = BertModel | BiLstmClassifier
Config = BertConfig | BiLstmConfig
OneModel = TypeVar("OneModel", bound=Model)
OneBert = TypeVar("OneBert", MaskedLM, SequenceClassifier)
OneConfig = TypeVar("OneConfig", BertConfig, BiLstmConfig)


def save_model(model: Model, folder: str | Path) -> None:
    """Writes a model in float32; transformers loads the folder of a BERT, too.

    Args:
        model: A BERT with a head, or a BiLSTM.
        folder: An existing folder.
    """
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
    # File modes are not copied: safetensors files are readable for their owner alone.
    shutil.copytree(source, folder, ignore=ignore, copy_function=shutil.copyfile, dirs_exist_ok=True)


def checkpoint_folder(source: ModelSource | Init, *, key: str) -> Path:
    """The folder of a checkpoint that params name by `folder`, or by `hub`, from which it is downloaded.

    Args:
        source: A section with `folder` or `hub`.
        key: The dotted key of that section, for errors.

    Raises:
        UserError: There is no such folder, or the Hub does not give the model.
    """
    if source.hub:
        fix = f"check {key}.hub.model and {key}.hub.revision, or name a folder by {key}.folder"
        return hub_folder(source.hub, CHECKPOINT_FILES, key=key, fix=fix)
    assert source.folder is not None  # the schema asks for one of the two
    folder = paths.resolve(source.folder)
    if not folder.is_dir():
        raise UserError(f"{key}.folder: {source.folder!r} is no folder; correct the path")
    return folder


def load_model(folder: str | Path) -> MaskedLM | Classifier:
    """Loads the model that config.json names.

    Args:
        folder: A model folder, ours or a published one.

    Returns:
        The masked LM or classifier, in evaluation mode, float32, on the CPU.

    Raises:
        UserError: The folder holds another architecture, or config.json or weights are missing or damaged.
    """
    config = read_config(folder, model_types=("bert", "bilstm"))
    kind = _architecture(config)
    if kind == MaskedLM.architecture:
        shape = model_config(BertConfig, config, folder)
        return _with_weights(lambda: MaskedLM(shape), *_stored_weights(folder, config)).eval()
    if kind not in (SequenceClassifier.architecture, BiLstmClassifier.architecture):
        raise UserError(
            f"{folder}/config.json: architecture {kind!r} cannot be used here; "
            f"{MaskedLM.architecture}, {SequenceClassifier.architecture} and {BiLstmClassifier.architecture} can"
        )
    build = _classifier_of(config, folder, _label_names(config, folder), pair=bool(config.get("pair")))
    return _with_weights(build, *_stored_weights(folder, config)).eval()


def load_bert(kind: type[OneBert], folder: str | Path) -> OneBert:
    """As load_model, but UserError for any model other than a `kind`."""
    model = load_model(folder)
    if not isinstance(model, kind):
        raise UserError(f"{folder}: holds a {model.architecture}, a {kind.architecture} is needed; choose another")
    return model


def load_task_model(folder: str | Path) -> Classifier:
    """As load_model, but UserError for a masked LM."""
    model = load_model(folder)
    if isinstance(model, MaskedLM):
        raise UserError(f"{folder}: holds a {model.architecture}, a classifier is needed; choose another")
    return model


def load_classifier(folder: str | Path, labels: tuple[str, ...], *, pair: bool) -> Classifier:
    """A classifier with the encoder of the model in `folder` and a new head from the global generator.

    Args:
        folder: A folder with any model that load_model takes.
        labels: The class names; none for a regression, whose head has one output.
        pair: Whether rows hold two sentences.

    Returns:
        The classifier, in training mode.

    Raises:
        UserError: As load_model.
    """
    config = read_config(folder, model_types=("bert", "bilstm"))
    build = _classifier_of(config, folder, labels or (REGRESSION_LABEL,), pair=pair)
    stored, path = _stored_weights(folder, config)
    encoder = {name: tensor for name, tensor in stored.items() if not name.startswith(HEADS)}
    return _with_weights(build, encoder, path, optional=HEADS)


def load_pretrained(folder: str | Path) -> tuple[MaskedLM, bool]:
    """The masked LM in a folder of any BERT checkpoint.

    Parts that the checkpoint lacks (head, pooler) are drawn from the global generator.

    Args:
        folder: A folder with config.json and model.safetensors, such as a published encoder's.

    Returns:
        The model in training mode, and whether the checkpoint had a masked-LM head.

    Raises:
        UserError: The folder holds no BERT encoder in safetensors.
    """
    config = read_config(folder)
    shape = model_config(BertConfig, config, folder)
    stored, path = _stored_weights(folder, config)
    model = _with_weights(lambda: MaskedLM(shape), stored, path, optional=("cls.", "bert.pooler."))
    return model, MASKED_LM_HEAD in stored


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
    for key, values in {"model_type": model_types, **ALLOWED_VALUES}.items():
        if config.get(key, values[0]) not in values:
            names = " or ".join(map(repr, values))
            found = f"{config[key]!r:.40}"
            raise UserError(f"{path}: {key} is {found}; only {names} can be used here; choose another model")
    return config


def model_config(kind: type[OneConfig], config: dict, folder: str | Path) -> OneConfig:
    """The fields of config.json that the computation depends on; UserError where one is missing or out of range."""
    known = {field.name: config[field.name] for field in fields(kind) if field.name in config}
    for name, value in known.items():
        types, (least, greatest) = (
            ((int, float), REAL_FIELDS[name]) if name in REAL_FIELDS else ((int,), RANGES.get(name, SIZE_RANGE))
        )
        if type(value) not in types or not least <= value <= greatest:
            expected = f"a number is needed{'' if float in types else ', a whole one'} from {least} to {greatest}"
            raise UserError(f"{folder}/config.json: {name} is {value!r:.40}; {expected}")
    try:
        return kind(**known)
    except (TypeError, UserError) as error:
        raise UserError(f"{folder}/config.json: {error}".replace(f"{kind.__name__}.__init__() ", "")) from None


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file; UserError where it is damaged, or holds other than finite weights."""
    try:
        stored = load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError) as error:  # the last of unknown dtypes
        reason = f"{' '.join(str(error).split())}"
        raise UserError(f"{path}: no whole safetensors file ({reason:.200}); get it again") from None
    for name, tensor in stored.items():
        if name not in INTEGER_BUFFERS and not (tensor.is_floating_point() and tensor.float().isfinite().all()):
            kind = "NaN or infinity" if tensor.is_floating_point() else str(tensor.dtype)
            raise UserError(f"{path}: {name[:80]!r} holds {kind}; weights are finite floating-point numbers")
    return stored


def _architecture(config: dict) -> str | None:
    """The class that config.json names, if it does."""
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


def _label_names(config: dict, folder: str | Path) -> tuple[str, ...]:
    """The class names of config.json in the order of the logits."""
    names = config.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})  # Hugging Face writes none for two classes
    if not isinstance(names, dict) or not names or set(names) != {str(number) for number in range(len(names))}:
        raise UserError(f"{folder}/config.json: id2label must name the classes 0, 1 and so on; correct it")
    return tuple(str(names[str(number)]) for number in range(len(names)))


def _classifier_of(
    config: dict, folder: str | Path, labels: tuple[str, ...], *, pair: bool
) -> Callable[[], Classifier]:
    """A function that makes the classifier which config.json describes, with new weights."""
    if config.get("model_type") == BiLstmClassifier.model_type:
        lstm = model_config(BiLstmConfig, config, folder)
        return lambda: BiLstmClassifier(lstm, labels, pair=pair)
    shape = model_config(BertConfig, config, folder)
    return lambda: SequenceClassifier(shape, labels)


def _stored_weights(folder: str | Path, config: dict) -> tuple[dict[str, Tensor], Path]:
    """The folder's weights under our names, and their file."""
    path = Path(folder) / "model.safetensors"
    if not path.is_file():
        raise UserError(
            f"{path}: absent; only safetensors are read, no pickles: load the model once with transformers, "
            "write it with save_pretrained, and give the folder with that"
        )
    stored = read_weights(path)
    if config.get("model_type") == BiLstmClassifier.model_type:
        return stored, path
    return {_our_name(name): tensor for name, tensor in stored.items()}, path


def _our_name(name: str) -> str:
    """Checkpoints of the encoder alone lack the prefix; the oldest call a layer norm's weights gamma and beta."""
    name = name if name.startswith(("bert.", *HEADS)) else f"bert.{name}"
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _with_weights(
    build: Callable[[], OneModel], stored: dict[str, Tensor], path: Path, *, optional: tuple[str, ...] = ()
) -> OneModel:
    """The model that `build` makes with the weights `stored` in `path`; those that begin with `optional` may lack."""
    with torch.device("meta"):  # a mistaken config.json is found before its model takes memory
        shapes = build().state_dict()
    if missing := sorted(name for name in shapes.keys() - stored.keys() if not name.startswith(optional)):
        raise UserError(f"{path}: lacks {missing[0]} and {len(missing) - 1} more weights of that model; get it again")
    for name in (name for name in shapes if name in stored):  # in the model's order
        found, expected = tuple(stored[name].shape), tuple(shapes[name].shape)
        if found != expected:
            raise UserError(
                f"{path}: {name} has shape {found}, by config.json it is {expected}; they do not belong together"
            )
    model = build()
    model.load_state_dict(model.state_dict() | {name: stored[name] for name in shapes.keys() & stored.keys()})
    return model


def write_provenance(entries: Sequence[dict[str, Any]], folder: str | Path) -> None:
    """Writes how a model was trained beside it, if anything is known: an entry for each stage it went through.

    Only what decides the weights, so that a model that was not retrained keeps its bytes.
    """
    if entries:
        write_json(Path(folder) / PROVENANCE_FILE, list(entries))


def read_provenance(folder: str | Path) -> list[dict[str, Any]]:
    """The entries in the order of training; none for a model without a record."""
    path = Path(folder) / PROVENANCE_FILE
    return read_json(path) if path.is_file() else []
