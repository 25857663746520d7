"""What all stage scripts share: command line, checked params, metrics, curves, tracking, one-line errors."""

import argparse
import csv
import hashlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from tinybert.config.load import StageParams, load_params
from tinybert.config.schema import Params
from tinybert.pipeline import paths
from tinybert.pipeline.code_digest import code_digest
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_file, flatten, printable, report_disk_error, write_json
from tinybert.pipeline.process import is_main_process, peak_resident_mib, relaunch
from tinybert.pipeline.tracking import Run, stage_run


@dataclass
class Stage:
    """One running instance of a stage.

    Attributes:
        name: The stage's name in dvc.yaml.
        items: The instance's matrix items, for example {"task": "cola", "student": "tinybert4", "seed": "42"}.
        params: The params that dvc.yaml declares for the stage; reading others is an error.
        values: The same as plain data by dotted key.
        names: The values of dvc.yaml's ${...} in this instance: "item.task", "seed" and so on.
        run: The MLflow run of the instance.
        earlier_seconds: Of interrupted processes whose run this one continued.
    """

    name: str
    items: dict[str, str]
    params: StageParams
    values: dict[str, Any]
    names: dict[str, str]
    run: Run
    earlier_seconds: float = 0.0

    @property
    def instance(self) -> str:
        """The items joined as DVC joins them (cola-tinybert4-42); empty for a stage without a matrix."""
        return "-".join(self.items.values())

    def fingerprint(self) -> Callable[[], str]:
        """Returns a function that digests the instance's declared params, code and input files.

        Params and code are read now, as they may be edited while the stage runs; the inputs, often large, at its call,
        with the folders that params name: third-party models.
        """
        start = hashlib.sha256(json.dumps(self.values, sort_keys=True).encode())
        start.update(code_digest(self.name).encode())
        named = [value for key, value in flatten(self.values, ".") if value and key.endswith(".folder")]
        folders = [paths.resolve(folder) for folder in named]

        def digest() -> str:
            whole = start.copy()
            for path in [*input_files(self.name, self.names), *chain.from_iterable(map(files_in, folders))]:
                whole.update(str(path).encode())
                with open(path, "rb") as handle:
                    whole.update(hashlib.file_digest(handle, "sha256").digest())
            return whole.hexdigest()[:32]

        return digest

    def provenance(self, entries: Sequence[dict[str, float]], earlier: Sequence[dict] = ()) -> list[dict[str, Any]]:
        """How a model was trained: one entry for each training stage, this one last.

        Args:
            entries: The loss curve of this stage.
            earlier: The provenance of the model that this stage continued, if any.
        """
        params = dict(self.values)
        params.pop("tasks.teacher_cache_gb", None)  # changes a result by rounding only
        steps = entries[-1]["step"] if entries else 0
        return [*earlier, {"stage": self.name, **self.items, "steps": steps, "params": params}]

    def write_metrics(self, metrics: dict[str, Any], part: str = "") -> None:
        """Writes the metrics of the instance, or of a part of it, and logs them: deterministic numbers, no timings."""
        metrics = json.loads(json.dumps(metrics), parse_float=lambda text: float(f"{float(text):.6g}"))
        write_json(paths.metrics(self.name, part or self.instance), metrics)
        self.run.log_metrics({part: metrics} if part else metrics)

    def log_entry(self, entry: dict[str, float]) -> None:
        """Logs one entry of the loss curve during training."""
        values = {key: value for key, value in entry.items() if key != "step"}
        self.run.log_metrics({"curve": values}, int(entry["step"]))

    def write_curve(self, entries: Sequence[dict[str, float]]) -> None:
        """Writes the loss curve for DVC's plots and the report."""
        with atomic_file(paths.curve(self.name, self.instance)) as handle:
            writer = csv.DictWriter(handle, fieldnames=list(entries[0]) if entries else ["step", "total"])
            writer.writeheader()
            for entry in entries:  # six digits for all but the step, which stays exact
                writer.writerow({key: f"{value:.6g}" for key, value in entry.items()} | {"step": entry["step"]})


