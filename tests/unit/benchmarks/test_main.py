"""`python -m benchmarks`: what it runs, what it keeps of a benchmark that fails, what it writes."""

import importlib

import pytest

from benchmarks import __main__ as everything
from benchmarks.__main__ import Outcome, report, run, texts
from tests.support.project import ROOT

GOOD = Outcome("python -m benchmarks.one", ["a line", "ratio 12.5"], 1.24, None)
BAD = Outcome("python -m benchmarks.two --fast", ["half a"], 0.5, "ended with 3")


@pytest.mark.parametrize(
    ("code", "lines", "ratio", "error"),
    [
        ("print('seconds 3'); print('ratio 2.50')", ["seconds 3", "ratio 2.50"], "2.50", None),
        ("print('seconds 3'); raise SystemExit(3)", ["seconds 3"], "–", "ended with 3"),
        ("print('ratio 2'); print('more')", ["ratio 2", "more"], "–", "its last line is no ratio"),
        ("", [], "–", "its last line is no ratio"),
    ],
)
def test_what_a_benchmark_printed_is_kept_and_a_failure_noted(code, lines, ratio, error, tmp_path, monkeypatch):
    (tmp_path / "tried.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    outcome = run(["tried"])
    assert outcome.command == "python -m tried"
    assert (outcome.lines, outcome.ratio, outcome.error) == (lines, ratio, error)


def test_the_report_has_every_ratio_and_every_line():
    page = report([GOOD, BAD])
    assert "| `one` | 12.5 | 1.2 |\n| `two --fast` | – | 0.5 |\n" in page
    assert "## `one`\n\n```\na line\nratio 12.5\n```\n" in page
    assert "```\nhalf a\nFAILED: ended with 3\n```\n" in page
    assert "torch " in page


@pytest.mark.parametrize(("second", "code"), [(BAD, 1), (GOOD, 0)])
def test_a_failure_keeps_other_results_and_sets_the_exit_code(second, code, tmp_path, monkeypatch):
    monkeypatch.setattr(everything, "BENCHMARKS", (("one",), ("two", "--fast")))
    monkeypatch.setattr(everything, "REPORT", tmp_path / "benchmarks.md")
    outcomes = {"benchmarks.one": GOOD, "benchmarks.two": second}
    monkeypatch.setattr(everything, "run", lambda module: outcomes[module[0]])
    with pytest.raises(SystemExit) as ended:
        everything.main([])
    assert ended.value.code == code
    assert (tmp_path / "benchmarks.md").read_text() == report([GOOD, second])


def test_each_benchmark_gets_the_texts_in_its_own_options():
    given = {"data": "glue", "vocabulary": "bert/vocab.txt"}
    assert texts("task_distill", **given) == ["--data", "glue", "--vocabulary", "bert/vocab.txt"]
    assert texts("augment", **given) == ["--sentences", "glue/CoLA/train.tsv", "--tokenizer", "bert"]
    assert texts("corpus", **given) == texts("augment", data=None, vocabulary=None) == []


def test_all_that_is_run_is_there():
    names = [name for name, *_ in everything.BENCHMARKS]
    assert {"general_distill", "task_distill", "augment", "inference", "corpus"} == set(names)
    assert all(hasattr(importlib.import_module(f"benchmarks.{name}"), "main") for name in names)
    assert everything.REPORT == ROOT / "reports/benchmarks.md"
