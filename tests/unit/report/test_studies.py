"""Studies: the shipped files, the experiments they ask for, and resuming after an interruption."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest

from tests.support.project import commit_all, default_tree, git
from tests.support.root import ROOT
from tinybert.config.load import check_params, load_params, merged_profile
from tinybert.config.schema import Params
from tinybert.evaluate.scoring import Predictions
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import write_json
from tinybert.report import studies
from tinybert.report.claims import load_study
from tinybert.report.studies import check_disturbed_workspace, conduct, main

NAMES = sorted(path.stem for path in (ROOT / "studies").glob("*.yaml"))
SCALES = ("params", *sorted(path.stem for path in (ROOT / "profiles").glob("*.yaml")))
# Why a study cannot be planned at a scale: the profile sizes has neither phase 1 nor a domain track, depth_width needs
# a wider teacher than the default's.
OF_PHASE_1 = ("alpha", "attention_loss", "layer_maps", "losses", "pruning_levels")
UNFIT = {("sizes", name): r"students\.tinybert4\.intermediate\.losses(: |\.attention')" for name in OF_PHASE_1} | {
    ("sizes", "three_professors"): r"domain\.students: lacks lazy",
    ("params", "depth_width"): r"students\.tinybert4\.architecture\.width: larger than the teacher's",
}
SMALL = """
question: Which?
source: nobody
tasks: [cola]
student: tinybert4
seeds: 2
variants:
  uniform: {}
  top: {set: ["students.{student}.layer_map=top"]}
claims:
  - {claim: uniform beats top, published: ".3 to .2"}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """What planning reads, in a folder of its own, which is entered."""
    monkeypatch.setattr(studies, "code_digest", lambda stage: "")
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "stages").symlink_to(ROOT / "stages")
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies/small.yaml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan_of(name: str = "small", params: Params | None = None, **changes) -> list[studies.Experiment]:
    study, params = load_study(name), params or load_params()
    chosen = {"tasks": study.choose_tasks(None, params), "seeds": study.seeds} | changes
    return studies.plan(name, study, params, **chosen)


@pytest.mark.parametrize("scale", SCALES)
def test_shipped_studies_fit_every_scale(scale, project, monkeypatch):
    tree = default_tree() if scale == "params" else merged_profile(scale, ROOT)
    monkeypatch.setattr(studies, "read_yaml", lambda path: {"params.yaml": tree}[path])
    params, mistakes = check_params(tree), []
    for name in NAMES:
        shutil.copy(ROOT / f"studies/{name}.yaml", project / "studies")
        try:
            check_fit(name, params, refusal=UNFIT.get((scale, name)))
        except (AssertionError, UserError, pytest.fail.Exception) as error:
            mistakes.append(f"{name}: {error}")
    assert mistakes == []


def check_fit(name: str, params: Params, *, refusal: str | None) -> None:
    """Whether a study can be planned with these params, and gives an experiment for each different variant."""
    if refusal:
        with pytest.raises(UserError, match=refusal):
            plan_of(name, params)
        return
    study, planned, written = load_study(name), plan_of(name, params), (ROOT / "dvc.yaml").read_text()
    assert {experiment.variant for experiment in planned} == set(study.variants)
    repeats = study.seeds if study.repeat == "pipeline" else 1
    of_tasks = any(text.startswith("tasks.students") for text in planned[0].overrides)  # one run has all of the domain
    different = {(of_tasks and variant.student, variant.set) for variant in study.variants.values()}
    assert len({experiment.digest for experiment in planned}) >= len(different) * repeats
    assert all(f"reports/predictions/{stage}" in written for stage in planned[0].stages)


