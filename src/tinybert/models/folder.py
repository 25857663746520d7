"""Model folders: config.json and model.safetensors, in Hugging Face's format."""

from dataclasses import fields
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tinybert.errors import UserError
from tinybert.files import read_json, write_json
from tinybert.models.bert import BertConfig, BertModel, MaskedLM, SequenceClassifier

REGRESSION_LABEL = "score"


def save_model(model: BertModel, folder: str | Path) -> None:
    """Writes `model` into the existing `folder`, float32, so that transformers loads it too."""
    config = {"architectures": [model.architecture], "model_type": "bert", "hidden_act": "gelu", "dtype": "float32"}
    config |= model.config.as_dict()
    if isinstance(model, SequenceClassifier):
        config["id2label"] = {str(index): label for index, label in enumerate(model.labels)}
        config["label2id"] = {label: index for index, label in enumerate(model.labels)}
        config["problem_type"] = "regression" if len(model.labels) == 1 else "single_label_classification"
    write_json(Path(folder) / "config.json", config)
    tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})


def load_model(folder: str | Path) -> BertModel:
    """The masked LM or classifier in `folder`, in evaluation mode, float32, on the CPU.

    UserError when the folder is none of ours: another architecture, missing files or weights.
    """
    config = read_config(folder)
    kind = (config.get("architectures") or [None])[0]
    if kind == MaskedLM.architecture:
        model = MaskedLM(bert_config(config, folder))
    elif kind == SequenceClassifier.architecture:
        names = config.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})  # two classes need no entry
        model = SequenceClassifier(bert_config(config, folder), tuple(names[str(i)] for i in range(len(names))))
    else:
        raise UserError(
            f"{folder}/config.json: architecture {kind!r} cannot be used here; "
            f"{MaskedLM.architecture} and {SequenceClassifier.architecture} can"
        )
    load_weights(model, folder)
    return model.eval()


def load_classifier(folder: str | Path, labels: tuple[str, ...] | None) -> SequenceClassifier:
    """A classifier with the encoder of the masked LM in `folder` and a new head from the global generator.

    labels: the class names; None for a regression, whose head has one output.
    """
    model = SequenceClassifier(bert_config(read_config(folder), folder), labels or (REGRESSION_LABEL,))
    load_weights(model, folder, head=False)
    return model


def load_weights(model: BertModel, folder: str | Path, *, head: bool = True) -> None:
    """Copies the folder's weights into `model`; without `head` only those of the encoder."""
    path = Path(folder) / "model.safetensors"
    if not path.is_file():
        raise UserError(f"{path}: absent; a model folder holds config.json and model.safetensors")
    stored = read_weights(path)
    wanted = {name for name in model.state_dict() if head or name.startswith("bert.")}
    if missing := sorted(wanted - stored.keys()):
        raise UserError(f"{path}: lacks {len(missing)} weights, the first is {missing[0]}; save the model again")
    refuse_other_shapes(path, stored, {name: model.state_dict()[name] for name in wanted})
    model.load_state_dict({name: stored[name] for name in wanted}, strict=head)


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file; UserError where it is damaged."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path}: no whole safetensors file ({' '.join(str(error).split())}); get it again") from None


def refuse_other_shapes(path: Path, stored: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """UserError where a stored tensor has not the shape that config.json makes of it."""
    for name in wanted.keys() & stored.keys():
        found, expected = tuple(stored[name].shape), tuple(wanted[name].shape)
        if found != expected:
            raise UserError(
                f"{path}: {name} has shape {found}, by config.json it is {expected}; they do not belong together"
            )


def read_config(folder: str | Path) -> dict:
    """The folder's config.json; UserError where there is none or it is no BERT of the plain kind."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise UserError(f"{path}: absent; a model folder holds config.json and model.safetensors")
    try:
        config = read_json(path)
    except ValueError as error:
        raise UserError(f"{path}: no JSON ({error}); get the file again") from None
    allowed = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
    for key, value in allowed.items():
        if config.get(key, value) != value:
            raise UserError(f"{path}: {key} is {config[key]!r}; only {value!r} can be used here; choose another model")
    return config


def bert_config(config: dict, folder: str | Path) -> BertConfig:
    """The fields of config.json that the computation depends on; UserError where one is missing."""
    known = {field.name: config[field.name] for field in fields(BertConfig) if field.name in config}
    for name, value in known.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UserError(f"{folder}/config.json: {name} is {value!r}; a number is needed")
    try:
        return BertConfig(**known)
    except TypeError as error:
        raise UserError(f"{folder}/config.json: {error}".replace("BertConfig.__init__() ", "")) from None
