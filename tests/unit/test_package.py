"""The package that `pip install .` makes."""

import re
import subprocess
import tomllib

import yaml

from tests.support.root import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def test_floors_are_at_most_the_pinned_versions():
    pins = dict(re.findall(r"^([\w.-]+)==([\d.]+)", (ROOT / "requirements.txt").read_text(), flags=re.MULTILINE))
    floors = dict(dependency.split(">=") for dependency in PROJECT["dependencies"])
    assert floors.keys() == pins.keys()
    assert all(version(floors[name]) <= version(pins[name]) for name in pins)


def test_ci_runs_the_script_on_the_supported_versions():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    job = workflow["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert job["steps"][-1] == {"run": ".ci/run"}
    assert PROJECT["requires-python"] == ">=3.11"


def test_the_citation_names_software_and_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["type"], citation["license"]) == ("software", PROJECT["license"])
    assert citation["version"] == PROJECT["version"]
    assert citation["preferred-citation"]["doi"] == "10.18653/v1/2020.findings-emnlp.372"


def test_git_holds_the_results_of_the_stage_without_cache():
    """Otherwise `dvc metrics diff` and `dvc pull` miss them."""
    uncached = set()
    for name, stage in yaml.safe_load((ROOT / "dvc.yaml").read_text("utf-8"))["stages"].items():
        for output in (*stage.get("outs", ()), *stage.get("metrics", ()), *stage.get("plots", ())):
            if isinstance(output, dict):
                ((path, options),) = output.items()
                if options.get("cache") is False:
                    uncached.add(name)
                    ignored = subprocess.run(["git", "check-ignore", "--quiet", path], cwd=ROOT, check=False)
                    assert ignored.returncode == 1, path
    assert uncached == {"report"}
