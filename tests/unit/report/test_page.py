"""The page and the summaries against a tree of metrics whose numbers are set by hand."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from markupsafe import Markup

from tests.support.report_tree import NASTY, PERPLEXITY, Outline, small_params, small_tree, write_evaluation, write_tree
from tinybert.config.load import check_params
from tinybert.config.tasks import TASKS
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_json, write_json
from tinybert.report import charts
from tinybert.report.page import build_report
from tinybert.report.results import stage_instances
from tinybert.report.tables import BERT_BASE, _published

HOSTILE_NAME = '<img src=x onerror="x">&'
SHOWN = [
    ["teacher", "0.510", "5.02", "5.02", "–", "–", "0.600", "0.510", "1,816,224"],
    ["little_professor", "0.280 ± 0.014", "9.13 ± 1.41", "9.13 ± 1.41", "0.717 ± 0.000", "0.456 ± 0.000",
     "0.600 ± 0.000", "0.280 ± 0.014", "345,678"],
    ["untrained", "0.002", "4,012.50", "4,012.50", "–", "–", "0.600", "0.002", "345,678"],
    ["synthetic MRPC", "smallest", "tinybert4 int8-qdq", "0.720 of 0.850", "1.21 (36.7 × smaller)",
     "3.000 (10.0 × faster)", "≤ static embeddings"],
    ["synthetic MRPC", "tinybert4", "int8-qdq", "0.720", "-0.012 to +0.004", "98.7 %", "1.21", "0.61",
     *["24.0 [23.0, 26.1]"] * 2, "3.000", "size", "chosen", ""],
    ["synthetic MNLI", "teacher", "fp32", "0.730", "-0.012 to +0.004", "98.7 %", "44.44", "22.22",
     "–", "–", "–", "", "", ""],
    ["synthetic MRPC", "tinybert4", "int8-dynamic", "0.729", "-0.012 to +0.004", "98.7 %", "1.52", "0.76",
     *["24.0 [23.0, 26.1]"] * 2, "3.000", "size", "", ""],
    ["synthetic MRPC", "teacher", "int8-qoperator", "0.500", "-0.012 to +0.004", "98.7 %", "11.11", "5.55",
     *["240.0 [230.0, 260.5]"] * 2, "30.000", "", "", "≤ majority"],
    ["synthetic MRPC", "tinybert4", "20 %", "20.0 %", "0.730", "0.722", "1.39", "1.20"],
    ["history", "war", "40", "30", "75.0 %"],
    ["domain", "train", "9", "777", "49,999", "1.2 %"],
    ["synthetic MNLI", "train", "1,500"],
    ["synthetic MNLI", "augmented", "4,321"],
    ["prepare_teacher", "", "", "", "290", "123", "987"],
    ["domain_distill", "", "lazy", "43", "290", "–", "–"],
]  # fmt: skip


@pytest.fixture(scope="module")
def params():
    return small_params()


@pytest.fixture(scope="module")
def made(params, tmp_path_factory):
    """The tree with a report in it, and the rows for MLflow; not to be changed."""
    root = tmp_path_factory.mktemp("made")
    write_tree(root)
    return root, build_report(params, root)


@pytest.fixture
def drawn(made, tmp_path):
    """A copy to change."""
    return Path(shutil.copytree(made[0], tmp_path / "tree"))


@pytest.fixture
def tree(drawn, monkeypatch):
    """A copy to change, whose next pages have no pictures."""
    monkeypatch.setattr(charts, "svg_of", lambda figure, label: Markup("<svg/>"))  # not empty: a section depends on it
    return drawn


def page(root: Path) -> str:
    return (root / "reports/index.html").read_text(encoding="utf-8")


def test_the_page_shows_the_numbers_of_the_metrics(made):
    rows = Outline(page(made[0])).rows
    assert [row for row in SHOWN if row not in rows] == []


def test_the_task_table_has_all_systems_with_costs(made):
    heading, *rows = Outline(page(made[0])).tables["Synthetic tasks, dev split"]
    columns = ["task", "model", "score", "of teacher's", "retention", "parameters", "MFLOPs", "MB", "ms a row", "flag"]
    assert heading == columns  # nothing is published of synthetic rows
    mrpc = [row for row in rows if row[0] == "synthetic MRPC: accuracy"]
    assert [row[1:4] + row[5:] for row in mrpc] == [
        ["majority", "0.600", "–", "–", "–", "–", "–", ""],
        ["TF-IDF", "0.650", "76.5 %", "8,001", "< 0.01", "0.03", "–", ""],
        ["static embeddings", "0.745", "87.6 %", "128,129", "0.01", "0.51", "–", ""],
        ["tinybert4 fine-tuned", "0.700 ± 0.000", "82.4 %", "445,678", "3.00", "1.78", "–", ""],
        ["tinybert4", "0.740 ± 0.014", "87.1 %", "345,678", "2.00", "1.38", "3.000", "≤ static embeddings"],
        ["teacher", "0.850", "–", "1,816,224", "12.35", "7.26", "30.000", ""],
    ]
    retained = [re.sub(r"-?\d+, \d+\]", "low, high]", row[4]) for row in mrpc]
    expected = [f"{share} % [low, high], n 400 × {seeds}" for share, seeds in ((20, 1), (58, 1), (40, 2), (56, 2))]
    assert retained == ["–", *expected, "–"]
    share, low, high = map(float, re.match(r"(\d+) % \[(-?\d+), (-?\d+)", mrpc[4][4]).groups())
    assert low < share < high
    # MNLI has no other metric, no latency, and intervals on the first of its splits only.
    mismatched = [row for row in rows if row[0] == "synthetic MNLI mismatched: accuracy"]
    assert [row[1:6] for row in mismatched[-2:]] == [
        ["tinybert4", "0.790 ± 0.014", "87.8 %", "56 %", "345,678"], ["teacher", "0.900", "–", "–", "1,816,224"],
    ]  # fmt: skip
    assert {row[8] for row in mismatched} == {"–"}


def test_other_metrics_have_a_table_of_their_own(made, tree, params):
    heading, *rows = Outline(page(made[0])).tables["Other metrics"]
    assert heading == ["task", "model", "score", "teacher", "majority", "of teacher's", "retention", "flag"]
    assert rows == [
        ["synthetic MRPC: f1", "TF-IDF", "0.650", "0.850", "0.600", "76.5 %", "20 %", ""],
        ["synthetic MRPC: f1", "static embeddings", "0.745", "0.850", "0.600", "87.6 %", "58 %", ""],
        ["synthetic MRPC: f1", "tinybert4 fine-tuned", "0.700 ± 0.000", "0.850", "0.600", "82.4 %", "40 %", ""],
        ["synthetic MRPC: f1", "tinybert4", "0.740 ± 0.014", "0.850", "0.600", "87.1 %", "56 %", "≤ static embeddings"],
    ]
    only_mnli = params.model_copy(update={"tasks": params.tasks.model_copy(update={"run": ("mnli",)})})
    build_report(only_mnli, tree)
    assert "Other metrics" not in page(tree) + (tree / "reports/summary.md").read_text("utf-8")


def test_costs_that_are_not_known_are_left_out(tree, params):
    for path in tree.glob("reports/metrics/[bef]*/m*-*"):
        for file in [path] if path.is_file() else path.iterdir():
            write_json(file, {name: value for name, value in read_json(file).items() if name != "costs"})
    build_report(params, tree)
    heading = Outline(page(tree)).tables["Synthetic tasks, dev split"][0]
    assert heading == ["task", "model", "score", "of teacher's", "retention", "ms a row", "flag"]


@pytest.mark.parametrize(("parameters", "shown"), [(1_816_224, ["1,816,224", "–", "7.26"]), (None, ["–", "–", "–"])])
def test_a_teacher_of_unknown_costs_has_dashes(tree, params, parameters, shown):
    """One of another family has no FLOPs, one that is known by its predictions has no parameters either."""
    for file in tree.glob("reports/metrics/evaluate/mrpc-*/*.json"):
        found = read_json(file)
        found["costs"]["teacher"] = {"parameters": parameters, "flops": None}
        write_json(file, found)
    build_report(params, tree)
    rows = Outline(page(tree)).tables["Synthetic tasks, dev split"]
    (teacher,) = (row for row in rows if row[:2] == ["synthetic MRPC: accuracy", "teacher"])
    assert teacher[5:8] == shown


def test_the_page_opens_with_a_picture_then_the_choice(made):
    html = page(made[0])
    outline = Outline(html)
    assert html.index("<svg") < html.index("<table") < html.index("<nav")
    title, table = next(iter(outline.tables.items()))
    assert title == "Which student do I take?" and table[0][-2:] == ["ms a row", "flag"]


def test_the_page_stands_alone(made):
    html = page(made[0])
    outline = Outline(html)
    assert not re.search(r"https?://", html)
    assert not {"script", "iframe", "img", "object", "embed"} & set(outline.tags)
    assert "@import" not in html and set(re.findall(r"url\((.)", html)) <= {"#"}
    inside = [reference for reference in outline.references if reference != "data:,"]
    assert inside and all(reference.removeprefix("#") in outline.ids for reference in inside)


def test_data_is_escaped(made):
    html = page(made[0])
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 2  # a question, an answer
    assert [f"{NASTY} is [MASK].", "paris", *[f"paris 0.40, {NASTY} 0.40"] * 4] in Outline(html).rows


def test_hostile_names_are_shown_as_text(tmp_path):
    write_tree(tmp_path)
    for path in [*tmp_path.rglob("*tinybert4*")]:
        path.rename(path.with_name(path.name.replace("tinybert4", HOSTILE_NAME)))
    build_report(with_hostile_names(small_params()), tmp_path)
    outline = Outline(page(tmp_path))
    assert not {"script", "img", "iframe"} & set(outline.tags)
    assert not [name for name in outline.attributes if name.startswith("on")]
    assert NASTY in json.loads(outline.texts["pre"])["filter"]["subjects"]["history"]
    for title in ("Which student do I take?", "Synthetic tasks, dev split", "ONNX variants", "Pruned students"):
        assert any(HOSTILE_NAME in cell for row in outline.tables[title] for cell in row)


def with_hostile_names(params):
    """The schema refuses such names; the page must not rely on it."""
    subjects = params.filter.subjects | {"history": (NASTY,)}
    students = {HOSTILE_NAME if name == "tinybert4" else name: config for name, config in params.students.items()}
    return params.model_copy(
        update={
            "students": students,
            "filter": params.filter.model_copy(update={"subjects": subjects}),
            "general": params.general.model_copy(update={"students": (*PERPLEXITY, HOSTILE_NAME)}),
            "tasks": params.tasks.model_copy(update={"students": (HOSTILE_NAME,)}),
            "quantization": params.quantization.model_copy(update={"models": ("teacher", HOSTILE_NAME)}),
        }
    )


def test_summary_names_the_best(made):
    text = " ".join((made[0] / "reports/summary.md").read_text(encoding="utf-8").split())
    assert "Domain, best first: perplexity little_professor 9.13, lazy 9.51, attentive 10.03; " in text
    assert "cloze accuracy lazy 0.300, little_professor 0.280, attentive 0.260." in text
    assert "tinybert4 retains 56.0 % of the teacher's score above the majority class on average over 2 tasks" in text
    assert "Collapsed: tinybert4 on synthetic MNLI matched, tinybert4 on synthetic MNLI mismatched" in text
    assert "| synthetic MRPC | smallest | tinybert4 int8-qdq | 0.720 of 0.850 | 1.21 (36.7 × smaller) |" in text
    assert "| synthetic MNLI | – | none beats the majority class |" in text  # it collapsed


def test_a_teacher_within_noise_is_said_to_be(tree, params):
    for seed in params.seeds:
        path = tree / f"reports/predictions/evaluate/mrpc-tinybert4/{seed}.json"
        found = read_json(path)
        write_json(path, found | {"teacher": found["majority"]})
    build_report(params, tree)
    text = " ".join((tree / "reports/summary.md").read_text().split())
    assert "teacher within noise of the majority" in text
    assert "above the majority class on average" not in text  # the mean is of MNLI alone


def test_summary_holds_no_timings_and_is_the_same_again(made, tree, params):
    first = (made[0] / "reports/summary.md").read_bytes()
    write_json(tree / "reports/timings/prepare_teacher.json", {"seconds": 999.9, "peak_memory_mb": 1})
    build_report(params, tree)
    assert (tree / "reports/summary.md").read_bytes() == first
    assert b"123.4" not in first and b"24.0" not in first and b"30.000" not in first
    assert b" ms a row " not in first and b" 12.35 |" in first


def test_the_page_is_the_same_for_the_same_files(made, drawn, params):
    build_report(params, drawn)
    assert page(drawn) == page(made[0])


def test_terminal_summary_fits_and_ends_with_the_student_to_take(made):
    lines = (made[0] / "reports/summary.txt").read_text("utf-8").splitlines()
    assert max(map(len, lines)) <= 100
    assert {"Domain evaluation on synthetic text", "Synthetic tasks, dev split", "ONNX variants"} <= set(lines)
    screen = lines[-24:]
    start = screen.index("Which student do I take?")
    assert any("tinybert4 fp32" in line and "0.730 of 0.850" in line for line in screen[start:])
    assert any(line.startswith("Tasks: tinybert4 retains 56.0 %") for line in screen[start:])


def test_result_rows_are_the_metrics_unrounded(made):
    rows = {(row["group"], row["model"]): row for row in made[1]}
    assert len(rows) == len(made[1])
    assert rows["domain", "lazy"]["domain.perplexity"] == pytest.approx(9.512)
    assert rows["mrpc", "tinybert4"]["above_majority"] == pytest.approx(0.56)
    assert rows["mnli_dev_mismatched", "tinybert4"]["collapsed"] == 2
    assert rows["mrpc", "tinybert4/int8-qdq"]["batch_32.median"] == 24.0
    assert rows["mrpc", "tinybert4_pruned20"]["sparsity"] == 0.20004


def test_summary_metrics_are_few_and_those_of_the_metrics(made):
    found = read_json(made[0] / "reports/summary_metrics.json")
    assert list(found) == ["domain", "mrpc", "mnli"]
    assert {name: scores["perplexity"] for name, scores in found["domain"].items()} == {
        name: round(value + 1, 4) for name, value in PERPLEXITY.items()
    }
    expected = {"score": 0.74, "retention_above_majority": 0.56, "int8_worst": 0.5, "pruned20": 0.7219}
    assert found["mrpc"] == {"tinybert4": expected}


def test_metrics_of_all_stages_are_collected_and_no_others(tree, params):
    write_json(tree / "metrics/evaluate/of_older_params.json", {})
    write_json(tree / "reports/metrics/evaluate/of_older_params.json", {})
    build_report(params, tree)
    found = {str(path.relative_to(tree)): read_json(path) for path in tree.glob("metrics/**/*.json")}
    assert found.keys() == {str(instance.path).removeprefix("reports/") for instance in stage_instances(params)}
    assert all(content == read_json(tree / "reports" / name) for name, content in found.items())


def test_nothing_is_written_when_metrics_are_missing(tmp_path, params):
    write_tree(tmp_path)
    (tmp_path / "reports/metrics/prepare_teacher.json").unlink()
    with pytest.raises(UserError):
        build_report(params, tmp_path)
    assert not (tmp_path / "reports/index.html").exists() and not (tmp_path / "metrics").exists()


def test_files_that_dvc_need_not_restore_may_be_missing(drawn, params):
    for folder in ("quiz_answers", "curves", "latency", "timings", "predictions"):
        shutil.rmtree(drawn / "reports" / folder)
    build_report(params, drawn)
    assert "Some answers" not in page(drawn) and "56 %" in page(drawn)


def test_published_scores_need_their_rows_and_shapes(tree):
    plain = small_tree()
    plain["tasks"]["source"] = "hub"
    plain["students"]["tinybert4"]["architecture"] |= {"layers": 4, "width": 312, "heads": 12, "feed_forward": 1200}
    plain["teacher"]["source"] = "hub"
    for task in ("mrpc", "mnli"):
        path = tree / f"reports/metrics/finetune_teacher/{task}.json"
        write_json(path, read_json(path) | {"layers": 12, "width": 768})
    build_report(check_params(plain), tree)
    tables = Outline(page(tree)).tables
    table, other = tables["GLUE tasks, dev split"], tables["Other metrics"]
    place = table[0].index("published")
    of_students = ["0.683 reproduction (dev)", "0.825 paper (test)", "0.818 paper (test)"]
    assert [row[place] for row in table[1:] if row[1] == "tinybert4"] == of_students
    assert [row[place] for row in table[1:] if row[1] == "teacher"] == ["–", "0.839 paper (test)", "0.834 paper (test)"]
    assert {row[place] for row in table[1:] if row[1] not in ("tinybert4", "teacher")} == {"–"}
    assert [row[other[0].index("published")] for row in other[1:]] == ["–", "–", "–", "0.864 paper (test)"]
    assert "reproduction (without augmentation, dev split)" in Outline(page(tree)).texts["p"]
    write_json(path, read_json(path) | {"width": 384})  # of MNLI
    build_report(check_params(plain), tree)
    table = Outline(page(tree)).tables["GLUE tasks, dev split"]
    assert {row[place] for row in table[1:] if "MNLI" in row[0]} == {"–"}
    plain["tasks"]["heldout_fraction"] = 0.1
    build_report(check_params(plain), tree)
    outline = Outline(page(tree))
    assert "published" not in outline.tables["GLUE tasks, held-out training rows"][0]
    assert "Chosen on the held-out training rows" in outline.texts["p"] and "dev rows" not in outline.texts["p"]
    assert "synthetic MRPC" not in page(tree)


@pytest.mark.parametrize(
    ("task", "student", "metric", "shown"),
    [
        ("cola", "tinybert4", "matthews", "0.441 paper (test), 0.331 reproduction (dev)"),
        ("sst2", "tinybert4", "accuracy", "0.926 paper (test), 0.906 reproduction (dev)"),
        ("cola", "tinybert4", "accuracy", "–"),
        ("cola", "tinybert6", "matthews", "–"),  # it has the shape of tinybert4 here
    ],
)
def test_a_published_score_names_its_data(task, student, metric, shown):
    plain = small_tree()
    plain["tasks"]["source"] = plain["teacher"]["source"] = "hub"
    plain["students"]["tinybert4"]["architecture"] |= {"layers": 4, "width": 312, "heads": 12, "feed_forward": 1200}
    plain["students"]["tinybert6"] = plain["students"]["tinybert4"]
    results = SimpleNamespace(params=check_params(plain), tasks=TASKS, value=lambda *_, metric, **__: BERT_BASE[metric])
    row = SimpleNamespace(stage="evaluate", task=task, student=student, metric=metric, split="dev")
    row.is_headline = metric == TASKS[task].headline
    assert _published(results, row) == shown


def flags(root: Path, title: str = "Synthetic tasks, dev split") -> dict[str, str]:
    """The first cell of each row -> its last one; of the tasks the student's."""
    rows = Outline(page(root)).tables[title]
    return {row[0]: row[-1] for row in rows if row[1] == "tinybert4"}


