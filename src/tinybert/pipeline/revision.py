"""Which state of the project made a result: git's revision, and the versions of the packages that matter."""

import subprocess
from importlib.metadata import version
from pathlib import Path

# metrics and reports are results themselves
RESULT_PATHS = ("src", "stages", "dvc.yaml", "params.yaml", "requirements.txt")
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "datasets", "onnx", "onnxruntime", "numpy")


def head_revision() -> str:
    """The commit that is checked out; "none" outside of git."""
    return git("rev-parse", "HEAD") or "none"


def code_revision() -> str:
    """The last commit that changed code, pipeline or params, so that committing results does not change it.

    With " and changes that are not committed" where there are such in them; "none" outside of git.
    """
    commit = git("log", "-1", "--format=%H", "--", *RESULT_PATHS)
    if not commit:
        return "none"
    changed = git("status", "--porcelain", "--", *RESULT_PATHS)
    return f"{commit} and changes that are not committed" if changed else commit


def package_versions() -> dict[str, str]:
    """The versions of the packages that decide results."""
    return {package: version(package) for package in PACKAGES}


def git(*arguments: str, root: str | Path = ".") -> str:
    """What a git command prints, less the last line's end; empty where it fails."""
    try:
        answer = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.rstrip("\n") if answer.returncode == 0 else ""
