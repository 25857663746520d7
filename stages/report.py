"""The report: the page, the summaries for git and terminal, the collected metrics, MLflow's table of all results."""

from tinybert.config.load import load_params
from tinybert.report.page import build_report
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Reads what the stages left by the lists of params; it declares all of these."""
    params = load_params()
    stage.run.log_result_table(build_report(params), params.model_dump(mode="json"))


if __name__ == "__main__":
    run_stage(main)
