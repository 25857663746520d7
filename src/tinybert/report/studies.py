"""Studies: published comparisons as DVC experiments, `tinybert study NAME`.

Runs the experiments of studies/<name>.yaml that are missing, one after another, saves their predictions as evidence
and tests the claims. An experiment is named <study>-<variant>-<digest>, the digest one of its settings, stages and
code: no study repeats what has run before, and an interrupted study resumes.
"""

import argparse
import fcntl
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from torch.cpu import get_capabilities

from tinybert.config.load import check_params, load_params, read_yaml
from tinybert.config.schema import Params
from tinybert.evaluate.scoring import Predictions, read_predictions
from tinybert.pipeline.code_digest import code_digest
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import one_line, read_json, write_json
from tinybert.pipeline.process import code_revision, git
from tinybert.report.claims import Study, load_study, save_evidence, study_names, write_page

NOTE = Path(".dvc/tmp/study.json")  # there while an experiment runs, and after a kill
LOCK = Path(".dvc/tmp/study.lock")
UNUSED = ("check_params", "code", "package", "report")  # stages that change no prediction


class Experiment(NamedTuple):
    """A DVC experiment: whose predictions it makes for which seeds, by which overrides, running which stages."""

    name: str
    variant: str
    seeds: tuple[int, ...]
    overrides: tuple[str, ...]
    stages: tuple[str, ...]

    @property
    def digest(self) -> str:
        return self.name.rsplit("-", 1)[1]


