"""What a stage writes beside its outputs."""

from tinybert.config.load import StageParams
from tinybert.pipeline import paths
from tinybert.pipeline.tracking import Run
from tinybert.stage import Stage


def stage(name: str, items: dict[str, str], values: dict) -> Stage:
    return Stage(name, items, StageParams({}, []), values, {}, Run())


def test_provenance_grows_by_one_entry_per_stage():
    general = stage("general_distill", {"student": "tinybert4"}, {"seed": 42})
    first = general.provenance([{"step": 10, "total": 2.0}, {"step": 20, "total": 1.0}])
    expected = {"stage": "general_distill", "student": "tinybert4", "steps": 20, "params": {"seed": 42}}
    assert first == [expected]
    task = stage("task_distill_prediction", {"task": "cola", "seed": "43"}, {"precision": "float32"})
    second = {"stage": "task_distill_prediction", "task": "cola", "seed": "43", "steps": 0}
    assert task.provenance([], first) == [expected, second | {"params": {"precision": "float32"}}]


def test_provenance_leaves_out_what_changes_no_result():
    values = {"tasks.teacher_cache_gb": 2.0, "tasks.run": ["cola"]}
    prune = stage("prune", {}, values)
    assert prune.provenance([])[0]["params"] == {"tasks.run": ["cola"]}
    assert prune.values == values


def test_steps_of_a_curve_are_exact(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    general = stage("general_distill", {"student": "lazy"}, {})
    general.write_curve([{"step": 1_234_567, "total": 1.23456789}])
    assert paths.curve("general_distill", "lazy").read_text().split() == ["step,total", "1234567,1.23457"]
