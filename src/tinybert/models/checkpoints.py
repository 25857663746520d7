"""Model folders in Hugging Face's format, ours and published ones: config.json, model.safetensors, training.json.

Folders come from strangers too: everything read is checked, pickles are never opened, and each mistake is one line.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
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
# What the computation supports; the first value is Hugging Face's default.
ALLOWED_VALUES = {
    "model_type": ("bert", "bilstm"),
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute",),
}
# Field of config.json -> (types, least, greatest value); sizes above are mistakes that would only exhaust memory.
SIZE = ((int,), 1, 10**7)
REAL = ((int, float), 0, 1)
RANGES: dict[str, tuple[tuple[type, ...], int, int]] = {
    "pad_token_id": ((int,), 0, 10**7),
    "num_hidden_layers": ((int,), 1, 1000),
    "hidden_dropout_prob": REAL,
    "attention_probs_dropout_prob": REAL,
    "dropout": REAL,
    "layer_norm_eps": REAL,
    "initializer_range": REAL,
}

Classifier = SequenceClassifier | BiLstmClassifier
Model = BertModel | BiLstmClassifier
Config = BertConfig | BiLstmConfig
OneModel = TypeVar("OneModel", bound=Model)
OneBert = TypeVar("OneBert", MaskedLM, SequenceClassifier)
OneConfig = TypeVar("OneConfig", BertConfig, BiLstmConfig)


def save_model(model: Model, folder: str | Path) -> None:
    """Writes a model in float32 into an existing folder; transformers loads the folder of a BERT too."""
    config: dict[str, Any] = {"architectures": [model.architecture], "model_type": model.model_type, "dtype": "float32"}
    config |= {"pair": model.pair} if isinstance(model, BiLstmClassifier) else {"hidden_act": "gelu"}
    config |= asdict(model.config)
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
    # File modes are not copied, because safetensors files are readable for their owner alone.
    shutil.copytree(source, folder, ignore=ignore, copy_function=shutil.copyfile, dirs_exist_ok=True)


def checkpoint_folder(source: ModelSource | Init, *, key: str) -> Path:
    """The folder of a checkpoint that a section of params names by `folder`, or by `hub` to be downloaded.

    Args:
        source: The section.
        key: Its dotted key, for errors.

    Raises:
        UserError: There is no such folder, or the Hub does not give the model.
    """
    if source.hub:
        fix = f"check {key}.hub.model and {key}.hub.revision, or name a folder by {key}.folder"
        return hub_folder(source.hub, CHECKPOINT_FILES, key=key, fix=fix)
    folder = paths.resolve(source.folder or "")
    if not folder.is_dir():
        raise UserError(f"{key}.folder: not a folder (got {source.folder!r}); fix: correct the path")
    return folder


def load_model(folder: str | Path) -> MaskedLM | Classifier:
    """The model that config.json names: in evaluation mode, float32, on the CPU.

    Raises:
        UserError: Another architecture, or missing or damaged config.json or weights.
    """
    config = _read_config(folder)
    kind = _architecture(config)
    if kind == MaskedLM.architecture:
        shape = _model_config(BertConfig, config, folder)
        return _with_weights(lambda: MaskedLM(shape), *_read_folder(folder, config)).eval()
    known = SequenceClassifier.architecture, BiLstmClassifier.architecture
    if kind not in known:
        raise UserError(
            f"{folder}/config.json: architectures: not supported here (got {kind!r}); allowed: "
            f"{', '.join((MaskedLM.architecture, *known))}; fix: choose another model"
        )
    build = _classifier_builder(folder, config, _label_names(folder, config), pair=bool(config.get("pair")))
    return _with_weights(build, *_read_folder(folder, config)).eval()


def load_bert(kind: type[OneBert], folder: str | Path) -> OneBert:
    """As load_model, but UserError for any model other than a `kind`."""
    model = load_model(folder)
    if not isinstance(model, kind):
        raise UserError(
            f"{folder}: wrong model (got {model.architecture}); allowed: {kind.architecture}; fix: use another"
        )
    return model


def load_task_model(folder: str | Path) -> Classifier:
    """As load_model, but UserError for a masked LM."""
    model = load_model(folder)
    if isinstance(model, MaskedLM):
        raise UserError(f"{folder}: wrong model (got {model.architecture}); allowed: a classifier; fix: use another")
    return model


def load_classifier(folder: str | Path, labels: tuple[str, ...], *, pair: bool) -> Classifier:
    """A classifier, in training mode, with the encoder of the model in `folder` and a head from the global generator.

    Args:
        folder: A folder with any model that load_model accepts.
        labels: The class names; none for a regression, whose head has one output.
        pair: Whether rows hold two sentences.

    Raises:
        UserError: As load_model.
    """
    config = _read_config(folder)
    build = _classifier_builder(folder, config, labels or (REGRESSION_LABEL,), pair=pair)
    path, stored = _read_folder(folder, config)
    encoder = {name: tensor for name, tensor in stored.items() if not name.startswith(HEADS)}
    return _with_weights(build, path, encoder, optional=HEADS)


def load_pretrained(folder: str | Path) -> tuple[MaskedLM, bool]:
    """The masked LM, in training mode, of any BERT checkpoint, and whether the checkpoint had a masked-LM head.

    Parts that the checkpoint lacks (head, pooler) are drawn from the global generator.

    Raises:
        UserError: The folder holds no BERT encoder in safetensors.
    """
    config = _read_config(folder, model_types=("bert",))
    shape = _model_config(BertConfig, config, folder)
    path, stored = _read_folder(folder, config)
    model = _with_weights(lambda: MaskedLM(shape), path, stored, optional=("cls.", "bert.pooler."))
    return model, MASKED_LM_HEAD in stored


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file; UserError if it is damaged or holds anything but finite weights."""
    try:
        stored = load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError) as error:  # the last: unknown dtypes
        raise UserError(f"{path}: damaged ({' '.join(str(error).split()):.200}); fix: get the file again") from None
    for name, tensor in stored.items():
        if name not in INTEGER_BUFFERS and not (tensor.is_floating_point() and tensor.float().isfinite().all()):
            kind = "NaN or infinity" if tensor.is_floating_point() else str(tensor.dtype)
            raise UserError(
                f"{path}: {name[:80]!r} is no weight (got {kind}); allowed: finite floats; fix: get it again"
            )
    return stored


