"""The tinybert command."""

import subprocess
import sys

import pytest

from tests.support.root import ROOT
from tinybert import cli


def test_help_names_all_commands_and_imports_nothing_heavy():
    code = (
        "import sys; from tinybert import cli\n"
        "try: cli.main(['--help'])\n"
        "finally: print([name for name in ('torch', 'mlflow', 'pandas', 'pydantic') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "src", capture_output=True, text=True)
    assert found.returncode == 0 and found.stdout.endswith("[]\n")
    for name in ("ask", "study", "profile", "convert", "push", "quantize", "record", "register"):
        assert f"\n    {name} " in found.stdout


@pytest.mark.parametrize("command", ["convert", "push", "profile", "quantize", "record", "register", "ask"])
def test_each_command_has_help_of_its_own(command, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: tinybert {command}" in capsys.readouterr().out


def test_a_final_model_is_registered(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(SystemExit, match=r"models/final/cola/tinybert4: absent; fix: run dvc repro, or dvc pull"):
        cli.main(["register", "cola/tinybert4"])
    (tmp_path / "models/final/cola/tinybert4").mkdir(parents=True)
    for version in (1, 2):
        cli.main(["register", "cola/tinybert4"])
        assert capsys.readouterr().out == f"cola-tinybert4, version {version}: models/final/cola/tinybert4\n"
