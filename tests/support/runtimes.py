"""Other runtimes of ONNX files, installed into temporary folders; a test skips with the installer's reason."""

import atexit
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

OLD_PACKAGES = ("onnxruntime==1.17.*", "numpy<2")
NODE_PACKAGE = "@huggingface/transformers@4"


@cache
def old_python() -> Path:
    """The Python of an environment with the oldest ONNX Runtime that portable files support."""
    folder = temporary_folder("old-runtime-")
    run_or_skip(sys.executable, "-m", "venv", str(folder))
    run_or_skip(str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *OLD_PACKAGES)
    return folder / "bin/python"


@cache
def node_modules() -> Path:
    """The node_modules of transformers.js, which brings onnxruntime-node and onnxruntime-web."""
    for program in ("node", "npm"):
        if not shutil.which(program):
            pytest.skip(f"no {program}; fix: install nodejs and npm")
    folder = temporary_folder("node-")
    # Without its script, which fetches CUDA, onnxruntime-node has its CPU library.
    run_or_skip("npm", "install", "--silent", "--ignore-scripts", "--prefix", str(folder), NODE_PACKAGE)
    return folder / "node_modules"


def temporary_folder(prefix: str) -> Path:
    """A folder that is removed when the tests end."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def run_or_skip(*command: str) -> None:
    """Runs an installer; the test is skipped if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        pytest.skip(f"{' '.join(command[-4:])}: {lines[-1]:.200}")


def run_node(code: str, folder: Path) -> str:
    """What a script prints that runs in `folder`, where transformers.js is installed."""
    if not (folder / "node_modules").exists():
        (folder / "node_modules").symlink_to(node_modules())
    (folder / "script.mjs").write_text(code)
    done = subprocess.run(["node", "script.mjs"], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout
