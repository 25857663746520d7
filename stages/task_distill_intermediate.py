"""Task distillation, phase 1: the student imitates the task teacher's inner layers (Jiao et al. 2020)."""

from tinybert.stage import run_stage
from tinybert.training import distill_phase as main

if __name__ == "__main__":
    run_stage(main, "task", "student", "seed", trains=True)
