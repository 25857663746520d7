"""The report on a tree of metrics whose numbers are set by hand."""

import re
import shutil
from pathlib import Path

import pytest

from tests.support.report_tree import NASTY, Outline, small_params, write_tree
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_json, write_json
from tinybert.report.build import build_report
from tinybert.report.results import stage_instances

SHOWN = [
    ["teacher", "1,816,224", "5.02", "5.02", "0.510", "0.600", "–", "–"],
    ["little_professor", "345,678", "8.13", "8.13", "0.290", "0.600", "0.717", "0.456"],
    ["untrained", "345,678", "4,012.50", "4,012.50", "0.002", "0.600", "–", "–"],
    ["lazy", "history", "100", "0.310", "0.600"],
    ["mrpc", "tinybert4", "accuracy", "0.850", "0.732", "0.600", "86.1 %", "52.8 %", "f1 0.864", ""],
    ["mnli mismatched", "tinybert4", "accuracy", "0.900", "0.782", "0.650", "86.1 %", "–", "0.818", "collapsed"],
    ["mrpc", "test", "f1", "0.875", "0.864", "0.873"],
    ["mrpc", "tinybert4", "qdq", "0.720", "-0.012 to +0.004", "98.7 %", "1.21", "0.61", "24.0", "24.0", "3.000",
     "size"],
    ["mrpc", "tinybert4", "fp32", "0.730", "-0.012 to +0.004", "98.7 %", "4.44", "2.22", "24.0", "24.0", "3.000",
     "size, speed"],
    ["mnli", "teacher", "fp32", "0.730", "-0.012 to +0.004", "98.7 %", "44.44", "22.22", "–", "–", "–", ""],
    ["mrpc", "tinybert4", "dynamic", "32", "128 tokens", "24.00", "23.00", "26.05", "10.0 ×"],
    ["mrpc", "tinybert4", "dynamic", "1", "dev rows", "24.00", "23.00", "26.05", "10.0 ×"],
    ["mrpc", "tinybert4", "20 %", "20.0 %", "0.732", "0.722", "1.39", "1.20", ""],
    ["history", "war", "40", "30", "75.0 %"],
    ["domain", "train", "900", "900", "777", "49,999", "1.2 %"],
    ["mnli", "train", "1,500", "4,321"],
    ["task_distill_intermediate", "mrpc-tinybert4", "not trained", "0"],
    ["prepare_teacher", "", "123.4", "100.0 %", "987"],
    ["general_distill", "lazy", "–", "–", "–"],
]  # fmt: skip


@pytest.fixture(scope="module")
def params():
    return small_params()


@pytest.fixture(scope="module")
def made(params, tmp_path_factory):
    """The tree with a report in it, and the report; not to be changed."""
    root = tmp_path_factory.mktemp("made")
    write_tree(root)
    return root, build_report(params, root)


@pytest.fixture
def tree(made, tmp_path):
    """A copy to change."""
    return Path(shutil.copytree(made[0], tmp_path / "tree"))


def page(root: Path) -> str:
    return (root / "reports/index.html").read_text(encoding="utf-8")


def test_the_page_shows_the_numbers_of_the_metrics(made):
    rows = Outline(page(made[0])).rows
    assert [row for row in SHOWN if row not in rows] == []


def test_the_page_stands_alone(made):
    html = page(made[0])
    outline = Outline(html)
    assert not re.search(r"https?://", html)
    assert not {"script", "iframe", "img", "object", "embed"} & set(outline.tags)
    assert "url(" not in html and "@import" not in html
    inside = [reference for reference in outline.references if reference != "data:,"]
    assert inside and all(reference.removeprefix("#") in outline.ids for reference in inside)


def test_data_is_escaped(made):
    html = page(made[0])
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 4  # a term, a question, an answer, an augmented row, a loss
    assert [f"{NASTY} is [MASK].", "paris", *[f"paris 0.40, {NASTY} 0.40"] * 4] in Outline(html).rows
    assert "<mark>paris 0.40</mark>" in html  # the right answer