def test_tasks_without_synthetic_rows_are_left_out(monkeypatch):
    monkeypatch.chdir(ROOT)
    synthetic, local = default_tree(), default_tree({"tasks.source": "local"})
    study = load_study("alpha")
    assert "stsb" in study.tasks and "stsb" in synthetic["tasks"]
    assert study.choose_tasks(None, check_params(synthetic)) == ["cola"]
    assert study.choose_tasks(None, check_params(local)) == list(study.tasks)
    with pytest.raises(UserError, match=r"^--tasks: no section or rows \(got stsb\); allowed: cola, sst2, mrpc, rte; "):
        study.choose_tasks(["stsb"], check_params(synthetic))


def test_experiments_ask_for_what_a_variant_changes(project):
    uniform, top = plan_of()
    assert uniform.overrides == (
        "tasks.run=[cola]",
        "tasks.students=[tinybert4]",
        "quantization.models=[tinybert4]",
        "quantization.max_score_drop=null",
        "seeds=[42,43]",
    )
    assert top.overrides == (*uniform.overrides, "students.tinybert4.layer_map=top")
    assert (top.seeds, top.stages) == ((42, 43), ("evaluate",))
    assert top.name == f"small-top-{top.digest}"


def test_a_study_of_the_teachers_files_exports_it(project):
    shutil.copy(ROOT / "studies/quantization_teacher.yaml", project / "studies")
    assert "quantization.models=[teacher,tinybert4]" in plan_of("quantization_teacher")[0].overrides


def test_equal_settings_share_one_experiment(project):
    first = plan_of()
    (project / "studies/other.yaml").write_text(SMALL.replace("uniform", "even"))
    assert [one.digest for one in plan_of("other")] == [one.digest for one in first]
    assert plan_of(seeds=3)[0].digest != first[0].digest
    changed = (project / "params.yaml").read_text().replace("learning_rate: 5.0e-4", "learning_rate: 4.0e-4")
    (project / "params.yaml").write_text(changed)
    assert plan_of()[0].digest != first[0].digest


def test_a_pipeline_is_repeated_with_its_seed(project):
    (project / "studies/small.yaml").write_text(SMALL.replace("seeds: 2", "seeds: 2\nrepeat: pipeline"))
    planned = plan_of()
    assert [experiment.seeds for experiment in planned] == [(42,), (43,)] * 2
    assert {"seed=43", "seeds=[43]"} <= set(planned[1].overrides) and planned[1].stages == ("evaluate",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("layer_map=top", "layer_map=topp"), "study small, variant top: students.tinybert4.layer_map"),
        (("students.{student}.layer_map", "studnets.x"), "study small, variant top: Could not override 'studnets"),
        (("beats top", "beats tip"), "studies/small.yaml: claims: unknown variant (got tip); allowed: uniform, top"),
        (("uniform beats top", "uniform wins"), "claims.0.claim: String should match pattern"),
        (("tasks: [cola]", "tasks: [wnli]"), "tasks: none of the study's has a section in params.yaml"),
        (("seeds: 2", "seed: 2"), "studies/small.yaml: seed: unknown key; fix: check its spelling"),
    ],
)
def test_mistakes_are_one_line(project, change, message):
    (project / "studies/small.yaml").write_text(SMALL.replace(*change))
    with pytest.raises(UserError) as caught:
        plan_of()
    assert message in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_an_unknown_study_names_the_known(project):
    with pytest.raises(UserError, match=r"no such study \(got maps\); allowed: small"):
        load_study("maps")


class Dvc:
    """In place of DVC: remembers what was run; uniform is right on 60 of 100 rows, top on 40."""

    def __init__(self, monkeypatch, stop_after: int | None = None):
        self.ran: list[str] = []
        self.stop_after = stop_after
        monkeypatch.setattr(studies, "run", self.run)
        monkeypatch.setattr(studies, "finished", lambda: {name.rsplit("-", 1)[1]: name for name in self.ran})
        monkeypatch.setattr(studies, "predictions_of", self.predictions_of)

    def run(self, experiment):
        if len(self.ran) == self.stop_after:
            raise KeyboardInterrupt
        self.ran.append(experiment.name)

    def predictions_of(self, study, experiment, found_as, task):
        labels, right = np.arange(100) % 2, 60 if experiment.variant == "uniform" else 40
        for seed in experiment.seeds:
            yield (
                seed,
                Predictions("matthews", labels, np.where(np.arange(100) < right + seed - 42, labels, 1 - labels)),
            )


