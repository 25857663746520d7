"""dvc.yaml against the scripts: deps are the imports, params exist, every stage is there."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.support.dependencies import ROOT, used_modules
from tinybert.config.load import load_params
from tinybert.stage import declared_params, declared_values

STAGES = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]
SCRIPTS = {path.stem: path for path in (ROOT / "stages").glob("[a-z]*.py")}
ITEMS = {"corpus": "general", "student": "tinybert4", "task": "cola", "model": "teacher"}
ITEMS |= {"sparsity": "20", "seed": "43"}


def test_every_script_is_a_stage_and_every_stage_a_script():
    assert set(STAGES) == set(SCRIPTS)
    for name, stage in STAGES.items():
        options = " ${item}" if "matrix" in stage else ""  # DVC makes quoted options of it
        assert stage["cmd"] == f"python -m stages.{name}{options}"
        assert stage["desc"]


@pytest.mark.parametrize("name", sorted(STAGES))
def test_code_deps_are_the_modules_that_the_script_imports(name):
    deps = STAGES[name]["deps"]
    code = {dep for dep in deps if dep.endswith(".py")}
    assert code == used_modules(SCRIPTS[name]) | {f"stages/{name}.py"}
    assert len(deps) == len(set(deps))


@pytest.mark.parametrize("name", sorted(STAGES.keys() - {"check_params"}))
def test_params_are_checked_before_each_stage(name):
    assert STAGES["check_params"]["outs"][0] in STAGES[name]["deps"]


@pytest.mark.parametrize("name", sorted(STAGES))
def test_declared_params_exist(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    items = {item: ITEMS[item] for item in STAGES[name].get("matrix", {})}
    if name in ("domain_distill", "evaluate_domain"):
        items["student"] = "lazy"
    declared = declared_params(name, items)
    assert not any("$" in key for key in declared)
    assert set(declared_values(load_params(), declared)) == set(declared)


def test_the_reports_params_are_all_of_them():
    assert set(STAGES["report"]["params"]) == set(YAML(typ="safe").load(ROOT / "params.yaml"))


def test_stage_scripts_are_short():
    assert {name for name, path in SCRIPTS.items() if len(Path(path).read_text().splitlines()) > 80} == set()
