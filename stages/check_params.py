"""All of params.yaml, before any other stage: DVC clears the paths that its names make before it runs a stage."""

import sys

from tinybert.config.load import load_params
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_file


def main() -> None:
    """One line for each mistake and exit code 1; else a mark, always the same, which all stages depend on."""
    try:
        load_params()
        with atomic_file(paths.PARAMS_CHECKED) as handle:
            handle.write("params.yaml has the form that src/tinybert/schema.py gives it\n")
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