FOLDER = Path("reports/studies")
AS_IN_STUDY = {"tasks": None, "seeds": None}


def test_an_interrupted_study_resumes_with_the_same_predictions(project, monkeypatch):
    Dvc(monkeypatch)
    conduct(["small"], Path("undisturbed"), **AS_IN_STUDY)
    dvc = Dvc(monkeypatch, stop_after=1)
    with pytest.raises(KeyboardInterrupt):
        conduct(["small"], FOLDER, **AS_IN_STUDY)
    assert len(dvc.ran) == 1 and not FOLDER.exists()
    dvc.stop_after = None
    conduct(["small"], FOLDER, **AS_IN_STUDY)
    written = sorted(FOLDER.glob("small/*"))
    assert [path.name for path in written] == ["about.json", "cola-42.json", "cola-43.json"]
    for path in written:
        assert path.read_bytes() == Path("undisturbed/small", path.name).read_bytes()
    assert [name.split("-")[1] for name in dvc.ran] == ["uniform", "top"]
    conduct(["small"], FOLDER, **AS_IN_STUDY)
    assert len(dvc.ran) == 2  # nothing is run twice


def test_all_runs_only_studies_without_evidence(project, monkeypatch, capsys):
    dvc = Dvc(monkeypatch)
    main(["--all"])
    assert [name.split("-")[1] for name in dvc.ran] == ["uniform", "top"]
    printed = capsys.readouterr().out
    assert "2 experiments, 2 to run: uniform, top" in printed and "holds" in printed
    dvc.ran.clear()
    page, chart = FOLDER / "README.md", FOLDER / "small/claims.svg"
    before = page.read_text(), chart.read_text()
    for path in (page, chart):
        path.unlink()
    main(["--all"])
    assert dvc.ran == [] and (page.read_text(), chart.read_text()) == before
    (project / "studies/other.yaml").write_text(SMALL.replace("uniform", "even"))
    main(["--all"])
    assert [name.split("-")[0] for name in dvc.ran] == ["other", "other"]


def test_a_mistake_in_any_study_appears_before_the_first_runs(project, monkeypatch):
    (project / "studies/zero.yaml").write_text(SMALL.replace("layer_map=top", "layer_map=topp"))
    dvc = Dvc(monkeypatch)
    with pytest.raises(UserError, match="study zero, variant top"):
        main(["small", "zero"])
    assert dvc.ran == []


@pytest.mark.parametrize("seeds", ["0", "1000"])
def test_an_impossible_number_of_seeds_is_one_line(project, seeds):
    with pytest.raises(UserError, match=rf"^--seeds: out of range \(got {seeds}\); allowed: 1 to 999; fix: --seeds 3$"):
        main(["small", "--seeds", seeds])


