"""Task distillation, phase 2: the student imitates the task teacher's predictions (Jiao et al. 2020)."""

from tinybert.stage import Stage, run_stage
from tinybert.training import distill_phase


def main(stage: Stage) -> None:
    """Trains the student of phase 1 on the augmented rows; no model is selected, the last step counts."""
    distill_phase(stage, "prediction")


if __name__ == "__main__":
    run_stage(main, "task", "student", "seed", trains=True)
