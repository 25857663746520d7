"""Speed and memory of task distillation's intermediate phase against a plain reference, taking turns in one run.

`python -m benchmarks.task_distill`: embedding, hidden and attention losses for 20 epochs; the total of ours counts what
it takes to fill the teacher cache. The last line is the ratio of the totals. benchmarks/task_phase.py describes both.
"""

from benchmarks.task_phase import INTERMEDIATE, main

if __name__ == "__main__":
    main(INTERMEDIATE, __doc__)
