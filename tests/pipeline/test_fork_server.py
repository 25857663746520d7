"""Processes of the fork server behave like those of Python, but need not import the large libraries."""

import os
import signal

import pytest

from tests.support.project import run

pytestmark = pytest.mark.skipif("COVERAGE_PROCESS_CONFIG" in os.environ, reason="coverage runs without it")
PROBE = """
import os, sys
loaded = sorted({name.split(".")[0] for name in sys.modules} & {"torch", "huggingface_hub", "tests", "tinybert"})
print(os.getcwd(), os.environ["GIVEN"], sys.argv[1:], loaded, __name__, sys.path[0])
sys.exit("no")
"""


def test_a_fork_has_its_own_folder_environment_and_streams(tmp_path):
    (tmp_path / "probe.py").write_text(PROBE)
    found = run(tmp_path, "probe", "x", GIVEN="y")
    assert found.stdout == f"{tmp_path} y ['x'] ['torch'] __main__ {tmp_path}\n"
    assert (found.returncode, found.stderr) == (1, "no\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_fork_is_reported_as_killed(tmp_path, number):
    (tmp_path / "probe.py").write_text(f"import os\nos.kill(os.getpid(), {int(number)})\n")
    assert run(tmp_path, "probe").returncode == -number


def test_modules_of_two_folders_do_not_mix(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "other.py").write_text(f"NAME = {name!r}\n")
        (tmp_path / name / "probe.py").write_text("import other\nprint(other.NAME)\n")
    assert [run(tmp_path / name, "probe").stdout for name in ("one", "two")] == ["one\n", "two\n"]
