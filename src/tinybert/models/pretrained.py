"""BERT checkpoints of others, from the Hub or a folder: pretrained ones, and classifiers fine-tuned on a task."""

from collections.abc import Callable
from pathlib import Path

from tinybert import paths
from tinybert.errors import UserError
from tinybert.hub import hub_folder
from tinybert.models.bert import BertConfig, MaskedLM, SequenceClassifier
from tinybert.models.folder import (
    OneModel,
    architecture_of,
    label_names,
    model_config,
    read_config,
    read_weights,
    refuse_other_shapes,
    without_memory,
)

CHECKPOINT_FILES = ["config.json", "model.safetensors"]
HEAD = "cls.predictions.transform.dense.weight"


def checkpoint_folder(source, *, key: str) -> Path:
    """Where a checkpoint lies that the section `key` of params names by `folder` or by `hub`, which is downloaded."""
    if source.hub:
        fix = f"check {key}.hub.model and {key}.hub.revision, or name a folder by {key}.folder"
        return hub_folder(source.hub, CHECKPOINT_FILES, key=key, fix=fix)
    folder = paths.given(source.folder)
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
    model, names = _with_weights(lambda: MaskedLM(config), folder, optional=("cls.", "bert.pooler."))
    return model, HEAD in names


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
    return _with_weights(lambda: SequenceClassifier(shape, labels), Path(folder))[0].eval()


def _with_weights(
    build: Callable[[], OneModel], folder: Path, *, optional: tuple[str, ...] = ()
) -> tuple[OneModel, set[str]]:
    """The model that `build` makes with the checkpoint's weights, and the names of all it holds.

    It may lack what `optional` begins.
    """
    path = folder / "model.safetensors"
    if not path.is_file():
        raise UserError(
            f"{path}: absent; only safetensors are read, no pickles: load the model once with transformers, "
            "write it with save_pretrained, and give the folder with that"
        )
    stored = {_our_name(name): tensor.float() for name, tensor in read_weights(path).items()}
    shapes = without_memory(build).state_dict()
    if missing := sorted(name for name in shapes.keys() - stored.keys() if not name.startswith(optional)):
        raise UserError(f"{path}: lacks {missing[0]} and {len(missing) - 1} more weights; it holds no whole BERT")
    refuse_other_shapes(path, stored, shapes)
    model = build()
    wanted = model.state_dict()
    model.load_state_dict(wanted | {name: stored[name] for name in wanted.keys() & stored.keys()})
    return model, set(stored)


def _our_name(name: str) -> str:
    """Checkpoints of the encoder alone lack the prefix; the oldest call a layer norm's weights gamma and beta."""
    name = name if name.startswith(("bert.", "cls.", "classifier.")) else f"bert.{name}"
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
