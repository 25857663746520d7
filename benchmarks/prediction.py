"""Speed and memory of task distillation's prediction phase against a plain reference, taking turns in one run.

`python -m benchmarks.prediction`: soft cross-entropy on the logits for 3 epochs. An epoch of the intermediate phase
fills the teacher cache before; the total of ours counts what it takes to open it. The last line is the ratio of the
totals. benchmarks/task_phase.py describes both.
"""

from benchmarks.task_phase import PREDICTION, main

if __name__ == "__main__":
    main(PREDICTION, __doc__)
