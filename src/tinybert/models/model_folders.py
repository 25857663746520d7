"""Model folders in Hugging Face's format, ours and published ones: config.json, model.safetensors, training.json.

Folders may be third-party: everything read is checked, pickles are never opened, and each mistake is one line.
"""

import json
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save, save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tinybert.config.fields import read_config
from tinybert.config.tasks import Task
from tinybert.models.bert import BertConfig, MaskedLM, SequenceClassifier
from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig
from tinybert.models.foreign import OWN_TOKENIZER, RELATIVES, ForeignClassifier, PredictedTeacher, as_bert
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import one_line, read_json, write_file, write_json

PROVENANCE_FILE = "training.json"
OBJECTIVE_FILE = "objective.safetensors"  # the parameters that its losses learned
HEADS = ("cls.", "classifier.")  # what the names of a head's weights begin with
MASKED_LM_HEAD = "cls.predictions.transform.dense.weight"
INTEGER_BUFFER = "embeddings.position_ids"  # in older files; not a weight
# What the computation supports; the first value is Hugging Face's default.
ALLOWED_VALUES: dict[str, tuple] = {
    "hidden_act": ("gelu",),
    "activation": ("gelu",),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
}

Classifier = SequenceClassifier | BiLstmClassifier
TaskModel = Classifier | ForeignClassifier | PredictedTeacher
OwnModel = MaskedLM | Classifier
Model = MaskedLM | TaskModel
OneModel = TypeVar("OneModel", bound=OwnModel)
CLASSIFIERS: dict[str, type[Classifier]] = {kind.architecture: kind for kind in (SequenceClassifier, BiLstmClassifier)}
KINDS: dict[str, type[OwnModel]] = {MaskedLM.architecture: MaskedLM, **CLASSIFIERS}


def save_model(model: Model, folder: str | Path) -> None:
    """Writes a model in float32 into an existing folder; transformers loads the folder of a BERT too."""
    if isinstance(model, (ForeignClassifier, PredictedTeacher)):
        return model.save(folder)
    config: dict[str, Any] = {"architectures": [model.architecture], "model_type": model.model_type, "dtype": "float32"}
    config |= {"pair": model.pair} if isinstance(model, BiLstmClassifier) else {"hidden_act": "gelu"}
    config |= {key: value for key, value in asdict(model.config).items() if value is not None}
    if isinstance(model, Classifier):
        config["id2label"] = {str(index): label for index, label in enumerate(model.labels)}
        config["label2id"] = {label: index for index, label in enumerate(model.labels)}
        kind = "regression" if len(model.labels) == 1 else model.config.problem_type
        config["problem_type"] = kind or "single_label_classification"
    write_json(Path(folder) / "config.json", config)
    tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})


def copy_model(source: str | Path, folder: str | Path) -> None:
    """Copies a model folder into the existing `folder`, without the parameters that its losses learned."""
    ignore = shutil.ignore_patterns(OBJECTIVE_FILE)
    # File modes are not copied, because safetensors files are readable for their owner only.
    shutil.copytree(source, folder, ignore=ignore, copy_function=shutil.copyfile, dirs_exist_ok=True)


def convert_pickle(folder: str | Path) -> Path:
    """Writes the weights of pytorch_model.bin as model.safetensors beside it; UserError if it holds anything else.

    PyTorch unpickles tensors only: no code of the file is run.
    """
    source, target = Path(folder) / "pytorch_model.bin", Path(folder) / "model.safetensors"
    if target.exists():
        raise UserError(f"{target}: exists; fix: nothing is left to do, or remove it first")
    try:
        with warnings.catch_warnings(action="ignore"):  # of files that are refused anyway
            stored = torch.load(source, map_location="cpu", weights_only=True)
            parts = stored.items() if isinstance(stored, dict) else ()
            # Tied weights lie in one place.
            tensors = {str(name): part.contiguous().clone() for name, part in parts if isinstance(part, Tensor)}
            content = save(tensors, metadata={"format": "pt"})
    except FileNotFoundError:
        raise UserError(f"{source}: absent; fix: name a folder with pytorch_model.bin") from None
    except Exception as error:  # of many types; sparse tensors fail too
        reason = one_line(error).partition(". ")[0]
        raise UserError(f"{source}: no file of weights ({reason:.150}); fix: choose another model") from None
    if not tensors or len(tensors) < len(stored):
        raise UserError(f"{source}: holds more than weights by name; allowed: a state_dict; fix: choose another model")
    write_file(target, content)
    return target


