"""Which state of the project made a result: git's revision, and the versions of the packages that matter."""

import subprocess
from importlib.metadata import version

RESULT_PATHS = ("src", "stages", "dvc.yaml", "params.yaml")  # metrics and reports are results themselves
PACKAGES = ("torch", "safetensors", "tokenizers", "transformers", "onnx", "onnxruntime")


def head_revision() -> str:
    """The commit that is checked out; "none" outside of git."""
    return _git("rev-parse", "HEAD") or "none"


def code_revision() -> str:
    """The last commit that changed code, pipeline or params, so that committing results does not change it.

    With " and changes that are not committed" where there are such in them; "none" outside of git.
    """
    commit = _git("log", "-1", "--format=%H", "--", *RESULT_PATHS)
    if not commit:
        return "none"
    changed = _git("status", "--porcelain", "--", *RESULT_PATHS)
    return f"{commit} and changes that are not committed" if changed else commit


def package_versions() -> dict[str, str]:
    """The versions of the packages that weights, graphs and tokens depend on."""
    return {package: version(package) for package in PACKAGES}


def _git(*arguments: str) -> str:
    """What a git command prints; empty where it fails."""
    try:
        answer = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
