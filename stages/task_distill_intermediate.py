"""Task distillation, phase 1: the student imitates the task teacher's inner layers (Jiao et al. 2020)."""

from tinybert.stage import Stage, run_stage
from tinybert.training import distill_phase


def main(stage: Stage) -> None:
    """Gives the general student the task's head and trains it on the augmented rows; a student may skip this phase."""
    distill_phase(stage, "intermediate")


if __name__ == "__main__":
    run_stage(main, "task", "student", "seed", trains=True)
