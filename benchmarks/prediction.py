"""Speed and memory of task distillation's prediction phase against a plain reference, taking turns in one run.

`python -m benchmarks.prediction`: soft cross-entropy on the logits for 3 epochs. An epoch of the intermediate phase has
gone before and left the teacher's answers; the total of ours counts what it takes to open them. The last line is the
ratio of the totals. How both work is said in benchmarks/task_phase.py.
"""

from benchmarks.task_phase import PREDICTION, main

if __name__ == "__main__":
    main(PREDICTION, __doc__)
