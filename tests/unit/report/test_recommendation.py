"""Which student is recommended, on scores, sizes and times set by hand."""

import pytest

from tests.support.report_tree import small_params, write_tree
from tinybert.pipeline.files import read_json, write_json
from tinybert.report.recommendation import best_students, best_students_table, task_verdict
from tinybert.report.results import load_results


@pytest.fixture
def root(tmp_path):
    write_tree(tmp_path)
    return tmp_path


def change(root, name: str, **values) -> None:
    write_json(root / name, read_json(root / name) | values)


def set_forms(root, forms: dict[str, tuple[float, float, float]]) -> None:
    """form -> score, MB, milliseconds of a batch of dev rows, of MRPC's student."""
    metrics, latency = "reports/metrics/quantize/mrpc-tinybert4.json", "reports/latency/mrpc-tinybert4.json"
    for form, (score, size_mb, batch_ms) in forms.items():
        found = read_json(root / metrics)[form]
        change(
            root, metrics, **{form: found | {"dev": {"accuracy": score}, "size_mb": {"raw": size_mb, "compressed": 1}}}
        )
        times = dict.fromkeys(("median", "p10", "p90"), batch_ms)
        change(root, latency, **{form: read_json(root / latency)[form] | {"dev_batch_32": times}})


def taken(root, task: str = "mrpc") -> dict[str, str]:
    found = best_students(load_results(small_params(), root), task)
    return {need: f"{system.model} {system.form}" for need, system in found.items()}


def test_best_smallest_and_fastest_differ(root):
    set_forms(root, {"fp32": (0.80, 40.0, 90.0), "dynamic": (0.79, 9.0, 50.0), "qdq": (0.795, 11.0, 30.0),
                     "qoperator": (0.789, 8.0, 10.0)})  # fmt: skip
    # QOperator is smallest and fastest, and 1.1 points below the best: too far; dynamic is exactly one point below.
    assert taken(root) == {"best": "tinybert4 fp32", "smallest": "tinybert4 dynamic", "fastest": "tinybert4 qdq"}


def test_of_equal_scores_the_smaller_is_best(root):
    set_forms(root, {"fp32": (0.8, 40.0, 9.0), "dynamic": (0.8, 9.0, 9.0), "qdq": (0.8, 11.0, 9.0),
                     "qoperator": (0.8, 10.0, 9.0)})  # fmt: skip
    assert taken(root)["best"] == "tinybert4 dynamic"


def test_the_teacher_is_no_student(root):
    assert not any(name.startswith("teacher") for name in taken(root).values())  # it scores as the student does


def test_a_form_at_the_majority_guess_is_not_taken(root):
    set_forms(root, {"fp32": (0.605, 40.0, 90.0), "dynamic": (0.6, 9.0, 50.0), "qdq": (0.602, 11.0, 30.0),
                     "qoperator": (0.6, 8.0, 10.0)})  # fmt: skip
    assert taken(root) == {"best": "tinybert4 fp32", "smallest": "tinybert4 qdq", "fastest": "tinybert4 qdq"}


def test_a_collapsed_student_is_never_taken_whatever_its_forms_score(root):
    assert taken(root, "mnli") == {}
    rows = best_students_table(load_results(small_params(), root), with_latency=True).rows
    assert ("mnli", "–", "none beats a guess", *["–"] * 8) in rows


def test_without_students_in_onnx_forms_there_is_none_to_take(root):
    params = small_params()
    params = params.model_copy(update={"quantization": params.quantization.model_copy(update={"models": ("teacher",)})})
    rows = best_students_table(load_results(params, root), with_latency=False).rows
    assert rows[0][:3] == ("mrpc", "–", "none beats a guess")


def test_without_the_teachers_file_there_is_nothing_to_compare_sizes_with(root):
    params = small_params()
    models = params.quantization.model_copy(update={"models": ("tinybert4",)})
    rows = best_students_table(
        load_results(params.model_copy(update={"quantization": models}), root), with_latency=True
    ).rows
    assert rows[0] == ("mrpc", "best", "tinybert4", "fp32", "0.730", "86 %", "52 %", "4.44", "–", "3.000", "–")


def test_where_no_latency_was_measured_nobody_is_fastest(root):
    (root / "reports/latency/mrpc-tinybert4.json").unlink()
    assert set(taken(root)) == {"best", "smallest"}


def test_a_teacher_without_a_lead_leaves_none_to_keep(root):
    found = read_json(root / "reports/metrics/evaluate/mrpc-tinybert4.json")
    change(root, "reports/metrics/evaluate/mrpc-tinybert4.json", teacher=found["majority"])
    [row, *_] = best_students_table(load_results(small_params(), root), with_latency=False).rows
    assert row[5:7] == ("122 %", "–")  # .73 of the teacher's .60


def test_no_student_is_praised_that_keeps_nothing(root):
    for task in ("mrpc", "mnli"):
        change(root, f"reports/metrics/evaluate/{task}-tinybert4.json", retention={"plain": 0.7, "above_majority": 0.0})
    assert task_verdict(load_results(small_params(), root)).startswith(
        "Tasks: no student is better than the majority guess. Collapsed: tinybert4 on mnli matched"
    )
