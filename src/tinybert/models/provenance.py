"""How a model was trained, kept beside it as training.json: an entry for each stage that it went through.

Only what decides its weights, so that what was not retrained keeps its bytes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinybert.pipeline.files import read_json, write_json

if TYPE_CHECKING:
    from tinybert.stage import Stage

FILE = "training.json"
OF_SPEED_ALONE = ("tasks.teacher_cache_gb",)


def provenance_with(stage: "Stage", curve: Sequence[dict], *, source: Path | None) -> list[dict[str, Any]]:
    """The history of the model in `source`, if any, and what the stage did: its items, declared params and steps."""
    params = {key: value for key, value in stage.values.items() if key not in OF_SPEED_ALONE}
    entry = {"stage": stage.name, **stage.items, "steps": curve[-1]["step"] if curve else 0, "params": params}
    return [*(read_provenance(source) if source else ()), entry]


def write_provenance(history: Sequence[dict[str, Any]], folder: str | Path) -> None:
    """Writes the history, where there is one, into the existing `folder`."""
    if history:
        write_json(Path(folder) / FILE, list(history))


def read_provenance(folder: str | Path) -> list[dict[str, Any]]:
    """The entries in the order of training; none for a model that brings no history."""
    path = Path(folder) / FILE
    return read_json(path) if path.is_file() else []
