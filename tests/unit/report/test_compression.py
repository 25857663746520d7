"""Compressed models that are no better than guessing are said to be so."""

import pytest

from tests.support.report_tree import small_params, write_tree
from tinybert.pipeline.files import read_json, write_json
from tinybert.report.compression import compression_table, pruning_table
from tinybert.report.results import load_results
from tinybert.report.tables import task_table


@pytest.fixture
def root(tmp_path):
    write_tree(tmp_path)
    return tmp_path


def rewrite(path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_pruned_student_at_the_majority_guess_is_flagged(root):
    rewrite(root / "reports/metrics/prune/mrpc-tinybert4-20.json", "0.7219", "0.6")
    flags = {row[0]: row[-1] for row in pruning_table(load_results(small_params(), root)).rows}
    assert flags == {"mrpc": "≤ majority", "mnli": ""}


def test_a_form_at_the_majority_guess_is_best_by_nothing(root):
    path = root / "reports/metrics/quantize/mrpc-tinybert4.json"
    forms = read_json(path)
    forms["qoperator"]["dev"] = {"accuracy": 0.55, "f1": 0.55}  # the smallest file of all
    write_json(path, forms)
    table = compression_table(load_results(small_params(), root), with_latency=False, with_intervals=False)
    remarks = {row[2]: row[-1] for row in table.rows if row[:2] == ("mrpc", "tinybert4")}
    assert remarks["qoperator"] == "≤ majority" and remarks["qdq"] == "size"


def test_a_student_below_the_majority_guess_that_did_not_collapse_is_flagged(root):
    rewrite(root / "reports/metrics/evaluate/mrpc-tinybert4.json", "0.7321", "0.59")
    flags = {row[0]: row[-1] for row in task_table(load_results(small_params(), root)).rows}
    assert flags == {"mrpc": "≤ majority", "mnli matched": "collapsed", "mnli mismatched": "collapsed"}
