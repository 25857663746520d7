"""Checks params.yaml, its tables and teachers first: DVC clears the paths that names make before it runs a stage."""

import sys

from tinybert.config.load import load_params
from tinybert.config.sources import check_teachers
from tinybert.data.table_files import check_tables
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_file


def main() -> None:
    """Prints one line for each mistake and exits with 1; otherwise writes a constant file that all stages depend on."""
    try:
        params = load_params()
        check_tables(params.tasks.own)
        check_teachers(params)
        with atomic_file(paths.PARAMS_CHECKED) as handle:
            handle.write("params.yaml passes the checks of src/tinybert/config\n")
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