def load_model(folder: str | Path, allowed: Iterable[str] = KINDS) -> OwnModel:
    """The model that config.json names: in evaluation mode, float32, on the CPU.

    UserError for an architecture that is not `allowed`, and for missing or damaged config.json or weights.
    """
    config, weights = _read_folder(folder)
    names = config.get("architectures")
    for name in allowed:
        if isinstance(names, list) and names[:1] == [name]:
            return _build(KINDS[name], folder, config, weights).eval()
    raise _unsupported(folder, names, ", ".join(allowed))


def _unsupported(folder: str | Path, names: Any, allowed: str) -> UserError:
    found = f"not supported here (got {names!r:.80})"
    return UserError(f"{folder}/config.json: architectures: {found}; allowed: {allowed}; fix: choose another model")


def load_bert(kind: type[OneModel], folder: str | Path) -> OneModel:
    """As load_model, but UserError for any model other than a `kind`."""
    return cast(OneModel, load_model(folder, [kind.architecture]))


def load_any_bert(folder: str | Path) -> SequenceClassifier:
    """A sequence classifier of a BERT or one of its relatives, with the same logits; UserError like `load_model`."""
    if read_config(folder).get("model_type", "bert") == "bert":
        return load_bert(SequenceClassifier, folder)
    stored, weights = _read_folder(folder, ("bert", *RELATIVES))
    relative, names = RELATIVES[stored["model_type"]], stored.get("architectures")
    if not str(names).endswith("ForSequenceClassification']"):
        raise _unsupported(folder, names, "...ForSequenceClassification")
    try:
        config, weights = as_bert(relative, stored, weights)
    except UserError as error:
        raise UserError(f"{folder}/config.json: {error}") from None
    model = _build(SequenceClassifier, folder, config, weights).eval()
    model.pooler_activation = relative.activation
    return model


def load_task_model(folder: str | Path) -> Classifier:
    """As load_model, but UserError for a masked LM."""
    return cast(Classifier, load_model(folder, CLASSIFIERS))


def load_classifier(folder: str | Path, task: Task) -> Classifier:
    """A classifier of the task, in training mode, with the encoder of any model.

    The head, and a pooler that the folder lacks, come from the global generator. Raises UserError like `load_model`.
    """
    config, weights = _read_folder(folder)
    names = {str(number): label for number, label in enumerate(task.outputs)}
    config |= {"pair": task.is_pair, "id2label": names, "problem_type": task.problem_type}
    encoder = {name: tensor for name, tensor in weights.items() if not name.startswith(HEADS)}
    kind: type[Classifier] = BiLstmClassifier if config.get("model_type") == "bilstm" else SequenceClassifier
    return _build(kind, folder, config, encoder, optional=(*HEADS, "bert.pooler."))


def load_pretrained(folder: str | Path) -> tuple[MaskedLM, bool]:
    """The masked LM, in training mode, of any folder with a BERT, and whether the folder had a masked-LM head.

    Parts that the folder lacks (head, pooler) are drawn from the global generator; UserError without an encoder.
    """
    config, weights = _read_folder(folder, ("bert",))
    config["problem_type"] = None  # of a classifier that the encoder comes from
    return _build(MaskedLM, folder, config, weights, optional=("cls.", "bert.pooler.")), MASKED_LM_HEAD in weights


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file; UserError if it is damaged or holds anything but finite weights."""
    try:
        stored = load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError) as error:  # the last: unknown dtypes
        raise UserError(f"{path}: damaged ({one_line(error):.200}); fix: get the file again") from None
    for name, tensor in stored.items():
        if not name.endswith(INTEGER_BUFFER) and not (tensor.is_floating_point() and tensor.float().isfinite().all()):
            kind = "NaN or infinity" if tensor.is_floating_point() else str(tensor.dtype)
            raise UserError(f"{path}: {name[:80]!r}: no weight (got {kind}); allowed: finite floats; fix: get it again")
    return stored


def read_provenance(folder: str | Path) -> list[dict[str, Any]]:
    """One entry for each stage that a model went through, in the order of training; none without a record."""
    path = Path(folder) / PROVENANCE_FILE
    return read_json(path) if path.is_file() else []


def _read_folder(
    folder: str | Path, model_types: tuple[str, ...] = ("bert", "bilstm")
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and the weights under our names, if the model has one of these types and is supported."""
    path, weights, config = Path(folder) / "config.json", Path(folder) / "model.safetensors", read_config(folder)
    if config.get(OWN_TOKENIZER):
        raise UserError(f"{path}: a task teacher with its own vocabulary; allowed: students; fix: name no teacher")
    for key, allowed in ({"model_type": model_types} | ALLOWED_VALUES).items():
        if config.get(key, allowed[0]) not in allowed:
            names, found = " or ".join(map(str, allowed)), f"{config[key]!r:.40}"
            fix = "choose another model; other families can be teachers (tasks.<task>.finetuned_teacher)"
            raise UserError(f"{path}: {key}: not supported (got {found}); allowed: {names}; fix: {fix}")
    if not weights.is_file():
        fix = "run tinybert convert on a folder with pytorch_model.bin, and name that folder"
        raise UserError(f"{weights}: absent; allowed: safetensors, no pickles; fix: {fix}")
    stored = read_weights(weights)
    is_bert = config.get("model_type", "bert") == "bert"
    return config, {_our_name(key, is_bert): stored[key] for key in stored}


