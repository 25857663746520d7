"""The report: a page, a summary for git and one for the terminal, and the result table on MLflow's parent run."""

from tinybert.config.load import load_params
from tinybert.pipeline.files import atomic_file
from tinybert.report.build import build_report
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Reads what the stages left, by the lists of params: it declares all of them."""
    report = build_report(load_params())
    with atomic_file("reports/summary.txt") as handle:
        handle.write(report.summary_text)
    stage.run.log_result_table(report.result_rows)


if __name__ == "__main__":
    run_stage(main)
