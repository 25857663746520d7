"""The numbers that DVC lists."""

import json

from tests.support.report_tree import PERPLEXITY, small_params, write_tree
from tinybert.report.build import build_report
from tinybert.report.headline import HEADLINE


def test_headline_numbers_are_those_of_the_metrics(tmp_path):
    write_tree(tmp_path)
    build_report(small_params(), tmp_path)
    found = json.loads((tmp_path / HEADLINE).read_text())
    assert list(found) == ["domain", "mrpc", "mnli"]
    assert {name: numbers["perplexity"] for name, numbers in found["domain"].items()} == PERPLEXITY
    expected = {"score": 0.7321, "kept": 0.5284, "int8_worst": 0.5, "pruned20": 0.7219}
    assert found["mrpc"] == {"tinybert4": expected}
    assert found["mnli"]["tinybert4"]["kept"] is None  # no lead over the majority guess
