"""Building blocks of params.yaml's schema: checked types, sections that several others use, folders of models."""

import math
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_json
from tinybert.pipeline.hub import hub_access, with_retries

# Numbers beyond these limits are typing errors: they would exhaust memory or overflow in some stage.
HUGE = 10**9
FILE_NAME_BYTES = 255
PositiveInt = Annotated[int, Field(ge=1, le=HUGE)]
NonNegativeInt = Annotated[int, Field(ge=0, le=HUGE)]
SmallPositiveInt = Annotated[int, Field(ge=1, le=1000)]  # layers, threads and the like
Width = Annotated[int, Field(ge=1, le=10**6)]
Real = Annotated[float, Field(le=HUGE, allow_inf_nan=False)]
NonNegative = Annotated[Real, Field(ge=0)]
AboveZero = Annotated[Real, Field(gt=0)]
Fraction = Annotated[Real, Field(ge=0, le=1)]
Percent = Annotated[int, Field(ge=1, le=99)]
PositiveFraction = Annotated[Real, Field(gt=0, le=1)]
Dropout = Annotated[Real, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
RowTokens = Annotated[int, Field(ge=8, le=512)]
# A name becomes part of stage names, commands and paths.
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
Source = Literal["synthetic", "hub", "local"]
MODEL_FILES = ("config.json", "model.safetensors")
# Of any model: weights may be in several files, and tokenizers are in files of many names.
ALL_FILES = ("*.json", "model*.safetensors", "*.txt", "*.model")


def _check_readable(text: str) -> str:
    """The text, which names a file or a model, or is searched for in a corpus."""
    if not text.strip() or not text.replace("\u00a0", " ").isprintable():  # spreadsheets write no-break spaces
        raise ValueError("must be text without line breaks and control characters")
    if any(len(part.encode()) > FILE_NAME_BYTES for part in text.split("/")) or len(text) > 4 * FILE_NAME_BYTES:
        raise ValueError(f"must be at most {FILE_NAME_BYTES} bytes long, as file names are")
    return text


NonEmptyStr = Annotated[str, Field(min_length=1), AfterValidator(_check_readable)]

Item = TypeVar("Item")
# A list in the file becomes a tuple, which nobody can change.
ListOf = Annotated[tuple[Item, ...], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)]
NonEmptyList = Annotated[ListOf[Item], Field(min_length=1)]


def _check_unique(items: tuple) -> tuple:
    """The items of a matrix axis; one that is listed twice would be a stage instance twice."""
    if twice := [item for item in items if items.count(item) > 1]:
        raise ValueError(f"{twice[0]} is listed twice; fix: list it once")
    return items


UniqueOrEmpty = Annotated[ListOf[Item], AfterValidator(_check_unique)]
UniqueList = Annotated[UniqueOrEmpty[Item], Field(min_length=1)]


class ConfigModel(BaseModel):
    """A section of params.yaml: frozen, without unknown keys and silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="after")
    def _run_check(self) -> Self:
        self.check()
        return self

    def check(self) -> None:
        """Raises ValueError if the values of the section do not fit together; its text may begin with a key."""


class Training(ConfigModel):
    """Length and speed of one training run; `batch_size` is that of an optimizer step, over all processes."""

    epochs: NonNegativeInt
    max_steps: PositiveInt | None
    batch_size: PositiveInt
    learning_rate: AboveZero  # the peak, after warm-up
    schedule: Literal["linear", "constant"] = "linear"
    accumulation_steps: PositiveInt = 1

    def steps(self, batches: float) -> float:
        """Optimizer steps: all epochs of `batches` batches, or max_steps if that is less."""
        return min(self.epochs * batches, self.max_steps or math.inf)


class HubModel(ConfigModel):
    """A model on the Hub; `revision` is a commit, a tag or a branch."""

    model: NonEmptyStr
    revision: NonEmptyStr


class LocalFolder(ConfigModel):
    folder: NonEmptyStr


class HubDataset(ConfigModel):
    dataset: NonEmptyStr
    revision: NonEmptyStr


class ModelSource(ConfigModel):
    """A third-party model, in a folder or on the Hub."""

    folder: NonEmptyStr | None = None
    hub: HubModel | None = None

    def check(self) -> None:
        if (self.folder is None) == (self.hub is None):
            raise ValueError("must be {folder: path} or {hub: {model: name, revision: commit}}")


def source_folder(source: ModelSource, *, key: str, files: tuple[str, ...] = MODEL_FILES) -> Path:
    """The folder that a section `key` of params names, by `hub` after downloading `files`; UserError if none."""
    if source.hub:
        model, revision = source.hub.model, source.hub.revision
        fix = f"check {key}.hub.model and {key}.hub.revision, or use a folder instead"
        with hub_access(f"{key}.hub.model", f"{model} ({revision})", fix=fix):
            from huggingface_hub import snapshot_download

            return Path(with_retries(partial(snapshot_download, model, revision=revision, allow_patterns=list(files))))
    folder = paths.resolve(source.folder or "")
    if not folder.is_dir():
        raise UserError(f"{key}.folder: not a folder (got {source.folder!r}); fix: correct the path, or add it")
    return folder


def read_config(folder: str | Path, name: str = "config.json") -> dict[str, Any]:
    """The content of config.json, or of another such file; UserError if it is missing or not a JSON object."""
    path = Path(folder) / name
    try:
        config = read_json(path)
    except OSError:
        raise UserError(f"{path}: absent; fix: name a folder with config.json and model.safetensors") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); fix: get the file again") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: not a JSON object; fix: get the file again")
    return config


class Architecture(ConfigModel):
    """The shape of a BERT."""

    kind: Literal["bert"] = "bert"
    layers: SmallPositiveInt
    width: Width
    heads: SmallPositiveInt
    feed_forward: Width
    dropout: Dropout

    def check(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"heads: must divide width (got {self.heads} and {self.width}); fix: change one of them")


class BiLstmArchitecture(ConfigModel):
    """The shape of a BiLSTM classifier; `width` is that of one LSTM direction."""

    kind: Literal["bilstm"]
    layers: SmallPositiveInt
    embedding: Width
    width: Width
    feed_forward: Width
    dropout: Dropout


def _kind(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return "[bilstm]" if kind == "bilstm" else "[bert]"


StudentArchitecture = Annotated[
    Annotated[Architecture, Tag("[bert]")] | Annotated[BiLstmArchitecture, Tag("[bilstm]")], Discriminator(_kind)
]
