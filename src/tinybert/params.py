"""Reading params.yaml: checked as a whole, one line for each mistake, then only what a stage declares."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tinybert.errors import UserError
from tinybert.schema import Params


def load_params(path: str | Path = "params.yaml") -> Params:
    """Reads and checks a whole params file; UserError with one line for each mistake."""
    try:
        tree = YAML(typ="safe").load(Path(path))  # YAML 1.2, as DVC reads it: 5e-5 is a number
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except YAMLError as error:
        raise UserError(f"{path}: no valid YAML: {' '.join(str(error).split())}") from None
    return check_params(tree, path)


def check_params(tree: Any, path: str | Path = "params.yaml") -> Params:
    """The checked form of a plain tree; UserError with one line for each mistake."""
    if not isinstance(tree, dict):
        raise UserError(f"{path}: must be a mapping of keys to values")
    try:
        return Params.model_validate(tree)
    except ValidationError as error:
        raise UserError("\n".join(dict.fromkeys(f"{path}: {_line(item)}" for item in error.errors()))) from None


def _line(item: dict) -> str:
    """One mistake as one line: key path, value, what is allowed."""
    key = ".".join(str(part) for part in item["loc"] if not _is_key_tag(part))
    message = item["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if item["type"] == "extra_forbidden":
        return f"{key}: unknown key; check its spelling, or remove it"
    if item["type"] == "missing":
        return f"{key}: missing; add it (params.yaml of the default shows its place)"
    if item["type"] == "value_error" and isinstance(item["input"], (dict, BaseModel)):
        return f"{key}: {message}" if key else message
    return f"{key}: {item['input']!r} {PLAIN_MESSAGES.get(item['type'], message)}"


PLAIN_MESSAGES = {
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "string_pattern_mismatch": "must be lower-case letters, digits and _, a letter first",
}


def _is_key_tag(part: Any) -> bool:
    """Pydantic puts "[key]" into the path of a mapping's mistaken key, and a form's tag where there are several."""
    return isinstance(part, str) and part.startswith("[")


class Declared:
    """Read access to those parts of checked params that a stage declares, by the same dotted paths.

    What is not declared in dvc.yaml raises UserError: DVC would not rerun the stage when it changes.
    """

    def __init__(self, node: Any, declared: Iterable[str], path: tuple[str, ...] = ()) -> None:
        self._node, self._path = node, path
        self._declared = [tuple(key.split(".")) if isinstance(key, str) else key for key in declared]

    def __getitem__(self, key: str) -> Any:
        path = (*self._path, key)
        value = self._node[key] if isinstance(self._node, dict) else getattr(self._node, key)
        if any(path[: len(known)] == known for known in self._declared):
            return value
        if any(known[: len(path)] == path for known in self._declared):
            return Declared(value, self._declared, path)
        raise UserError(f"dvc.yaml: the stage reads {'.'.join(path)}, which its params do not declare; add it there")

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_"):
            raise AttributeError(key)
        return self[key]


def main() -> None:
    """Checks params.yaml before a run: a mistake in a part that no stage reads anew would else go unnoticed."""
    try:
        load_params()
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