def test_a_student_that_does_not_beat_a_baseline_is_flagged(tree, params):
    """The student scores .74, the static embeddings .745."""
    build_report(params, tree)
    rows = Outline(page(tree)).tables["Synthetic tasks, dev split"]
    found = {row[1]: row[-1] for row in rows if row[0] == "synthetic MRPC: accuracy"}
    assert found.pop("tinybert4") == "≤ static embeddings" and set(found.values()) == {""}
    assert '<td class="flag">≤ static embeddings</td>' in page(tree)
    write_evaluation(tree, "mrpc", "baselines/mrpc-static", 0.73)
    build_report(params, tree)
    assert flags(tree)["synthetic MRPC: accuracy"] == ""


def test_a_student_is_compared_with_its_own_fine_tuning(tree):
    """tinybert4 scores .74, fine-tuned .78; tinybert6 scores .76, fine-tuned .755: less than the other's control."""
    plain = small_tree()
    plain["tasks"]["students"] = ["tinybert4", "tinybert6"]
    plain["students"]["tinybert6"] = plain["students"]["tinybert4"]
    plain["general"]["students"] = [*plain["general"]["students"], "tinybert6"]
    for path in [*tree.rglob("*tinybert4*")]:
        other = path.with_name(path.name.replace("tinybert4", "tinybert6"))
        (shutil.copytree if path.is_dir() else shutil.copy)(path, other)
    scores = {"finetune_student/mrpc-tinybert4": 0.78, "finetune_student/mrpc-tinybert6": 0.755,
              "evaluate/mrpc-tinybert6": 0.76}  # fmt: skip
    for instance, score in scores.items():
        for seed in (42, 43):
            write_evaluation(tree, "mrpc", f"{instance}/{seed}", score)
    build_report(check_params(plain), tree)
    rows = Outline(page(tree)).tables["Synthetic tasks, dev split"]
    assert [(row[1], row[2], row[-1]) for row in rows if row[0] == "synthetic MRPC: accuracy"][3:] == [
        ("tinybert4 fine-tuned", "0.780 ± 0.000", ""),
        ("tinybert6 fine-tuned", "0.755 ± 0.000", ""),
        ("tinybert4", "0.740 ± 0.014", "≤ tinybert4 fine-tuned"),
        ("tinybert6", "0.760 ± 0.000", ""),
        ("teacher", "0.850", ""),
    ]