def test_augmented_rows_begin_with_their_original(made):
    rows = Outline(page(made[0])).rows
    start = rows.index(["mrpc", "original", f"first {NASTY} ⁄ first {NASTY}"])
    assert rows[start + 1] == ["mrpc", "variation", "varied 0 ⁄ varied 0"]
    assert rows[start + 4][:2] == ["mnli", "original"]


def test_curves_are_drawn_and_their_numbers_given(made):
    html = page(made[0])
    # teacher: total, hard; lazy: total, a strange term; none for the learning rate; three fronts, two pruning curves,
    # three students that imitate layers, the seconds by stage
    assert html.count("<figure") == 4 + 3 + 2 + 3 + 1
    rows = Outline(html).rows
    assert ["teacher", "10", "0", "0.001", "7.7", "7.7"] in rows
    assert ["teacher", "290", "0", "3.44828e-05", "0.265517", "0.265517"] in rows


def test_summary_names_the_best(made):
    text = " ".join((made[0] / "reports/summary.md").read_text(encoding="utf-8").split())
    assert "little_professor has the lowest perplexity on domain text (8.13; lazy 8.51; attentive 9.03)" in text
    assert "lazy answers most questions (0.310; attentive 0.270; little_professor 0.290)" in text
    assert "tinybert4 keeps 52.8 % of the teacher's lead over the majority guess (mean of 1)" in text
    assert "Collapsed: tinybert4 on mnli matched, tinybert4 on mnli mismatched" in text
    assert "| mrpc | best | tinybert4 | fp32 | 0.730 | 86 % | 52 % | 4.44 | 10.0 × |" in text
    assert "| mrpc | smallest | tinybert4 | qdq | 0.720 | 85 % | 48 % | 1.21 | 36.7 × |" in text
    assert "| mnli | – | none beats a guess |" in text  # it collapsed


def test_summary_holds_no_timings_and_is_the_same_again(made, tree, params):
    first = (made[0] / "reports/summary.md").read_bytes()
    write_json(tree / "reports/timings/prepare_teacher.json", {"seconds": 999.9, "peak_memory_mb": 1})
    shutil.rmtree(tree / "reports/latency")
    build_report(params, tree)
    assert (tree / "reports/summary.md").read_bytes() == first
    assert b"123.4" not in first and b"24.0" not in first


def test_terminal_summary_fits(made):
    lines = made[1].summary_text.splitlines()
    assert max(map(len, lines)) <= 100
    assert {"Domain examination", "GLUE tasks, dev split", "ONNX models"} <= set(lines)
    assert "mrpc tinybert4 qdq 0.720 98.7 % 1.21 0.61 24.0 24.0 size" in [" ".join(line.split()) for line in lines]


def test_the_end_of_the_terminal_summary_answers_which_student_to_take(made):
    screen = made[1].summary_text.splitlines()[-24:]
    start = screen.index("Which student do I take?")
    assert " ".join(screen[start + 2].split()) == "mrpc best tinybert4 fp32 0.730 86 % 52 % 4.44 10.0 × 3.000 10.0 ×"
    assert any(line.startswith("Tasks: tinybert4 keeps 52.8 %") for line in screen[start:])


def test_result_rows_are_the_metrics_unrounded(made):
    rows = {(row["group"], row["model"]): row for row in made[1].result_rows}
    assert len(rows) == len(made[1].result_rows)
    assert rows["domain", "lazy"]["perplexity_domain"] == 8.512
    assert rows["mrpc", "tinybert4"]["score"] == 0.7321
    assert rows["mrpc", "tinybert4"]["retention_above_majority"] == 0.5284
    assert rows["mnli_dev_mismatched", "tinybert4"]["collapsed"] == 1
    assert rows["mrpc", "tinybert4/qdq"]["latency_ms_batch_32"] == 24.0
    assert rows["mrpc", "tinybert4_pruned20"]["sparsity"] == 0.20004


