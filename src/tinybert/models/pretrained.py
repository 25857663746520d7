"""BERT checkpoints of others, from the Hub or a folder: pretrained ones, and classifiers fine-tuned on a task."""

from pathlib import Path

from torch import Tensor

from tinybert.models.bert import BertConfig, MaskedLM, SequenceClassifier
from tinybert.models.checkpoints import (
    architecture_of,
    label_names,
    model_config,
    read_config,
    read_weights,
    with_weights,
)
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.hub import hub_folder

CHECKPOINT_FILES = ["config.json", "model.safetensors"]
HEAD = "cls.predictions.transform.dense.weight"


def checkpoint_folder(source, *, key: str) -> Path:
    """Where a checkpoint lies that the section `key` of params names by `folder` or by `hub`, which is downloaded."""
    if source.hub:
        fix = f"check {key}.hub.model and {key}.hub.revision, or name a folder by {key}.folder"
        return hub_folder(source.hub, CHECKPOINT_FILES, key=key, fix=fix)
    folder = paths.resolve(source.folder)
    if not folder.is_dir():
        raise UserError(f"{key}.folder: {source.folder!r} is no folder; correct the path")
    return folder


def load_pretrained(folder: str | Path) -> tuple[MaskedLM, bool]:
    """The masked LM in a folder of any BERT checkpoint, and whether the checkpoint had a masked-LM head.

    Parts that the checkpoint lacks (head, pooler) start from the global generator. UserError when the
    folder holds no BERT encoder in safetensors.
    """
    folder = Path(folder)
    config = model_config(BertConfig, read_config(folder), folder)
    stored, path = _weights_in(folder)
    return with_weights(lambda: MaskedLM(config), stored, path, optional=("cls.", "bert.pooler.")), HEAD in stored


def load_finetuned(folder: str | Path) -> SequenceClassifier:
    """The classifier in a folder of any fine-tuned BERT checkpoint, float32, in evaluation mode.

    UserError when the folder holds no BertForSequenceClassification in safetensors.
    """
    config = read_config(folder)
    kind = architecture_of(config)
    if kind != SequenceClassifier.architecture:
        raise UserError(
            f"{folder}/config.json: architecture {kind!r} is no fine-tuned BERT; "
            f"choose a model that is a {SequenceClassifier.architecture}"
        )
    shape, labels = model_config(BertConfig, config, folder), label_names(config, folder)
    return with_weights(lambda: SequenceClassifier(shape, labels), *_weights_in(Path(folder))).eval()


def _weights_in(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """The checkpoint's weights under our names, and their file."""
    path = folder / "model.safetensors"
    if not path.is_file():
        raise UserError(
            f"{path}: absent; only safetensors are read, no pickles: load the model once with transformers, "
            "write it with save_pretrained, and give the folder with that"
        )
    return {_our_name(name): tensor for name, tensor in read_weights(path).items()}, path


def _our_name(name: str) -> str:
    """Checkpoints of the encoder alone lack the prefix; the oldest call a layer norm's weights gamma and beta."""
    name = name if name.startswith(("bert.", "cls.", "classifier.")) else f"bert.{name}"
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