def main(argv: Sequence[str] | None = None) -> None:
    """Runs studies, then writes the page of all studies with evidence and prints its table."""
    parser = argparse.ArgumentParser(prog="tinybert study", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a file in studies/; without any: only the page")
    parser.add_argument("--all", action="store_true", help="run all studies that have no evidence in the folder")
    parser.add_argument("--tasks", nargs="+", help="with a section in params.yaml (those of the study)")
    parser.add_argument("--seeds", type=int, metavar="N", help="number of seeds (the study's)")
    parser.add_argument("--folder", type=Path, default="reports/studies", help="of evidence and page (%(default)s)")
    options = parser.parse_args(argv)
    names = [*options.names]
    if options.all:
        names += [name for name in study_names() if not (options.folder / name / "about.json").is_file()]
    if options.tasks and (options.all or not names):
        raise UserError("--tasks: needs NAME, not --all; allowed: with NAME; fix: tinybert study NAME --tasks TASK")
    if options.seeds is not None and not 1 <= options.seeds < 1000:
        raise UserError(f"--seeds: out of range (got {options.seeds}); allowed: 1 to 999; fix: --seeds 3")
    if names:
        conduct(names, options.folder, tasks=options.tasks, seeds=options.seeds)
    print(f"{write_page(options.folder).text()}\n\n{options.folder / 'README.md'}")


def conduct(names: Sequence[str], folder: Path, *, tasks: Sequence[str] | None, seeds: int | None) -> None:
    """Runs missing experiments and saves the predictions of each study in `folder`/<study>.

    All studies are planned first, so that a mistake in one appears before the first runs.
    """
    with _only_study():
        check_disturbed_workspace()
        params, plans = load_params(), []
        for name in names:
            study = load_study(name)
            chosen = study.choose_tasks(tasks, params)
            plans.append((name, study, chosen, plan(name, study, params, tasks=chosen, seeds=seeds or study.seeds)))
        found_as = finished()
        for name, study, chosen, experiments in plans:
            # Variants with the same settings are one experiment.
            missing = {one.digest: one for one in experiments if one.digest not in found_as}
            variants = ", ".join(one.variant for one in missing.values()) or "-"
            print(f"{name}: {len(experiments)} experiments, {len(missing)} to run: {variants}")
            for experiment in missing.values():
                run(experiment)
                found_as[experiment.digest] = experiment.name
            measured: dict = {(task, variant): {} for task in chosen for variant in study.variants}
            for one in experiments:
                for task in chosen:
                    measured[task, one.variant] |= dict(predictions_of(study, one, found_as[one.digest], task))
            of_maps = {side for claim in study.claims if claim.is_of_maps for side in claim.sides}
            with_maps = [one for one in experiments if one.variant in of_maps]
            about = {
                "revision": code_revision(), "processor": get_capabilities()["cpu_name"],
                "overrides": {one.name: " ".join(one.overrides) for one in experiments},
                "params": read_yaml("params.yaml"),
                "layer_maps": {
                    task: {one.variant: maps_of(study, one, found_as[one.digest], task) for one in with_maps}
                    for task in chosen
                },
            }  # fmt: skip
            save_evidence(folder / name, study, measured, about)


def plan(name: str, study: Study, params: Params, *, tasks: Sequence[str], seeds: int) -> list[Experiment]:
    """All experiments of a study in the order of its variants; UserError if a setting is rejected."""
    stages = tuple(sorted({study.measured_of(variant).split("/")[0] for variant in study.variants}))
    code = [code_digest(path.stem) for path in sorted(Path("stages").glob("[a-z]*.py")) if path.stem not in UNUSED]
    numbers, tree, planned = tuple(range(params.seed, params.seed + seeds)), read_yaml("params.yaml"), []
    for variant in study.variants:
        for group in [numbers] if study.repeat == "student" else [(number,) for number in numbers]:
            overrides = tuple(_overrides(study, variant, params, tasks, group))
            settings = changed_params(tree, overrides, f"study {name}, variant {variant}")
            content = json.dumps([settings.model_dump(mode="json"), stages, code], sort_keys=True)
            digest = hashlib.sha256(content.encode()).hexdigest()[:10]
            planned.append(Experiment(f"{name}-{variant}-{digest}", variant, group, overrides, stages))
    return planned


def _overrides(study: Study, variant: str, params: Params, tasks: Sequence[str], seeds: Sequence[int]) -> Iterator[str]:
    student = study.variants[variant].student or study.student
    trained = [task for task in tasks if task in params.tasks.__pydantic_extra__]  # the others are domain scores
    if trained:
        yield f"tasks.run=[{','.join(trained)}]"
        yield f"tasks.students=[{student}]"
        yield f"quantization.models=[{student}]"
        yield "quantization.max_score_drop=null"  # a study reports what a variant loses
    elif student not in params.domain.students:
        raise UserError(f"domain.students: lacks {student}, which the study compares; fix: add it to params.yaml")
    if student not in params.general.students:
        yield f"general.students=[{','.join((*params.general.students, student))}]"
    if study.repeat == "pipeline":
        yield f"seed={seeds[0]}"
    yield f"seeds=[{','.join(map(str, seeds))}]"
    for text in (*study.set, *study.variants[variant].set):
        text = text.replace("{student}", student)
        yield from [text.replace("{task}", task) for task in trained] if "{task}" in text else [text]


def changed_params(tree: dict, overrides: Sequence[str], origin: str) -> Params:
    """Applies the overrides of a `dvc exp run -S` to a plain tree and checks it; errors begin with `origin`."""
    from dvc.exceptions import DvcException
    from dvc.utils.hydra import apply_overrides

    with TemporaryDirectory() as folder:
        path = Path(folder) / "params.json"  # read many times as fast as YAML
        write_json(path, tree)
        try:
            apply_overrides(path, list(overrides))
        except DvcException as error:
            raise UserError(f"{origin}: {one_line(error.__cause__ or error)}") from None
        return check_params(read_json(path), origin)


def run(experiment: Experiment) -> None:
    """Runs the experiment in a temporary copy of the project; UserError if a stage fails; finished stages are kept."""
    print(f"\n=== {experiment.name}: {' '.join(experiment.overrides)}", flush=True)
    settings = [part for override in experiment.overrides for part in ("-S", override)]
    command = ["exp", "run", "--temp", "--name", experiment.name, *settings, *experiment.stages]
    write_json(NOTE, _workspace())
    code = _run_to_end([sys.executable, "-m", "dvc", *command])
    NOTE.unlink()
    if code:
        raise UserError(f"experiment {experiment.name} failed; fix what is reported above, then run the study again")


def _run_to_end(command: list[str]) -> int:
    """The exit code. Ctrl-C reaches DVC too, which gets the time to restore the workspace."""
    process = subprocess.Popen(command)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise


def finished() -> dict[str, str]:
    """digest -> name of the experiments that exist, whatever commit they began at."""
    command = [sys.executable, "-m", "dvc", "exp", "list", "--all-commits", "--name-only"]
    listed = subprocess.run(command, capture_output=True, text=True)
    if listed.returncode:
        raise UserError(f"dvc exp list failed: {one_line(listed.stderr)}; a study needs git and .dvc")
    return {name.rsplit("-", 1)[1]: name for name in listed.stdout.split() if "-" in name}


def predictions_of(study: Study, experiment: Experiment, name: str, task: str) -> Iterator[tuple[int, Predictions]]:
    """(seed, predictions) of an experiment's variant for a task, as DVC keeps them under the experiment's name."""
    place, system = study.measured_of(experiment.variant).replace("{task}", task).split(":")
    for seed in experiment.seeds:
        file = f"reports/predictions/{place.replace('{seed}', str(seed))}.json"
        yield seed, _read(name, file, lambda text: read_predictions(text)[system])


def maps_of(study: Study, experiment: Experiment, name: str, task: str) -> dict[str, dict[str, float]]:
    """seed -> weights of a variant's learnable layer map at the end of phase 1."""
    student = study.variants[experiment.variant].student or study.student
    folder = f"reports/metrics/task_distill_intermediate/{task}-{student}"
    files = {str(seed): f"{folder}-{seed}.json" for seed in experiment.seeds}
    return {seed: _read(name, file, lambda text: json.loads(text)["layer_map"]) for seed, file in files.items()}


def _read(name: str, file: str, parse: Callable[[str], Any]) -> Any:
    """A file that an experiment has made, from DVC's cache."""
    import dvc.api

    try:
        return parse(dvc.api.read(file, rev=name))
    except Exception as error:
        reason, fix = one_line(error), f"dvc exp remove {name}"
        raise UserError(f"experiment {name}: {file} cannot be read ({reason}); fix: {fix}") from None


@contextmanager
def _only_study() -> Iterator[None]:
    """UserError if another study runs: each would mistake the other's stash for that of a killed one."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with open(LOCK, "a", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError("another study runs in this project; run the command again when it has ended") from None
        yield


def check_disturbed_workspace() -> None:
    """UserError with the commands that restore the stash and branch that DVC leaves to set up an experiment."""
    if not NOTE.is_file():
        return
    before, now = read_json(NOTE), _workspace()
    commands = []
    if before["branch"] and not now["branch"]:
        commands.append(f"git checkout --force {before['branch']}")
    if now["stash"] not in ("", before["stash"]):
        commands.append("git stash pop")
    if commands:
        raise UserError("the study was killed while DVC had put the workspace's changes aside; fix: restore them with "
                        f"{' && '.join(commands)} (if nothing is lost: rm {NOTE}), then rerun the study")  # fmt: skip
    NOTE.unlink()


def _workspace() -> dict[str, str]:
    """The branch, empty if none is checked out, and the newest commit of the stash, empty if there is none."""
    stash = git("rev-parse", "--verify", "--quiet", "refs/stash")
    return {"branch": git("symbolic-ref", "--short", "HEAD"), "stash": stash}