def run_stage(main: Callable[[Stage], None], *item_names: str, trains: bool = False) -> None:
    """Runs `main` as the stage that its script is named after.

    A UserError ends the process with one line for each mistake and exit code 1, Ctrl-C with one line.

    Args:
        main: The stage; it sees only the params that dvc.yaml declares for it.
        item_names: The matrix items; each becomes a required command-line option.
        trains: Whether the stage restarts itself under the launcher that the environment names, if any.
    """
    name = Path(sys.argv[0]).stem
    parser = argparse.ArgumentParser(description=main.__doc__)
    for item in item_names:
        parser.add_argument(f"--{item}", required=True)
    items = vars(parser.parse_args())
    label = f"{name}@{'-'.join(items.values())}" if items else name
    try:
        if trains:
            relaunch(f"stages.{name}", sys.argv[1:])
        temporary = os.environ.get("TMPDIR", "/tmp")  # tempfile.gettempdir() fails on full disks
        with report_disk_error(f"a disk that the stage writes to, such as those of {Path.cwd()} and {temporary}"):
            _run(main, name, items)
    except UserError as error:
        for line in str(error).splitlines():
            print(f"{label}: {printable(line)}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"{label}: interrupted; run the command again to resume", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def _run(main: Callable[[Stage], None], name: str, items: dict[str, str]) -> None:
    started = time.monotonic()
    params = load_params()
    check_items(items, params)
    names = {f"item.{item}": value for item, value in items.items()} | {"seed": str(params.seed)}
    keys = declared("params", name, names)
    values = declared_values(params, keys)
    with stage_run(name, "-".join(items.values()), params=values, tags=items) as run:
        stage = Stage(name, items, StageParams(params, keys), values, names, run)
        main(stage)
        if is_main_process():
            seconds = round(stage.earlier_seconds + time.monotonic() - started, 1)
            timing = {"seconds": seconds, "peak_memory_mb": round(peak_resident_mib())}
            write_json(paths.timing(name, stage.instance), timing)
            run.log_metrics({"timing": timing})


def check_items(items: dict[str, str], params: Params) -> None:
    """Raises UserError for a matrix item that params.yaml does not list."""
    known = {
        "corpus": ("general", "domain"),
        "student": params.general.students,
        "task": params.tasks.run,
        "seed": tuple(map(str, params.seeds)),
        "model": params.task_models,
        "sparsity": tuple(map(str, params.pruning.sparsities_percent)),
    }
    for item, value in items.items():
        if value not in known[item]:
            raise UserError(f"--{item}: not in params.yaml (got {value}); allowed: {', '.join(known[item])}")


def input_files(name: str, names: dict[str, str]) -> list[Path]:
    """The data files that dvc.yaml declares as a stage instance's dependencies, in a fixed order."""
    files: list[Path] = []
    for dependency in map(Path, declared("deps", name, names)):
        if dependency != paths.PARAMS_CHECKED and dependency.parent != paths.CODE_DIGESTS:
            files += files_in(dependency) or [dependency]
    return files


def files_in(folder: Path) -> list[Path]:
    """All files below a folder, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def declared(section: str, name: str, names: dict[str, str]) -> list[str]:
    """Lists a stage's "params" or "deps" from dvc.yaml itself: calling DVC costs a second at each stage's start."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    stage = yaml.load(Path("dvc.yaml").read_text(encoding="utf-8"), loader)["stages"][name]
    return [re.sub(r"\$\{(.+?)\}", lambda found: names[found[1]], value) for value in stage.get(section, [])]


def declared_values(params: Params, keys: list[str]) -> dict[str, Any]:
    """The keys with their values as plain data."""
    tree = params.model_dump(mode="json")
    return {key: reduce(lambda node, part: node[part], key.split("."), tree) for key in keys}