def test_metrics_of_all_stages_are_brought_together_and_no_others(tree, params):
    write_json(tree / "metrics/evaluate/of_older_params.json", {})
    write_json(tree / "reports/metrics/evaluate/of_older_params.json", {})
    build_report(params, tree)
    brought = {str(path.relative_to(tree)): read_json(path) for path in tree.glob("metrics/**/*.json")}
    left = {"/".join(filter(None, ("metrics", *names))) + ".json" for names in stage_instances(params)}
    assert brought.keys() == left
    assert all(found == read_json(tree / "reports" / name) for name, found in brought.items())


def test_files_of_systems_that_params_do_not_list_change_nothing(made, tree, params):
    write_json(tree / "reports/metrics/evaluate/cola-tinybert6.json", {"split": "dev"})
    write_json(tree / "reports/metrics/evaluate_domain/stranger.json", {})
    build_report(params, tree)
    assert page(tree) == page(made[0])


def test_missing_metrics_are_all_named_with_their_stage(tree, params):
    (tree / "reports/metrics/evaluate/mrpc-tinybert4.json").unlink()
    (tree / "reports/metrics/prepare_teacher.json").write_text("{")
    with pytest.raises(UserError) as error:
        build_report(params, tree)
    teacher, evaluation = str(error.value).splitlines()
    assert teacher.startswith("reports/metrics/prepare_teacher.json: no valid JSON; stage prepare_teacher")
    assert evaluation.startswith("reports/metrics/evaluate/mrpc-tinybert4.json: missing; stage evaluate")
    assert "dvc repro evaluate@mrpc-tinybert4" in evaluation


def test_a_metrics_file_without_a_score_is_named(tree, params):
    write_json(tree / "reports/metrics/evaluate/mrpc-tinybert4.json", {"split": "dev", "teacher": {}})
    with pytest.raises(UserError, match=r"evaluate/mrpc-tinybert4\.json: has no teacher\.accuracy"):
        build_report(params, tree)


def test_files_that_dvc_need_not_restore_may_be_missing(tree, params):
    for folder in ("reports/answers", "reports/curves", "reports/latency", "reports/timings", "data/augmented"):
        shutil.rmtree(tree / folder)
    build_report(params, tree)
    html = page(tree)
    # Of two tasks score over size and over sparsity; three layer maps.
    assert html.count("<figure") == 4 + 3 and "Some answers" not in html
    assert ["prepare_teacher", "", "–", "–", "–"] in Outline(html).rows


def test_untrained_students_that_differ_are_told_apart(tree, params):
    path = tree / "reports/metrics/evaluate_domain/attentive.json"
    path.write_text(path.read_text().replace("4012.5", "3999.5"))
    build_report(params, tree)
    rows = Outline(page(tree)).rows
    assert [row[:3] for row in rows if row and row[0].startswith("untrained") and len(row) == 8] == [
        ["untrained lazy", "345,678", "4,012.50"],
        ["untrained attentive", "345,678", "3,999.50"],
    ]


def test_seeds_are_shown_with_mean_and_spread(params, tree):
    seeded = params.model_copy(update={"seeds": (42, 43, 44)})
    for task in ("mrpc", "mnli"):
        for seed, accuracy in {43: 0.70, 44: 0.75}.items():
            run = {"student": {"accuracy": accuracy}, "collapsed": seed == 43}
            write_json(tree / f"reports/metrics/repeat_task_distill/{task}-tinybert4-{seed}.json", run)
    build_report(seeded, tree)
    # .7321, .70, .75: mean .7274, sample deviation sqrt((.0047² + .0274² + .0226²) / 2) = .0253
    row = "| mrpc | tinybert4 | accuracy | 0.732 0.700 0.750 | 0.727 ± 0.025 | 1 collapsed |"
    assert row in (tree / "reports/summary.md").read_text()
    assert "0.727 ± 0.025" in (tree / "reports/index.html").read_text()


def test_a_single_seed_has_no_table_of_seeds(made):
    assert "over seeds" not in (made[0] / "reports/summary.md").read_text()
