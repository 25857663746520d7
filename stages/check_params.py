"""Checks params.yaml and the local files that it names before anything runs.

DVC clears the paths that the names in params.yaml make before it runs a stage.
"""

import sys
from itertools import product

from tinybert.config.load import load_params
from tinybert.config.students import TASK_PHASES, training_of
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import printable, write_file, write_json


def main() -> None:
    """Prints an estimate of the run and writes the files that other stages read; exits 1 with a line per mistake."""
    try:
        params = load_params()
        from tinybert.estimate import estimate  # here: a mistake in params.yaml must not wait for PyTorch
        from tinybert.source_checks import check_sources

        rows = check_sources(params)
        for task, found in rows.items():
            if found.without_prediction:
                print(f"tasks.{task}: {found.without_prediction} of {found.count} training rows have no prediction")
        print("\n".join(estimate(params, rows)))
        if params.reads_text and params.teacher.source != "synthetic" and params.corpus.source == "synthetic":
            fix = "set corpus.source to local or hub; if teacher.pretraining.max_steps is 1, raise it"
            print(f"warning: corpus.source: synthetic, but a model trains on text; fix: {fix}")
        for task, name in product(params.tasks.run, params.tasks.students):
            phases = [phase for phase in TASK_PHASES if getattr(params.students[name], phase)]
            trainings = [training_of(params, name, phase, task=task).model_dump() for phase in phases]
            write_json(paths.trainings(task, name), trainings)
        # The second makes the folder of domain students, an input of package even if there is none.
        for path in (paths.PARAMS_CHECKED, paths.DOMAIN_STUDENTS / ".keep"):
            write_file(path, "params.yaml passes the checks of src/tinybert/config\n")
    except UserError as error:
        sys.exit("\n".join(map(printable, str(error).splitlines())))


if __name__ == "__main__":
    main()
