"""dvc.yaml against the scripts: every stage is there, its params exist, its code and the checked params are deps."""

import pytest
import yaml

from tests.support.root import ROOT
from tinybert.config.load import load_params
from tinybert.stage import declared, declared_values

STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
SCRIPTS = {path.stem: path for path in (ROOT / "stages").glob("[a-z]*.py")}
FIRST = ("check_params", "code")
ITEMS = {"corpus": "general", "student": "tinybert4", "model": "teacher", "sparsity": "20"}


def test_every_script_is_a_stage_and_every_stage_a_script():
    assert set(STAGES) == set(SCRIPTS)
    for name, stage in STAGES.items():
        options = " ${item}" if "matrix" in stage else ""  # DVC makes quoted options of it
        assert stage["cmd"] == f"python -m stages.{name}{options}"
        assert stage["desc"]


@pytest.mark.parametrize("name", sorted(STAGES.keys() - set(FIRST)))
def test_a_stage_depends_on_its_code_and_on_checked_params(name):
    assert STAGES[name]["deps"][:2] == ["data/params_checked", f"data/code/{name}"]
    assert not any(dep.endswith(".py") for dep in STAGES[name]["deps"])


@pytest.mark.parametrize("name", sorted(STAGES.keys() - set(FIRST)))
def test_declared_params_exist(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    params = load_params()
    items = ITEMS | {"task": params.tasks.run[0], "seed": str(params.seed)}
    if "domain" in name:
        items["student"] = params.domain.students[0]
    names = {f"item.{item}": items[item] for item in STAGES[name].get("matrix", {})} | {"seed": str(params.seed)}
    for section in ("params", "deps"):
        assert not any("$" in key for key in declared(section, name, names))
    keys = declared("params", name, names)
    assert set(declared_values(params, keys)) == set(keys)


def test_the_report_depends_on_all_params():
    assert "params.yaml" in STAGES["report"]["deps"]
    assert "params" not in STAGES["report"]


def test_stage_scripts_and_files_of_dvc_are_short():
    assert {name for name, path in SCRIPTS.items() if len(path.read_text().splitlines()) > 62} == set()
    assert len((ROOT / "dvc.yaml").read_text().splitlines()) < 300
    assert (ROOT / "dvc.lock").stat().st_size < 120_000
