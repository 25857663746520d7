"""What speed costs: the two ways differ in speed alone, and the report is that of the runs."""

import numpy as np

from benchmarks.speed_cost import TrialRun, report, ways
from tests.support.root import ROOT
from tinybert.config.tasks import TASKS
from tinybert.data.encoding import Encoded


def test_the_ways_differ_in_precision_and_teacher_cache_only(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("benchmarks.speed_cost.best_precision", lambda: "bfloat16")
    found = {name: params.model_dump() for name, params in ways(TASKS["cola"], [3, 2]).items()}
    assert found["plain"] != found["fast"]
    assert (found["fast"]["precision"], found["plain"]["precision"]) == ("bfloat16", "float32")
    assert found["plain"]["tasks"]["teacher_cache_gb"] == 0 < found["fast"]["tasks"]["teacher_cache_gb"]
    for tree in found.values():
        assert (tree["tasks"]["cola"]["intermediate"]["epochs"], tree["tasks"]["cola"]["prediction"]["epochs"]) == (
            3,
            2,
        )
        del tree["precision"], tree["tasks"]["teacher_cache_gb"]
    assert found["plain"] == found["fast"]


def test_the_report_is_that_of_the_runs(capsys):
    labels = np.array([0, 1] * 20)
    dev = Encoded([np.array([2, 3])] * 40, [np.array([0, 0])] * 40, labels)
    wrong = np.where(np.arange(40) < 4, 1 - labels, labels)
    runs = {"fast": [TrialRun(labels, 1.0, 5.0), TrialRun(wrong, 0.9, 5.0)], "plain": [TrialRun(labels, 1.0, 20.0)] * 2}
    report(runs, TASKS["sst2"], dev, seed=0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["fast", "0.950", "±", "0.071", "5.0", "s", "a", "run"]
    assert lines[2].startswith("difference -0.050, 95 % interval -0.")
    assert lines[3] == "ratio 4.00"
