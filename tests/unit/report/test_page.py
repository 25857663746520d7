"""The page against the metrics it was made of: every number is set by chance, read back from the tables, compared."""

import json
import random
from pathlib import Path

import pytest

from tests.support.report_tree import FORMS, NASTY, PERPLEXITY, Outline, small_params, write_tree
from tinybert.pipeline.files import write_json
from tinybert.report.build import build_report

HOSTILE_NAME = '<img src=x onerror="x">&'


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The tree with a report in it; no two of its metrics are alike."""
    root = tmp_path_factory.mktemp("scattered")
    write_tree(root)
    rng = random.Random(7)
    for path in sorted([*root.glob("reports/metrics/**/*.json"), *root.glob("reports/latency/*.json")]):
        write_json(path, scattered(json.loads(path.read_text()), rng))
    build_report(small_params(), root)
    return root


def scattered(node, rng: random.Random):
    """Every number that is no count becomes another."""
    if isinstance(node, dict):
        return {key: scattered(value, rng) for key, value in node.items()}
    return node * rng.uniform(0.7, 1.3) if isinstance(node, float) else node


@pytest.fixture(scope="module")
def tables(made):
    return Outline((made / "reports/index.html").read_text(encoding="utf-8")).tables


def read(root: Path, name: str) -> dict:
    return json.loads((root / name).read_text())


def numbers(row: list[str]) -> list[float | str]:
    """Cells as numbers where they are: 1,234.5 or 12.3 % or 4.5 ×."""
    found = []
    for cell in row:
        bare = cell.replace(",", "").removesuffix(" %").removesuffix(" ×")
        try:
            found.append(float(bare) / 100 if cell.endswith("%") else float(bare))
        except ValueError:
            found.append(cell)
    return found


def rows(table: list[list[str]], *names: str) -> list[list[float | str]]:
    """The cells right of `names` of the rows that begin with them."""
    return [numbers(row[len(names) :]) for row in table if tuple(row[: len(names)]) == names]


def test_the_domain_tables_equal_the_metrics(made, tables):
    for student in PERPLEXITY:
        found = read(made, f"reports/metrics/evaluate_domain/{student}.json")
        [row] = rows(tables["Domain examination"], student)
        expected = [found["student"][corpus]["perplexity"] for corpus in ("general", "domain")]
        assert row[1:3] == pytest.approx(expected, abs=0.0051)
        quiz, agreement = found["student"]["quiz"]["all"], found["agreement"]["domain"]
        expected = [quiz["top1"], quiz["top5"], agreement["top1"], agreement["kl"]]
        assert row[3:] == pytest.approx(expected, abs=0.00051)
        [row] = rows(tables["Quiz by subject"], student, "history")
        history = found["student"]["quiz"]["history"]
        assert row == pytest.approx([100, history["top1"], history["top5"]], abs=0.00051)
        [row] = rows(tables["Held-out text and agreement with the teacher"], student, "general")
        text, agreement = found["student"]["general"], found["agreement"]["general"]
        expected = [text["loss"], text["accuracy"], agreement["top1"], agreement["kl"]]
        assert row == pytest.approx(expected, abs=0.00051)


def test_the_task_tables_equal_the_metrics(made, tables):
    mnli = read(made, "reports/metrics/evaluate/mnli-tinybert4.json")
    compared = {
        "mrpc": read(made, "reports/metrics/evaluate/mrpc-tinybert4.json"),
        "mnli matched": mnli,
        "mnli mismatched": mnli["further_splits"]["dev_mismatched"],
    }
    for name, found in compared.items():
        [row] = rows(tables["GLUE tasks, dev split"], name, "tinybert4", "accuracy")
        scores = [found[who]["accuracy"] for who in ("teacher", "student", "majority")]
        assert row[:3] == pytest.approx(scores, abs=0.00051)
        assert row[3] == pytest.approx(found["retention"]["plain"], abs=0.00051)
    [row] = rows(tables["All metrics"], "mrpc", "dev", "tinybert4", "f1")
    found = compared["mrpc"]
    assert row == pytest.approx([found[who]["f1"] for who in ("teacher", "student", "majority")], abs=0.00051)


def test_the_compression_tables_equal_the_metrics(made, tables):
    for task in ("mrpc", "mnli"):
        for model in ("teacher", "tinybert4"):
            forms = read(made, f"reports/metrics/quantize/{task}-{model}.json")
            for form in FORMS:
                [row] = rows(tables["ONNX models"], task, model, form)
                found = forms[form]
                assert row[0] == pytest.approx(found["dev"]["accuracy"], abs=0.00051)
                assert row[2] == pytest.approx(found["agreement"], abs=0.00051)
                sizes = [found["size_mb"][kind] for kind in ("raw", "compressed")]
                assert row[3:5] == pytest.approx(sizes, abs=0.0051)
        found = read(made, f"reports/metrics/prune/{task}-tinybert4-20.json")
        [row] = rows(tables["Pruned students"], task, "tinybert4", "20 %")
        assert row[0] == pytest.approx(found["sparsity"], abs=0.00051)
        assert row[2] == pytest.approx(found["dev"]["accuracy"], abs=0.00051)
        assert row[3:5] == pytest.approx([found["size_mb"][kind] for kind in ("raw", "compressed")], abs=0.0051)


def test_the_latencies_equal_those_measured(made, tables):
    teacher = read(made, "reports/latency/mrpc-teacher.json")["fp32"]["batch_32"]["median"]
    for form in FORMS:
        found = read(made, "reports/latency/mrpc-tinybert4.json")[form]
        spread = [found["batch_32"][of] for of in ("median", "p10", "p90")]
        [row] = rows(tables["Latency"], "mrpc", "tinybert4", form, "32", "128 tokens")
        assert row[:3] == pytest.approx(spread, abs=0.0051)
        assert row[3] == pytest.approx(teacher / spread[0], abs=0.051)
        [row] = rows(tables["ONNX models"], "mrpc", "tinybert4", form)
        assert row[7] == pytest.approx(found["dev_batch_32"]["median"] / 8, abs=0.00051)  # of 8 dev rows


def test_the_student_to_take_is_the_best_by_the_metrics(made, tables):
    forms = read(made, "reports/metrics/quantize/mrpc-tinybert4.json")
    teacher = read(made, "reports/metrics/quantize/mrpc-teacher.json")["fp32"]["size_mb"]["raw"]
    best = max(FORMS, key=lambda form: forms[form]["dev"]["accuracy"])
    [row] = rows(tables["Which student do I take?"], "mrpc", "best", "tinybert4")
    assert row[0] == best
    assert row[1] == pytest.approx(forms[best]["dev"]["accuracy"], abs=0.00051)
    assert row[4] == pytest.approx(forms[best]["size_mb"]["raw"], abs=0.0051)
    assert row[5] == pytest.approx(teacher / forms[best]["size_mb"]["raw"], abs=0.051)


def test_the_data_tables_equal_the_metrics(made, tables):
    found = read(made, "reports/metrics/filter_corpus.json")["train"]["subjects"]["history"]
    [row] = rows(tables["Filter"], "history", "war")
    war = found["terms"]["war"]
    assert row == pytest.approx([war["found"], war["kept"], war["kept_share"]], abs=0.00051)
    [row] = rows(tables["Corpus"], "general", "train")
    blocks = read(made, "reports/metrics/tokenize/general.json")["train"]
    assert row == pytest.approx([1234, 1234, blocks["blocks"], blocks["tokens"], blocks["unknown_share"]], abs=0.00051)
    [row] = rows(tables["Task data"], "mrpc", "train")
    assert row == [1500, 4321]


def test_hostile_text_is_shown_as_text_wherever_it_comes_from(tmp_path):
    """In the tree: terms, questions, answers, augmented rows, columns of curves; here selections, params and names."""
    write_tree(tmp_path)
    found = read(tmp_path, "reports/metrics/evaluate/mrpc-tinybert4.json")
    write_json(tmp_path / "reports/metrics/evaluate/mrpc-tinybert4.json", found | {"selection": NASTY})
    for path in [*tmp_path.rglob("*tinybert4*")]:
        path.rename(path.with_name(path.name.replace("tinybert4", HOSTILE_NAME)))
    params = with_hostile_names(small_params())
    build_report(params, tmp_path)
    outline = Outline((tmp_path / "reports/index.html").read_text(encoding="utf-8"))
    assert not {"script", "img", "iframe"} & set(outline.tags)
    assert not [name for name in outline.attributes if name.startswith("on") or name == "style"]
    assert f"Model selection: {NASTY}; none: the last step." in outline.texts["p"]
    assert NASTY in json.loads(outline.texts["pre"])["filter"]["subjects"]["history"]
    for title in ("Which student do I take?", "GLUE tasks, dev split", "ONNX models", "Latency", "Pruned students"):
        assert any(HOSTILE_NAME in row for row in outline.tables[title])
    assert HOSTILE_NAME in outline.tables["Weights of the layer maps"][-1]


def with_hostile_names(params):
    """The schema refuses such names; the page must not rely on it."""
    subjects = params.filter.subjects | {"history": (NASTY,)}
    students = {HOSTILE_NAME if name == "tinybert4" else name: recipe for name, recipe in params.students.items()}
    return params.model_copy(
        update={
            "students": students,
            "filter": params.filter.model_copy(update={"subjects": subjects}),
            "general": params.general.model_copy(update={"students": (*PERPLEXITY, HOSTILE_NAME)}),
            "glue": params.tasks.model_copy(update={"students": (HOSTILE_NAME,)}),
            "quantization": params.quantization.model_copy(update={"models": ("teacher", HOSTILE_NAME)}),
        }
    )
