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
    for name in ("ask", "study", "profile", "convert", "push", "quantize", "record"):
        assert f"\n    {name} " in found.stdout


@pytest.mark.parametrize("command", ["convert", "push", "profile", "quantize", "record", "ask"])
def test_each_command_has_help_of_its_own(command, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: tinybert {command}" in capsys.readouterr().out