def test_a_page_without_evidence_names_the_fix(project):
    expected = r"--folder: no study has run \(got reports/studies\); fix: tinybert study NAME; allowed: small$"
    with pytest.raises(UserError, match=expected):
        main([])


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A git repository with a branch, main, and a file that is not committed as it is, which is entered."""
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("seed: 1")
    commit_all(tmp_path)
    Path("params.yaml").write_text("seed: 2")
    return tmp_path


class Killed(BaseException):
    pass


@contextmanager
def noted():
    """As while an experiment runs."""
    write_json(studies.NOTE, studies._workspace())
    yield


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_workspace_disturbed_by_a_kill_must_be_restored_first(repository, is_clean):
    if is_clean:
        git(repository, "checkout", "params.yaml")
    text = Path("params.yaml").read_text()
    with pytest.raises(Killed), noted():
        if not is_clean:
            git(repository, "stash")
        git(repository, "checkout", "--detach")
        Path("params.yaml").write_text("seed: 3")  # as DVC sets up an experiment
        raise Killed
    for _ in "12":
        with pytest.raises(UserError, match="killed while DVC had put the workspace's changes aside") as raised:
            check_disturbed_workspace()
    fix = str(raised.value).split("fix: restore them with ")[1].split(" (if nothing")[0]
    assert fix == "git checkout --force main" + ("" if is_clean else " && git stash pop")
    subprocess.run(fix, shell=True, check=True, capture_output=True)
    check_disturbed_workspace()
    assert Path("params.yaml").read_text() == text


def test_two_simultaneous_studies_are_rejected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with studies._only_study(), pytest.raises(UserError, match="another study runs"), studies._only_study():
        pass
    with studies._only_study():
        pass  # the first has ended


def test_other_kills_and_later_work_are_no_disturbance(repository):
    git(repository, "stash")
    git(repository, "stash", "apply")
    with pytest.raises(Killed), noted():
        raise Killed
    git(repository, "checkout", "-b", "other")
    git(repository, "stash", "drop")
    check_disturbed_workspace()
    assert not studies.NOTE.exists()


@pytest.mark.parametrize("code", [0, 1])
def test_the_workspace_is_noted_while_an_experiment_runs(repository, monkeypatch, code):
    noted = []
    monkeypatch.setattr(studies, "_run_to_end", lambda command: noted.append(studies.NOTE.is_file()) or code)
    with pytest.raises(UserError, match="small-top-1 failed") if code else nullcontext():
        studies.run(studies.Experiment("small-top-1", "top", (42,), (), ("evaluate",)))
    assert noted == [True] and not studies.NOTE.exists()


SLOW_TO_END = """
import signal, time
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)
    open("in order", "w").close()
"""
STUDY_PROCESS = """
import signal, sys
from tinybert.report.studies import _run_to_end
_run_to_end([sys.executable, "-c", sys.argv[1]])
"""


def test_ctrl_c_waits_for_dvc_to_put_things_in_order(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", STUDY_PROCESS, SLOW_TO_END],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout.readline() == b"ready\n"
    os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=60)
    assert (tmp_path / "in order").is_file()


def test_predictions_are_read_from_the_experiment(project, monkeypatch):
    import dvc.api

    asked = []

    def read(path, rev):
        asked.append((path, rev))
        return '{"student": {"metric": "matthews", "labels": [1, 0], "predictions": [1, 0]}}'

    monkeypatch.setattr(dvc.api, "read", read)
    found = dict(studies.predictions_of(load_study("small"), plan_of()[0], "older-name-1", "cola"))
    assert [predictions.score for predictions in found.values()] == pytest.approx([1.0, 1.0])
    assert asked == [
        ("reports/predictions/evaluate/cola-tinybert4/42.json", "older-name-1"),
        ("reports/predictions/evaluate/cola-tinybert4/43.json", "older-name-1"),
    ]


def test_learned_maps_are_read_from_the_experiment(project, monkeypatch):
    import dvc.api

    names = [paths.metrics("task_distill_intermediate", f"cola-tinybert4-{seed}") for seed in (42, 43)]
    files = {str(name): f'{{"layer_map": {{"map_1_1": 0.4{place}}}}}' for place, name in enumerate(names, start=2)}
    monkeypatch.setattr(dvc.api, "read", lambda path, rev: files[path])
    found = studies.maps_of(load_study("small"), plan_of()[0], "older-name-1", "cola")
    assert found == {"42": {"map_1_1": 0.42}, "43": {"map_1_1": 0.43}}
    files[str(names[1])] = "{}"  # of a map that is not learnable
    with pytest.raises(UserError, match=r"experiment older-name-1: reports/metrics/.*-43\.json cannot be read"):
        studies.maps_of(load_study("small"), plan_of()[0], "older-name-1", "cola")
