"""A published comparison, run here: `python -m tinybert.studies layer_maps`, or `make study NAME=layer_maps`.

Runs the experiments of studies/<name>.yaml that there are not yet, one after another, and writes
reports/studies/<name>.md with a picture. Interrupted, it goes on where it was when it is said again.
"""

import argparse
import sys

from tinybert.config.load import load_params
from tinybert.pipeline.errors import UserError
from tinybert.studies import experiments
from tinybert.studies.result import write_result
from tinybert.studies.study import load_study
from tinybert.studies.verdict import findings
from tinybert.studies.workspace import check_disturbed_workspace, only_study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="a file of studies/, without .yaml")
    parser.add_argument("--tasks", nargs="+", help="some of the study's tasks only")
    parser.add_argument("--seeds", type=at_least_one, help="how many, in place of the study's number")
    options = parser.parse_args()
    try:
        print(conduct(options.name, tasks=options.tasks, seeds=options.seeds))
    except UserError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted: say it again to go on; what is finished is kept")


def at_least_one(text: str) -> int:
    """A number of seeds; argparse tells what is none."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


@only_study()
def conduct(name: str, *, tasks: list[str] | None, seeds: int | None) -> str:
    """Runs what lacks, compares, writes; returns the tables as text."""
    check_disturbed_workspace()
    study, params = load_study(name), load_params()
    tasks = study.choose_tasks(tasks, params)
    planned = experiments.plan(name, study, params, tasks=tasks, seeds=seeds or study.seeds)
    found_as = experiments.finished()
    missing: dict[str, experiments.Experiment] = {}
    for experiment in planned:
        if experiment.digest not in found_as:
            missing.setdefault(experiment.digest, experiment)  # variants of the same settings are one experiment
    print(f"{len(planned)} experiments, {len(missing)} to run: {', '.join(e.variant for e in missing.values()) or '-'}")
    for experiment in missing.values():
        experiments.run(experiment)
        found_as[experiment.digest] = experiment.name
    measured: dict = {(task, variant): {} for task in tasks for variant in study.variants}
    for experiment in planned:
        for task in tasks:
            answers = experiments.answers(study, experiment, found_as[experiment.digest], task)
            measured[task, experiment.variant] |= dict(answers)
    found = list(findings(study, measured, tasks=tasks, seed=params.seed))
    return write_result(name, study, measured, found, planned, tasks=tasks, seed=params.seed)


if __name__ == "__main__":
    main()