def test_students_at_the_majority_class_are_flagged(tree, params):
    prune = tree / "reports/metrics/prune/mrpc-tinybert4-20.json"
    write_json(prune, read_json(prune) | {"dev": {"accuracy": 0.6}})
    for seed in params.seeds:
        path = tree / f"reports/metrics/evaluate/mrpc-tinybert4/{seed}.json"
        found = read_json(path)["dev"]
        write_json(path, {"dev": found | {"student": {"accuracy": 0.59, "f1": 0.59}}})
    build_report(params, tree)
    assert flags(tree, "Pruned students") == {"synthetic MRPC": "≤ majority", "synthetic MNLI": ""}
    assert flags(tree, "Other metrics") == {"synthetic MRPC: f1": "≤ majority"}
    assert flags(tree) == {
        "synthetic MRPC: accuracy": "≤ majority",
        "synthetic MNLI matched: accuracy": "collapsed",
        "synthetic MNLI mismatched: accuracy": "collapsed",
    }


def test_a_run_without_domain_students_shows_tasks_alone(tree):
    changed = small_tree()
    changed["domain"]["students"] = []
    for stage in ("domain_distill", "evaluate_domain"):
        shutil.rmtree(tree / "reports/metrics" / stage)
    rows = build_report(check_params(changed), tree)
    assert {row["group"] for row in rows} == {"mrpc", "mnli", "mnli_dev_mismatched"}
    texts = [page(tree), *((tree / f"reports/summary.{ending}").read_text() for ending in ("md", "txt"))]
    for text in texts:
        assert "retains" in text and "erplexity" not in text and "nan" not in text.lower().replace("finance", "")
    assert json.loads((tree / "reports/summary_metrics.json").read_text()).keys() == {"domain", "mrpc", "mnli"}


def test_a_run_without_pruned_students_has_no_table_of_them(tree):
    changed = small_tree()
    changed["pruning"]["sparsities_percent"] = []
    build_report(check_params(changed), tree)
    summary = (tree / "reports/summary.md").read_text()
    assert "INT8" in summary and "Pruned students" not in summary
    assert not re.search("pruned", (tree / "reports/summary_metrics.json").read_text())
