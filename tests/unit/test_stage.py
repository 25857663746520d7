"""What a stage writes beside its outputs."""

from pathlib import Path

from tinybert.config.load import StageParams
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_file
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


def test_a_fingerprint_is_of_params_code_and_inputs(tmp_path, monkeypatch):
    def digest(rate=1.0):
        values = {"rate": rate, "teacher": {"source": "local", "local": {"folder": "given"}}, "hub.folder": None}
        return Stage("prune", {}, StageParams({}, []), values, {"item.task": "cola"}, Run()).fingerprint()

    def write_rows(name, text):
        with atomic_file(Path("data/cola") / name) as handle:
            handle.write(text)

    monkeypatch.chdir(tmp_path)
    deps = "[data/params_checked, data/code/prune, 'data/${item.task}']"
    Path("dvc.yaml").write_text(f"stages: {{prune: {{deps: {deps}}}}}")
    write_rows("rows", "1")
    code = ["a"]
    monkeypatch.setattr("tinybert.stage.code_digest", lambda name: code[0])
    before, started = digest()(), digest()
    assert digest()() == before != digest(2.0)()
    code[0] = "b"
    assert digest()() != before == started()  # code is read at the start
    code[0] = "a"
    write_rows("rows", "2")
    assert digest()() != before != started()  # inputs are read at the call
    write_rows("rows", "1")
    assert digest()() == before
    Path("data/cola/rows").rename("data/cola/others")
    assert digest()() != before
    Path("data/cola/others").rename("data/cola/rows")
    with atomic_file("given/model.safetensors") as handle:  # a third party's model, which dvc.yaml does not list
        handle.write("1")
    assert digest()() != before
