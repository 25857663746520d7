"""Reading params.yaml: checked as a whole, one line for each mistake; a stage then sees only what it declares.

Profiles are overlays in profiles/ that hold only what another scale changes in params.yaml or in another profile.
"""

import re
import reprlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from tinybert.config.schema import Params
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_file, one_line, printable
from tinybert.pipeline.process import git

PARAMS, PROFILES = Path("params.yaml"), Path("profiles")
PROFILE_HEADER = "# Profile: "
REPORTED_MISTAKES = 20
LINE_CHARACTERS = 400
SHOWN_CHARACTERS = 60
# Pydantic puts "[key]" into the path of a mapping's invalid key, and the tag of a union's member.
PATH_TAGS = {"[key]", "[named]", "[learnable]", "[bert]", "[bilstm]", "[model]"}
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


def read_yaml(path: str | Path) -> Any:
    """The plain tree of a YAML file, read as DVC reads it (YAML 1.2: 5e-5 is a number); UserError if it is none."""
    try:
        return YAML(typ="safe", pure=True).load(Path(path).read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except Exception as error:  # the library also passes on errors of int(), float(), date() and recursion
        mistake = one_line(error) or type(error).__name__
        if isinstance(error, MarkedYAMLError) and error.problem and (mark := error.problem_mark):
            # Without the library's advice to programmers.
            mistake = f"line {mark.line + 1}, column {mark.column + 1}: {printable(error.problem)}"
        raise UserError(f"{path}: no valid YAML: {mistake}"[:LINE_CHARACTERS]) from None


def load_params(path: str | Path = PARAMS) -> Params:
    """Reads and checks a params file; UserError with one line for each mistake."""
    return check_params(read_yaml(path), path)


def check_params(tree: Any, path: str | Path = PARAMS) -> Params:
    """The checked form of a plain tree; UserError with one line for each mistake."""
    if not isinstance(tree, dict):
        raise UserError(f"{path}: must be a mapping of keys to values")
    try:
        return Params.model_validate(tree)
    except ValidationError as error:
        lines = list(dict.fromkeys(f"{path}: {describe_mistake(item)}"[:LINE_CHARACTERS] for item in error.errors()))
        more = [f"{path}: and {len(lines) - REPORTED_MISTAKES} more mistakes"] if len(lines) > REPORTED_MISTAKES else []
        raise UserError("\n".join(lines[:REPORTED_MISTAKES] + more)) from None


def describe_mistake(item: ErrorDetails) -> str:
    """One mistake as one line: key path, what is allowed, and the value."""
    key = ".".join(_shown(part).strip("'") for part in item["loc"] if part not in PATH_TAGS)
    message = item["msg"].removeprefix("Value error, ").removeprefix("Input ")
    message = PLAIN_MESSAGES.get(item["type"], message)
    # A check on a section names the values that matter, and may begin with a key of that section.
    is_section = item["type"] == "value_error" and isinstance(item["input"], (dict, BaseModel))
    if not is_section and item["type"] not in ("missing", "extra_forbidden"):
        message = f"{message} (got {_shown(item['input'])})"
    if not key:  # an invalid key has no path, nor has the file
        return message
    return f"{key}.{message}" if is_section and re.match(r"[a-z0-9_.]+: ", message) else f"{key}: {message}"


SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = SHORT.maxlong = SHOWN_CHARACTERS


def _shown(value: Any) -> str:
    """A key or value on a line: shortened, because aliases let a few bytes stand for gigabytes."""
    try:
        return printable(SHORT.repr(value))
    except ValueError:
        return "a number of thousands of digits"  # Python does not print it


class StageParams:
    """Read access to those parts of checked params that a stage declares in dvc.yaml, by the same dotted paths.

    Reading anything else raises UserError: DVC would not rerun the stage when it changes.
    """

    def __init__(self, node: Any, declared: Collection[str], prefix: str = "") -> None:
        self._node, self._declared, self._prefix = node, declared, prefix

    def __getitem__(self, key: str) -> Any:
        path = f"{self._prefix}{key}"
        value = self._node[key] if isinstance(self._node, dict) else getattr(self._node, key)
        if any(f"{path}.".startswith(f"{known}.") for known in self._declared):
            return value
        if any(known.startswith(f"{path}.") for known in self._declared):
            return StageParams(value, self._declared, f"{path}.")
        raise UserError(f"dvc.yaml: the stage reads {path}, which its params do not declare; fix: add it")

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_"):
            raise AttributeError(key)
        return self[key]


def merge(tree: Any, overlay: Any) -> Any:
    """The tree with the overlay's values: mappings merge, other values replace."""
    if not isinstance(overlay, dict):
        return overlay
    base = tree if isinstance(tree, dict) else {}
    return base | {key: merge(base.get(key), value) for key, value in overlay.items()}


def merged_profile(name: str, root: Path = Path(), children: tuple[str, ...] = ()) -> dict[str, Any]:
    """The tree of params.yaml, or of what it `extends`, with a profile's overlay; `children` are what extends it."""
    names = sorted(path.stem for path in (root / PROFILES).glob("*.yaml"))
    key = f"{PROFILES / children[-1]}.yaml: extends" if children else "profile"
    if name not in names:
        raise UserError(f"{key}: there is no {PROFILES}/{name}.yaml (got {name}); allowed: {', '.join(names)}")
    if name in children:
        raise UserError(f"{key}: {name} already extends this profile (got {name}); fix: remove one extends")
    overlay = read_yaml(path := root / PROFILES / f"{name}.yaml")
    if not isinstance(overlay, dict):
        raise UserError(f"{path}: must be a mapping of keys to values")
    is_child, parent = "extends" in overlay, overlay.pop("extends", None)
    return merge(merged_profile(parent, root, (*children, name)) if is_child else read_yaml(root / PARAMS), overlay)


def apply_profile(name: str, *, force: bool = False) -> None:
    """Merges a profile into params.yaml of the current folder.

    UserError if that is a merged profile, has changes that git does not hold (unless `force`), or would become invalid.
    """
    tree = merged_profile(name)
    first_line = PARAMS.read_text(encoding="utf-8").partition("\n")[0]
    if first_line.startswith(PROFILE_HEADER):
        held = first_line.removeprefix(PROFILE_HEADER).split()[0]
        fix = f"git checkout {PARAMS}, which drops tasks of yours"
        raise UserError(f"{PARAMS}: already holds a profile (got {held}); fix: {fix}")
    if not force and (not git("ls-files", str(PARAMS)) or git("status", "--porcelain", "--", str(PARAMS))):
        fix = f"git checkout {PARAMS}, which drops them, or add FORCE=1 (tinybert: --force) to keep them"
        raise UserError(f"{PARAMS}: has uncommitted changes; fix: {fix}")
    check_params(tree, PROFILES / f"{name}.yaml")
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.width = None, 120
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # declared as None; before `representer`
    yaml.representer.ignore_aliases = lambda _: True  # shared parts are written in full
    with atomic_file(PARAMS) as handle:
        handle.write(f"{PROFILE_HEADER}{name} (merged into the default, whose comments explain the keys)\n")
        yaml.dump(tree, handle)
