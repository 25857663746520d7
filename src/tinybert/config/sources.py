"""Models of third parties: the folder that params name, and its config.json."""

from pathlib import Path
from typing import Any

from tinybert.config.fields import ModelSource
from tinybert.config.students import Init
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_json
from tinybert.pipeline.hub import hub_folder

CHECKPOINT_FILES = ("config.json", "model.safetensors")
# Of any model: weights may be in several files, and tokenizers are in files of many names.
ALL_FILES = ("*.json", "model*.safetensors", "*.txt", "*.model")


def checkpoint_folder(source: ModelSource | Init, *, key: str, files: tuple[str, ...] = CHECKPOINT_FILES) -> Path:
    """The folder that a section `key` of params names, by `hub` after downloading `files`; UserError if none."""
    if source.hub:
        fix = f"check {key}.hub.model and {key}.hub.revision, or use a folder instead"
        return hub_folder(source.hub.model, source.hub.revision, list(files), key=key, fix=fix)
    folder = paths.resolve(source.folder or "")
    if not folder.is_dir():
        raise UserError(f"{key}.folder: not a folder (got {source.folder!r}); fix: correct the path")
    return folder


def read_config(folder: str | Path) -> dict[str, Any]:
    """The content of config.json; UserError if it is missing or not a JSON object."""
    path = Path(folder) / "config.json"
    try:
        config = read_json(path)
    except OSError:
        raise UserError(f"{path}: absent; fix: name a folder with config.json and model.safetensors") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); fix: get the file again") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: not a JSON object; fix: get the file again")
    return config
