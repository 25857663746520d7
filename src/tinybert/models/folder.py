"""Model folders: config.json and model.safetensors, in Hugging Face's format."""

from dataclasses import fields
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tinybert.errors import UserError
from tinybert.files import read_json, write_json
from tinybert.models.bert import BertConfig, BertModel, MaskedLM, SequenceClassifier
from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig

REGRESSION_LABEL = "score"
Config = TypeVar("Config", BertConfig, BiLstmConfig)


def save_model(model: BertModel | BiLstmClassifier, folder: str | Path) -> None:
    """Writes `model` into the existing `folder`, float32; a BERT so that transformers loads it too."""
    config = {"architectures": [model.architecture], "model_type": model.model_type, "dtype": "float32"}
    config |= {"hidden_act": "gelu"} if model.model_type == "bert" else {"pair": model.pair}
    config |= model.config.as_dict()
    if not isinstance(model, MaskedLM):
        config["id2label"] = {str(index): label for index, label in enumerate(model.labels)}
        config["label2id"] = {label: index for index, label in enumerate(model.labels)}
        config["problem_type"] = "regression" if len(model.labels) == 1 else "single_label_classification"
    write_json(Path(folder) / "config.json", config)
    tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})


def load_model(folder: str | Path) -> BertModel | BiLstmClassifier:
    """The masked LM or classifier in `folder`, in evaluation mode, float32, on the CPU.

    UserError when the folder is none of ours: another architecture, missing files or weights.
    """
    config = read_config(folder, model_types=("bert", "bilstm"))
    kind = (config.get("architectures") or [None])[0]
    if kind == MaskedLM.architecture:
        model = MaskedLM(model_config(BertConfig, config, folder))
    elif kind in (SequenceClassifier.architecture, BiLstmClassifier.architecture):
        model = _classifier(config, folder, label_names(config, folder), pair=config.get("pair"))
    else:
        raise UserError(
            f"{folder}/config.json: architecture {kind!r} cannot be used here; "
            f"{MaskedLM.architecture}, {SequenceClassifier.architecture} and {BiLstmClassifier.architecture} can"
        )
    load_weights(model, folder)
    return model.eval()


def label_names(config: dict, folder: str | Path) -> tuple[str, ...]:
    """The class names that a config.json gives, in the order of the logits."""
    names = config.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})  # two classes need no entry
    if not isinstance(names, dict) or set(names) != {str(number) for number in range(len(names))}:
        raise UserError(f"{folder}/config.json: id2label must name the classes 0, 1 and so on; correct it")
    return tuple(str(names[str(number)]) for number in range(len(names)))


def load_classifier(
    folder: str | Path, labels: tuple[str, ...] | None, *, pair: bool
) -> SequenceClassifier | BiLstmClassifier:
    """A classifier with the encoder of the model in `folder` and a new head from the global generator.

    labels: the class names; None for a regression, whose head has one output. pair: whether rows hold two sentences.
    """
    config = read_config(folder, model_types=("bert", "bilstm"))
    model = _classifier(config, folder, labels or (REGRESSION_LABEL,), pair=pair)
    load_weights(model, folder, head=False)
    return model


def _classifier(
    config: dict, folder: str | Path, labels: tuple[str, ...], *, pair: bool
) -> SequenceClassifier | BiLstmClassifier:
    if config.get("model_type") == BiLstmClassifier.model_type:
        return BiLstmClassifier(model_config(BiLstmConfig, config, folder), labels, pair=pair)
    return SequenceClassifier(model_config(BertConfig, config, folder), labels)


def load_weights(model: BertModel | BiLstmClassifier, folder: str | Path, *, head: bool = True) -> None:
    """Copies the folder's weights into `model`; without `head` only those of the encoder."""
    path = Path(folder) / "model.safetensors"
    if not path.is_file():
        raise UserError(f"{path}: absent; a model folder holds config.json and model.safetensors")
    stored = read_weights(path)
    wanted = {name for name in model.state_dict() if head or name.startswith(model.encoder_prefix)}
    if missing := sorted(wanted - stored.keys()):
        raise UserError(f"{path}: lacks {len(missing)} weights, the first is {missing[0]}; save the model again")
    refuse_other_shapes(path, stored, {name: tensor for name, tensor in model.state_dict().items() if name in wanted})
    model.load_state_dict({name: stored[name] for name in wanted}, strict=head)


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file; UserError where it is damaged."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path}: no whole safetensors file ({' '.join(str(error).split())}); get it again") from None


def refuse_other_shapes(path: Path, stored: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """UserError where a stored tensor has not the shape that config.json makes of it."""
    for name, tensor in wanted.items():
        found, expected = tuple(stored.get(name, tensor).shape), tuple(tensor.shape)
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
    allowed = {"model_type": model_types, "hidden_act": ("gelu",), "position_embedding_type": ("absolute",)}
    for key, values in allowed.items():
        if config.get(key, values[0]) not in values:
            names = " or ".join(map(repr, values))
            raise UserError(f"{path}: {key} is {config[key]!r}; only {names} can be used here; choose another model")
    return config


def model_config(kind: type[Config], config: dict, folder: str | Path) -> Config:
    """The fields of config.json that the computation depends on; UserError where one is missing."""
    known = {field.name: config[field.name] for field in fields(kind) if field.name in config}
    for name, value in known.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UserError(f"{folder}/config.json: {name} is {value!r}; a number is needed")
    try:
        return kind(**known)
    except TypeError as error:
        raise UserError(f"{folder}/config.json: {error}".replace(f"{kind.__name__}.__init__() ", "")) from None
