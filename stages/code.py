"""The digest of each stage's code: editing a docstring reruns nothing, editing a loss reruns what imports it."""

from pathlib import Path

from tinybert.pipeline import paths
from tinybert.pipeline.code_digest import code_digest
from tinybert.pipeline.files import atomic_folder


def main() -> None:
    """Writes one file for each stage script."""
    with atomic_folder(paths.CODE_DIGESTS) as folder:
        for script in Path(__file__).parent.glob("[a-z]*.py"):
            (folder / script.stem).write_text(code_digest(script.stem), encoding="utf-8")


if __name__ == "__main__":
    main()
