"""Reading params.yaml: checked as a whole, one line for each mistake; a stage then sees only what it declares."""

import re
import reprlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tinybert.config.schema import Params
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import printable

REPORTED_MISTAKES = 20
LINE_CHARACTERS = 400
KEY_CHARACTERS = 60
# Pydantic puts "[key]" into the path of a mapping's invalid key, and the tag of a union's member.
PATH_TAGS = {"[key]", "[named]", "[learnable]", "[bert]", "[bilstm]"}
PLAIN_MESSAGES = {
    "missing": "missing; fix: add it as in the default params.yaml",
    "extra_forbidden": "unknown key; fix: check its spelling, or remove it",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "invalid_key": "must be text: keys are names",
    "string_unicode": "must not hold half a surrogate pair",
    "string_pattern_mismatch": "must be lower-case letters, digits and _, beginning with a letter",
}


class Yaml12Loader(yaml.SafeLoader):
    """YAML 1.2's core schema, as DVC reads it: 5e-5 is a number, on and yes are text. Duplicate keys are errors."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict:
        """The mapping of a node; ConstructorError if a key stands there twice."""
        seen: set = set()
        for key_node, _ in node.value:
            key = (key_node.tag, key_node.value) if isinstance(key_node, yaml.ScalarNode) else key_node
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key[0]}", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_int(self, node: Any) -> int:
        """An integer: a leading zero means nothing, 0o and 0x are prefixes."""
        text = self.construct_scalar(node)
        return int(text, 0) if re.match("[-+]?0[ox]", text) else int(text)


Yaml12Loader.yaml_implicit_resolvers = {}
for tag, pattern, first_characters in (
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    Yaml12Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$"), list(first_characters)
    )
Yaml12Loader.add_constructor("tag:yaml.org,2002:int", Yaml12Loader.construct_int)


def read_yaml(path: str | Path, loader: type[Yaml12Loader] = Yaml12Loader) -> Any:
    """The plain tree of a YAML file, read as DVC reads it; UserError if there is none."""
    try:
        return yaml.load(Path(path).read_bytes(), loader)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except Exception as error:  # the library also passes on errors of int(), float(), date() and recursion
        raise UserError(_cut(f"{path}: no valid YAML: {_yaml_mistake(error)}")) from None


def load_params(path: str | Path = "params.yaml") -> Params:
    """Reads and checks a whole params file; UserError with one line for each mistake."""
    return check_params(read_yaml(path), path)


def check_params(tree: Any, path: str | Path = "params.yaml") -> Params:
    """The checked form of a plain tree; UserError with one line for each mistake."""
    if not isinstance(tree, dict):
        raise UserError(f"{path}: must be a mapping of keys to values")
    try:
        return Params.model_validate(tree)
    except ValidationError as error:
        lines = list(dict.fromkeys(_cut(f"{path}: {_line(item)}") for item in error.errors()))
        more = [f"{path}: and {len(lines) - REPORTED_MISTAKES} more mistakes"] if len(lines) > REPORTED_MISTAKES else []
        raise UserError("\n".join(lines[:REPORTED_MISTAKES] + more)) from None


def _yaml_mistake(error: Exception) -> str:
    """What is wrong and where, without the library's advice to programmers."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem and error.problem_mark:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {printable(error.problem)}"
    return printable(" ".join(str(error).split())) or type(error).__name__


def _line(item: ErrorDetails) -> str:
    """One mistake as one line: key path, what is allowed, and the value."""
    key = ".".join(_shown_key(part) for part in item["loc"] if part not in PATH_TAGS)
    message = item["msg"].removeprefix("Value error, ").removeprefix("Input ")
    message = PLAIN_MESSAGES.get(item["type"], message)
    # A check of ours on a whole section names the values that matter, and may begin with a key of that section.
    is_section = item["type"] == "value_error" and isinstance(item["input"], (dict, BaseModel))
    if not is_section and item["type"] not in ("missing", "extra_forbidden"):
        message = f"{message} (got {_shown(item['input'])})"
    if not key:  # an invalid key has no path, nor has the whole file
        return message
    return f"{key}.{message}" if is_section and re.match(r"[a-z0-9_.]+: ", message) else f"{key}: {message}"


def _shown_key(part: Any) -> str:
    """A key as part of a path: it may have any type and any length."""
    text = printable(part) if isinstance(part, str) else _shown(part)
    return text if len(text) <= KEY_CHARACTERS else f"{text[:KEY_CHARACTERS]}…"


SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = SHORT.maxlong = KEY_CHARACTERS


def _shown(value: Any) -> str:
    """A value on a line: shortened, because aliases let a few bytes stand for gigabytes."""
    try:
        return printable(SHORT.repr(value))
    except ValueError:
        return "a number of thousands of digits"  # Python does not print it


def _cut(line: str) -> str:
    return line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]}…"


class StageParams:
    """Read access to those parts of checked params that a stage declares in dvc.yaml, by the same dotted paths.

    Reading anything else raises UserError: DVC would not rerun the stage when it changes.
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
        raise UserError(f"dvc.yaml: the stage reads {'.'.join(path)}, which its params do not declare; fix: add it")

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_"):
            raise AttributeError(key)
        return self[key]


def main() -> None:
    """Checks params.yaml before DVC expands it: DVC makes paths and commands of the names in it."""
    try:
        load_params()
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
