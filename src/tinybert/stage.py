"""What all stage scripts share: arguments, checked params, metrics, curves, tracking, errors for people."""

import argparse
import csv
import hashlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tinybert.config.load import StageParams, load_params
from tinybert.config.schema import Params
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import TEMPORARY, atomic_file, full_disk_told, write_json
from tinybert.pipeline.launch import is_main_process, relaunch
from tinybert.pipeline.text_lines import printable
from tinybert.pipeline.tracking import Run, stage_run


@dataclass(frozen=True)
class Stage:
    """One instance of a stage while it runs.

    name: the stage. items: its place in the matrix, such as {"task": "cola", "student": "tinybert4"}.
    params: the declared part of the checked params; values: the same as plain data, by dotted key. run: its MLflow run.
    """

    name: str
    items: dict[str, str]
    params: StageParams
    values: dict[str, Any]
    run: Run

    @property
    def instance(self) -> str:
        """The items joined, as DVC joins them: cola-tinybert4; empty for a stage without a matrix."""
        return "-".join(self.items.values())

    def fingerprint(self) -> Callable[[], str]:
        """A function that gives one of the instance's declared params, code and inputs.

        Params and code are read now, for they may be edited while the stage runs; the inputs, which may be large,
        when it is called.
        """
        files = declared_files(self.name, self.items)
        code = [path for path in files if path.suffix == ".py"]
        start = hashlib.sha256(json.dumps(self.values, sort_keys=True).encode())
        _digest_files(start, code)

        def whole() -> str:
            digest = start.copy()
            _digest_files(digest, [path for path in files if path not in code])
            return digest.hexdigest()[:32]

        return whole

    def write_metrics(self, metrics: dict[str, Any]) -> None:
        """Writes the instance's metrics file and logs it. Deterministic numbers only: no timings."""
        metrics = json.loads(json.dumps(metrics), parse_float=lambda text: float(f"{float(text):.6g}"))
        write_json(paths.metrics(self.name, self.instance), metrics)
        self.run.log_metrics(metrics)

    def on_entry(self, point: dict[str, float]) -> None:
        """Logs a point of the loss curve while training goes on."""
        self.run.log_curve_point(int(point["step"]), {k: v for k, v in point.items() if k != "step"})

    def write_curve(self, points: list[dict[str, float]]) -> None:
        """Writes the whole loss curve, for DVC's plots and the report."""
        with atomic_file(paths.curve(self.name, self.instance)) as handle:
            writer = csv.DictWriter(handle, fieldnames=list(points[0]) if points else ["step", "total"])
            writer.writeheader()
            writer.writerows({k: f"{v:.6g}" for k, v in point.items()} for point in points)


def run_stage(main: Callable[[Stage], None], *item_names: str, trains: bool = False) -> None:
    """Runs `main` as the stage that its script names; `item_names` become command-line options.

    The whole params.yaml is checked; `main` sees what dvc.yaml declares for the stage. A stage that trains starts
    itself anew under the launcher that the environment names, if any. A UserError ends the script with one line for
    each mistake and exit code 1, Ctrl-C with one.
    """
    name = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    items = _read_items(main.__doc__, item_names)
    label = f"{name}@{'-'.join(items.values())}" if items else name
    try:
        if trains:
            relaunch(f"stages.{name}", sys.argv[1:])
        with full_disk_told(f"a disk that the stage writes to, such as those of {Path.cwd()} and {TEMPORARY}"):
            _run(main, name, items)
    except UserError as error:
        for line in str(error).splitlines():
            print(f"{label}: {printable(line)}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"{label}: interrupted; say it again to go on", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def _run(main: Callable[[Stage], None], name: str, items: dict[str, str]) -> None:
    started = time.monotonic()
    declared = declared_params(name, items)
    params = load_params()
    check_unknown_items(items, params)
    values = declared_values(params, declared)
    with stage_run(name, "-".join(items.values()), params=values, tags=items) as run:
        stage = Stage(name, items, StageParams(params, declared), values, run)
        main(stage)
        if is_main_process():
            _record_timing(stage, time.monotonic() - started)


def _record_timing(stage: Stage, seconds: float) -> None:
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)  # the children's is that of the largest one
    peak = max(resource.getrusage(process).ru_maxrss for process in who) / 1024
    timing = {"seconds": round(seconds, 1), "peak_memory_mb": round(peak)}
    write_json(paths.timing(stage.name, stage.instance), timing)
    stage.run.log_metrics({"timing": timing})


def _read_items(description: str | None, item_names: tuple[str, ...]) -> dict[str, str]:
    parser = argparse.ArgumentParser(description=description)
    for item in item_names:
        parser.add_argument(f"--{item}", required=True)
    return vars(parser.parse_args())


def check_unknown_items(items: dict[str, str], params: Params) -> None:
    """UserError for a matrix item that params do not list."""
    known = {
        "corpus": ("general", "domain"),
        "student": params.general.students,
        "task": params.tasks.run,
        "seed": tuple(map(str, params.tasks.further_seeds)),
        "model": params.task_models,
        "sparsity": tuple(map(str, params.pruning.sparsities_percent)),
    }
    for item, value in items.items():
        if value not in known[item]:
            raise UserError(f"--{item} {value}: not in params.yaml; choose one of {', '.join(known[item])}")


def _digest_files(digest, files: list[Path]) -> None:
    for path in files:
        digest.update(str(path).encode())
        with open(path, "rb") as handle:
            digest.update(hashlib.file_digest(handle, "sha256").digest())


def declared_params(name: str, items: dict[str, str]) -> list[str]:
    """The params keys that dvc.yaml declares for a stage, with the matrix items filled in."""
    return _declared("params", name, items)


def declared_files(name: str, items: dict[str, str]) -> list[Path]:
    """The files that a stage reads by dvc.yaml, those in folders too, in a fixed order."""
    found = []
    for dep in map(Path, _declared("deps", name, items)):
        if dep == paths.PARAMS_CHECKED:  # says when, not what
            continue
        found += sorted(path for path in dep.rglob("*") if path.is_file()) if dep.is_dir() else [dep]
    return found


def _declared(section: str, name: str, items: dict[str, str]) -> list[str]:
    """Read from dvc.yaml itself: asking DVC would cost a second at the start of each stage."""
    with open("dvc.yaml", encoding="utf-8") as handle:
        stage = YAML(typ="safe").load(handle)["stages"][name]
    values = []
    for value in stage.get(section, []):
        for item, chosen in items.items():
            value = value.replace(f"${{item.{item}}}", chosen)
        values.append(value)
    return values


def declared_values(params: Params, declared: list[str]) -> dict[str, Any]:
    """The declared keys with their values as plain data, for the record; UserError where one is absent."""
    tree = params.model_dump(mode="json")
    values = {}
    for key in declared:
        node = tree
        for part in key.split("."):
            if not isinstance(node, dict) or part not in node:
                raise UserError(f"params.yaml: {key}: missing; the stage needs it")
            node = node[part]
        values[key] = node
    return values
