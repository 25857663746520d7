"""The DVC experiments of a study: which there must be, which there are, running those that lack, their answers.

An experiment is named <study>-<variant>-<digest>, the digest one of its settings, its stages and the code: what was
run once is found again, in this study or another, and what has changed since is run anew.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ruamel.yaml import YAML

from tinybert.config.load import check_params
from tinybert.config.schema import Params
from tinybert.data.tasks import TASKS
from tinybert.evaluate.predictions import Predictions, read_predictions
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_json, write_json
from tinybert.studies.study import REPEATS, Study
from tinybert.studies.workspace import noted_workspace

DIGEST_DIGITS = 10
NOT_CODE_OF_STAGES = ("release", "report", "studies")  # packages that change no answer


@dataclass(frozen=True)
class Experiment:
    """variant, seeds: whose answers it makes. overrides: for `dvc exp run -S`. stages: what is to be run."""

    name: str
    variant: str
    seeds: tuple[int, ...]
    overrides: tuple[str, ...]
    stages: tuple[str, ...]

    @property
    def digest(self) -> str:
        return self.name.rsplit("-", 1)[1]


def plan(study_name: str, study: Study, params: Params, *, tasks: Sequence[str], seeds: int) -> list[Experiment]:
    """All experiments of a study, in the order of its variants; UserError where a setting is refused."""
    experiments, code, tree = [], _code_digest(), YAML(typ="safe").load(Path("params.yaml"))
    numbers = tuple(range(params.seed, params.seed + seeds))
    for variant in study.variants:
        for group in [numbers] if study.repeat == "student" else [(number,) for number in numbers]:
            overrides = tuple(_overrides(study, variant, params, tasks, group))
            settings = changed_params(tree, overrides, f"study {study_name}, variant {variant}")
            stages = _stages(study, group)
            content = json.dumps([settings.model_dump(mode="json"), stages, code], sort_keys=True)
            digest = hashlib.sha256(content.encode()).hexdigest()[:DIGEST_DIGITS]
            experiments.append(Experiment(f"{study_name}-{variant}-{digest}", variant, group, overrides, stages))
    return experiments


def changed_params(tree: dict, overrides: Sequence[str], origin: str) -> Params:
    """The tree of a params.yaml with the overrides of a `dvc exp run -S`, checked.

    UserError, its lines beginning with `origin`.
    """
    from dvc.exceptions import DvcException
    from dvc.utils.hydra import apply_overrides

    with TemporaryDirectory() as folder:
        path = Path(folder) / "params.json"  # many times as quick to read as YAML
        write_json(path, tree)
        try:
            apply_overrides(path, list(overrides))
        except DvcException as error:
            reason = error.__cause__ or error
            raise UserError(f"{origin}: {' '.join(str(reason).split())}") from None
        return check_params(read_json(path), origin)


def run(experiment: Experiment) -> None:
    """Runs it in a temporary copy of the project; UserError when a stage fails, whose finished ones are kept."""
    print(f"\n=== {experiment.name}: {' '.join(experiment.overrides)}", flush=True)
    settings = [part for override in experiment.overrides for part in ("-S", override)]
    command = ["exp", "run", "--temp", "--name", experiment.name, *settings, *experiment.stages]
    with noted_workspace():
        failed = _run_to_end([sys.executable, "-m", "dvc", *command])
    if failed:
        raise UserError(
            f"experiment {experiment.name} failed: mend what is said above, and say it again; what is finished is kept"
        )


def _run_to_end(command: list[str]) -> int:
    """The exit code. Ctrl-C reaches DVC too, which is given the time to put the workspace in order."""
    process = subprocess.Popen(command)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise


def finished() -> dict[str, str]:
    """digest -> name of the experiments that there are, whatever commit they began at."""
    command = [sys.executable, "-m", "dvc", "exp", "list", "--all-commits", "--name-only"]
    listed = subprocess.run(command, capture_output=True, text=True)
    if listed.returncode:
        reason = " ".join(listed.stderr.split()) or "no reason given"
        raise UserError(
            f"dvc exp list failed: {reason}; a study needs the project's git repository with its .dvc folder"
        )
    return {name.rsplit("-", 1)[1]: name for name in listed.stdout.split() if "-" in name}


def answers(study: Study, experiment: Experiment, found_as: str, task: str) -> Iterator[tuple[int, Predictions]]:
    """(seed, answers) of an experiment's variant to a task, read from the experiment as DVC keeps it."""
    import dvc.api

    place, system = study.measured_of(experiment.variant).replace("{task}", task).split(":")
    stage, instance = place.split("/")
    for number, seed in enumerate(experiment.seeds):
        file = f"{REPEATS[stage]}/{instance}-{seed}" if number else f"{stage}/{instance}"
        try:
            found = read_predictions(dvc.api.read(f"reports/predictions/{file}.json", rev=found_as))[system]
        except Exception as error:
            raise UserError(
                f"experiment {found_as}: its answers {file} cannot be read ({' '.join(str(error).split())}); remove it "
                f"(dvc exp remove {found_as}) and run the study again"
            ) from None
        yield seed, found


def _overrides(
    study: Study, variant: str, params: Params, tasks: Sequence[str], seeds: tuple[int, ...]
) -> Iterator[str]:
    student = study.variants[variant].student or study.student
    glue_tasks = [task for task in tasks if task in TASKS]
    if glue_tasks:
        yield f"tasks.run=[{','.join(glue_tasks)}]"
        yield f"tasks.students=[{student}]"
        yield f"quantization.models=[teacher,{student}]"
    elif student not in params.domain.students:
        raise UserError(f"params.yaml: domain.students lacks {student}, which the study compares; add it")
    if student not in params.general.students:
        yield f"general.students=[{','.join((*params.general.students, student))}]"
    if study.repeat == "student":
        yield f"seeds=[{','.join(map(str, seeds))}]"
    else:
        yield f"seed={seeds[0]}"
        yield f"seeds=[{seeds[0]}]"
    for text in (*study.set, *study.variants[variant].set):
        text = text.replace("{student}", student)
        yield from [text.replace("{task}", task) for task in glue_tasks] if "{task}" in text else [text]


def _stages(study: Study, seeds: tuple[int, ...]) -> tuple[str, ...]:
    """Those that write the answers of any variant: variants of the same settings are then one experiment."""
    stages = {study.measured_of(variant).split("/")[0] for variant in study.variants}
    return tuple(sorted(stages | {REPEATS[stage] for stage in stages if len(seeds) > 1}))


def _code_digest() -> str:
    """Of all code that can change an answer: dvc.yaml, the stages, the package but for its reports and studies."""
    package = Path("src/tinybert")
    modules = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in NOT_CODE_OF_STAGES]
    digest = hashlib.sha256()
    for path in sorted([Path("dvc.yaml"), *Path("stages").glob("*.py"), *modules]):
        digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()
