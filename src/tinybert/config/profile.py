"""Profiles: overlays in profiles/ that hold only what another scale changes in params.yaml."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tinybert.config.load import Yaml12Loader, check_params, read_yaml
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_file
from tinybert.pipeline.tracking import git

PARAMS = Path("params.yaml")
FOLDER = Path("profiles")
HEADER = "# Profile: "


@dataclass(frozen=True)
class Replacement:
    """A mapping that stands in an overlay behind !replace: it takes the place of the other one as a whole."""

    value: dict[str, Any]


class OverlayLoader(Yaml12Loader):
    """Also knows !replace."""


def _construct_replacement(loader: Any, node: Any) -> Replacement:
    return Replacement(loader.construct_mapping(node, deep=True))


OverlayLoader.add_constructor("!replace", _construct_replacement)


class _PlainDumper(yaml.SafeDumper):
    """Repeats a value that stands at several keys, where PyYAML would write an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def merge(tree: Any, overlay: Any) -> Any:
    """The tree with the overlay's values: mappings merge, everything else, and what is behind !replace, replaces."""
    if isinstance(overlay, Replacement):
        return overlay.value
    if not isinstance(overlay, dict):
        return overlay
    base = tree if isinstance(tree, dict) else {}
    return base | {key: merge(base.get(key), value) for key, value in overlay.items()}


def merged_profile(name: str, root: Path = Path()) -> dict[str, Any]:
    """The tree of params.yaml under `root` with a profile's overlay; UserError if there is no such profile."""
    path = root / FOLDER / f"{name}.yaml"
    if not path.is_file():
        names = ", ".join(sorted(path.stem for path in (root / FOLDER).glob("*.yaml")))
        raise UserError(f"profile: there is no {path} (got {name}); allowed: {names}")
    return merge(read_yaml(root / PARAMS), read_yaml(path, OverlayLoader))


def apply_profile(name: str, *, force: bool = False) -> None:
    """Merges a profile into params.yaml of the current folder.

    Raises:
        UserError: params.yaml has changes that git does not hold (unless `force`), is a merged profile already, or
            would not be valid.
    """
    tree = merged_profile(name)
    with open(PARAMS, encoding="utf-8") as handle:
        first_line = handle.readline()
    if first_line.startswith(HEADER):
        raise UserError(
            f"{PARAMS}: already holds a profile (got {first_line.removeprefix(HEADER).split()[0]}); "
            f"fix: restore the default first, for example git checkout {PARAMS}"
        )
    if not force and (not git("ls-files", str(PARAMS)) or git("status", "--porcelain", "--", str(PARAMS))):
        raise UserError(f"{PARAMS}: has uncommitted changes; fix: commit them, or add --force to lose them")
    check_params(tree, f"{FOLDER}/{name}.yaml")
    text = yaml.dump(tree, Dumper=_PlainDumper, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True)
    with atomic_file(PARAMS) as handle:
        handle.write(
            f"{HEADER}{name} (profiles/{name}.yaml merged into the default, whose comments explain the keys)\n"
        )
        handle.write(text)
