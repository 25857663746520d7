"""Which commit and which packages made a result."""

from importlib.metadata import version

from tinybert.pipeline.process import git

# Metrics and reports are results themselves.
RESULT_PATHS = ("src", "stages", "dvc.yaml", "params.yaml", "requirements.txt")
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "datasets", "onnx", "onnxruntime", "numpy")


def code_revision() -> str:
    """The last commit that changed code, pipeline or params: committing results does not change it.

    Ends in " and uncommitted changes" if there are such in them; "none" outside of git.
    """
    commit = git("log", "-1", "--format=%H", "--", *RESULT_PATHS)
    if not commit:
        return "none"
    return f"{commit} and uncommitted changes" if git("status", "--porcelain", "--", *RESULT_PATHS) else commit


def package_versions() -> dict[str, str]:
    """The versions of the packages that decide results."""
    return {package: version(package) for package in PACKAGES}