def write_provenance(entries: Sequence[dict[str, Any]], folder: str | Path) -> None:
    """Writes how a model was trained beside it, if anything is known: one entry for each stage it went through."""
    if entries:
        write_json(Path(folder) / PROVENANCE_FILE, list(entries))


def read_provenance(folder: str | Path) -> list[dict[str, Any]]:
    """The entries in the order of training; none for a model without a record."""
    path = Path(folder) / PROVENANCE_FILE
    return read_json(path) if path.is_file() else []


def _read_config(folder: str | Path, *, model_types: tuple[str, ...] = ALLOWED_VALUES["model_type"]) -> dict:
    """The folder's config.json, if it describes a model of these types that is supported."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise UserError(f"{path}: absent; fix: name a folder with config.json and model.safetensors")
    try:
        config = read_json(path)
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); fix: get the file again") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: not a JSON object; fix: get the file again")
    for key, allowed in (ALLOWED_VALUES | {"model_type": model_types}).items():
        if config.get(key, allowed[0]) not in allowed:
            names, found = " or ".join(allowed), f"{config[key]!r:.40}"
            raise UserError(f"{path}: {key}: not supported (got {found}); allowed: {names}; fix: choose another model")
    return config


def _model_config(kind: type[OneConfig], config: dict, folder: str | Path) -> OneConfig:
    """The fields of config.json that the computation depends on, each within its range."""
    known = {field.name: config[field.name] for field in fields(kind) if field.name in config}
    for name, value in known.items():
        types, least, greatest = RANGES.get(name, SIZE)
        if type(value) not in types or not least <= value <= greatest:
            number = "numbers" if float in types else "integers"
            raise UserError(
                f"{folder}/config.json: {name}: out of range (got {value!r:.40}); allowed: {number} from {least} to "
                f"{greatest}; fix: correct the file, or choose another model"
            )
    try:
        return kind(**known)
    except (TypeError, UserError) as error:  # a required field is missing, or two do not fit together
        raise UserError(f"{folder}/config.json: {error}".replace(f"{kind.__name__}.__init__() ", "")) from None


def _architecture(config: dict) -> str | None:
    """The class that config.json names, if any."""
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


def _label_names(folder: str | Path, config: dict) -> tuple[str, ...]:
    """The class names in the order of the logits."""
    names = config.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})  # Hugging Face writes none for two classes
    if not isinstance(names, dict) or not names or set(names) != {str(number) for number in range(len(names))}:
        raise UserError(f"{folder}/config.json: id2label: must name the classes 0, 1 and so on; fix: correct the file")
    return tuple(str(names[str(number)]) for number in range(len(names)))


def _classifier_builder(
    folder: str | Path, config: dict, labels: tuple[str, ...], *, pair: bool
) -> Callable[[], Classifier]:
    """A function that makes the classifier described by config.json with new weights."""
    if config.get("model_type") == BiLstmClassifier.model_type:
        lstm = _model_config(BiLstmConfig, config, folder)
        return lambda: BiLstmClassifier(lstm, labels, pair=pair)
    bert = _model_config(BertConfig, config, folder)
    return lambda: SequenceClassifier(bert, labels)


def _read_folder(folder: str | Path, config: dict) -> tuple[Path, dict[str, Tensor]]:
    """The file of the folder's weights, and the weights under our names."""
    path = Path(folder) / "model.safetensors"
    if not path.is_file():
        raise UserError(
            f"{path}: absent; allowed: safetensors, no pickles; fix: load the model once with transformers, "
            "write it with save_pretrained, and name that folder"
        )
    stored = read_weights(path)
    is_bert = config.get("model_type") != BiLstmClassifier.model_type
    return path, {_our_name(name): tensor for name, tensor in stored.items()} if is_bert else stored


def _our_name(name: str) -> str:
    """Encoder-only checkpoints lack the prefix; the oldest ones name a layer norm's weights gamma and beta."""
    name = name if name.startswith(("bert.", *HEADS)) else f"bert.{name}"
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _with_weights(
    build: Callable[[], OneModel], path: Path, stored: dict[str, Tensor], *, optional: tuple[str, ...] = ()
) -> OneModel:
    """The model that `build` makes with the weights of `path`; names that begin with `optional` may be missing."""
    with torch.device("meta"):  # so that a wrong config.json is found before its model takes memory
        shapes = build().state_dict()
    if missing := sorted(name for name in shapes.keys() - stored.keys() if not name.startswith(optional)):
        raise UserError(f"{path}: lacks {missing[0]} and {len(missing) - 1} more weights; fix: get the file again")
    for name in (name for name in shapes if name in stored):  # in the model's order
        found, expected = tuple(stored[name].shape), tuple(shapes[name].shape)
        if found != expected:
            raise UserError(f"{path}: {name}: wrong shape (got {found}); allowed: {expected}, by config.json; "
                            "fix: get both files from one model")  # fmt: skip
    model = build()
    model.load_state_dict(model.state_dict() | {name: stored[name] for name in shapes.keys() & stored.keys()})
    return model