def _our_name(name: str, is_bert: bool) -> str:
    """Files of an encoder alone lack the prefix; the oldest ones name a layer norm's weights gamma and beta."""
    name = f"bert.{name}" if is_bert and not name.startswith(("bert.", *HEADS)) else name
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _build(
    kind: type[OneModel], folder: str | Path, config: dict[str, Any], weights: dict[str, Tensor], optional: tuple = ()
) -> OneModel:
    """A `kind` as config.json describes it with the stored weights; names that begin with `optional` may be missing."""
    arguments, path = _arguments(kind, config, Path(folder) / "config.json"), Path(folder) / "model.safetensors"
    with torch.device("meta"), _NoRandomWeights():  # a wrong config.json is found before its model takes memory
        shapes = kind(**arguments).state_dict()
    if missing := sorted(name for name in shapes.keys() - weights.keys() if not name.startswith(optional)):
        raise UserError(f"{path}: lacks {missing[0]} and {len(missing) - 1} more weights; fix: get it again")
    for name, expected in shapes.items():  # in the model's order
        if name in weights and weights[name].shape != expected.shape:
            found, allowed = tuple(weights[name].shape), tuple(expected.shape)
            fix = "get this file and config.json from one model"
            raise UserError(f"{path}: {name}: wrong shape (got {found}); allowed: {allowed}; fix: {fix}")
    model = kind(**arguments)
    model.load_state_dict(weights, strict=False)  # what is missing keeps its new weights
    return model


class _NoRandomWeights(TorchFunctionMode):
    """Skips drawing weights: on the meta device it imports PyTorch's compiler, which takes more than a second."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return None if func.__name__ in ("normal_", "uniform_", "kaiming_uniform_") else func(*args, **(kwargs or {}))


def class_names(config: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """The classes that the config.json at `path` names, in the order of the logits; UserError if it does not."""
    names = config.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})  # Hugging Face writes none for two classes
    if not isinstance(names, dict) or not names or set(names) != set(map(str, range(len(names)))):
        raise UserError(f"{path}: id2label: must name the classes 0, 1 and so on; fix: correct the file")
    found = tuple(str(names[str(number)]) for number in range(len(names)))
    if twice := next((name for name in found if found.count(name) > 1), None):
        raise UserError(f"{path}: id2label: two classes have one name (got {twice!r:.40}); fix: correct the file")
    return found


def _arguments(kind: type, config: dict[str, Any], path: Path) -> dict[str, Any]:
    """What a `kind` is made with, by config.json: its config, and a classifier's labels."""
    config_class = BiLstmConfig if kind is BiLstmClassifier else BertConfig
    try:
        arguments: dict[str, Any] = {"config": TypeAdapter(config_class).validate_json(json.dumps(config), strict=True)}
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:  # our own check that the fields fit together
            raise UserError(f"{path}: {first['msg'].removeprefix('Value error, ')}") from None
        found = f"{first['loc'][0]}: {first['msg']} (got {first['input']!r:.40})"
        raise UserError(f"{path}: {found}; fix: correct the file, or choose another model") from None
    if kind is MaskedLM:
        return arguments
    arguments["labels"] = class_names(config, path)
    return arguments | ({"pair": bool(config.get("pair"))} if kind is BiLstmClassifier else {})
