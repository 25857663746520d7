"""Reading params.yaml: checked as a whole, one line for each mistake, then only what a stage declares."""

import reprlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from tinybert.config.schema import Params
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.text_lines import printable

LINES = 20  # mistakes that are told at once
LINE_CHARACTERS = 400
KEY_CHARACTERS = 60


def load_params(path: str | Path = "params.yaml") -> Params:
    """Reads and checks a whole params file; UserError with one line for each mistake."""
    try:
        tree = YAML(typ="safe").load(Path(path))  # YAML 1.2, as DVC reads it: 5e-5 is a number
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except Exception as error:  # beside its own, the library passes on those of int(), float(), datetime(), ...
        raise UserError(_cut(f"{path}: no valid YAML: {_yaml_mistake(error)}")) from None
    return check_params(tree, path)


def check_params(tree: Any, path: str | Path = "params.yaml") -> Params:
    """The checked form of a plain tree; UserError with one line for each mistake."""
    if not isinstance(tree, dict):
        raise UserError(f"{path}: must be a mapping of keys to values")
    try:
        return Params.model_validate(tree)
    except ValidationError as error:
        lines = list(dict.fromkeys(_cut(f"{path}: {_line(item)}") for item in error.errors()))
        more = [f"{path}: and {len(lines) - LINES} more mistakes"] if len(lines) > LINES else []
        raise UserError("\n".join(lines[:LINES] + more)) from None


def _yaml_mistake(error: Exception) -> str:
    """What is wrong and where, without the library's advice to programmers."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, MarkedYAMLError) and error.problem and error.problem_mark:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {printable(error.problem)}"
    return printable(" ".join(str(error).split())) or type(error).__name__


def _line(item: ErrorDetails) -> str:
    """One mistake as one line: key path, value, what is allowed."""
    key = ".".join(_shown_key(part) for part in item["loc"] if part not in KEY_TAGS)
    message = item["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if item["type"] == "extra_forbidden":
        return f"{key}: unknown key; check its spelling, or remove it"
    if item["type"] == "missing":
        return f"{key}: missing; add it (params.yaml of the default shows its place)"
    if item["type"] == "value_error" and isinstance(item["input"], (dict, BaseModel)):
        return f"{key}: {message}" if key else message
    where = f"{key}: " if key else ""  # a key that is no text has no path
    return f"{where}{_shown(item['input'])} {PLAIN_MESSAGES.get(item['type'], message)}"


PLAIN_MESSAGES = {
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "invalid_key": "is no text; keys are names",
    "string_unicode": "holds half a surrogate pair; write the character whole",
    "string_pattern_mismatch": "must be lower-case letters, digits and _, a letter first",
}


# Pydantic puts "[key]" into the path of a mapping's mistaken key, and a form's tag where there are several.
KEY_TAGS = {"[key]", "[named]", "[learnable]", "[bert]", "[bilstm]"}


def _shown_key(part: Any) -> str:
    """A key as a part of a path: it may be of any type and any length."""
    text = printable(part) if isinstance(part, str) else _shown(part)
    return text if len(text) <= KEY_CHARACTERS else f"{text[:KEY_CHARACTERS]}…"


def _shown(value: Any) -> str:
    """A value on a line: shortened, for aliases let a few bytes stand for gigabytes."""
    try:
        return printable(SHORT.repr(value))
    except ValueError:
        return "a number of thousands of digits"  # more than Python prints


SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = SHORT.maxlong = KEY_CHARACTERS


def _cut(line: str) -> str:
    return line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]}…"


class StageParams:
    """Read access to those parts of checked params that a stage declares, by the same dotted paths.

    What is not declared in dvc.yaml raises UserError: DVC would not rerun the stage when it changes.
    """

    def __init__(self, node: Any, declared: Iterable[str | tuple[str, ...]], path: tuple[str, ...] = ()) -> None:
        self._node, self._path = node, path
        self._declared = [tuple(key.split(".")) if isinstance(key, str) else key for key in declared]

    def __getitem__(self, key: str) -> Any:
        path = (*self._path, key)
        value = self._node[key] if isinstance(self._node, dict) else getattr(self._node, key)
        if any(path[: len(known)] == known for known in self._declared):
            return value
        if any(known[: len(path)] == path for known in self._declared):
            return StageParams(value, self._declared, path)
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
