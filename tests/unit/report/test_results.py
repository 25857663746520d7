"""The tidy frame: what is read, what is missing, what is damaged."""

import pytest

from tests.support.report_tree import small_params
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import write_json
from tinybert.report.charts import curve_charts
from tinybert.report.results import COLUMNS, load_results, stage_instances
from tinybert.report.tables import corpus_table


def test_every_number_is_a_row(root):
    frame = load_results(small_params(), root).frame
    assert list(frame.columns) == COLUMNS
    where = (
        "stage == 'evaluate' and task == 'mnli' and seed == 43 and split == 'dev_mismatched' and variant == 'teacher'"
    )
    assert frame.query(where)[["model", "metric", "value"]].values.tolist() == [["tinybert4", "accuracy", 0.9]]
    where = "stage == 'quantize' and task == 'mrpc' and variant == 'int8-qdq' and model == 'teacher'"
    assert frame.query(where).set_index("metric")["value"]["size_mb.raw"] == 12.12
    where = "stage == 'latency' and task == 'mrpc' and model == 'teacher' and metric == 'batch_1.p90'"
    assert frame.query(where)["value"].tolist() == [260.5] * 4
    assert (
        frame.query("stage == 'prepare_teacher' and variant == 'timing' and metric == 'seconds'")["value"].item()
        == 123.4
    )


def test_timings_add_no_row_to_the_corpus_table(root):
    assert "" not in set(corpus_table(load_results(small_params(), root)).cells["split"])


def test_instances_follow_the_lists_of_params():
    names = {f"{found.stage}/{found.name}" for found in stage_instances(small_params())}
    assert {"evaluate/mrpc-tinybert4/43", "domain_distill/lazy-42", "prune/mnli-tinybert4-20"} <= names
    assert {"quantize/mrpc-teacher", "tokenize/domain", "prepare_corpus/"} <= names
    assert len(names) == len(stage_instances(small_params()))


def test_missing_metrics_are_all_named_with_their_stage(root):
    (root / "reports/metrics/evaluate/mrpc-tinybert4/42.json").unlink()
    (root / "reports/metrics/prepare_teacher.json").write_text("{")
    with pytest.raises(UserError) as error:
        load_results(small_params(), root)
    teacher, evaluation = str(error.value).splitlines()
    assert teacher.startswith("reports/metrics/prepare_teacher.json: damaged; stage prepare_teacher")
    assert evaluation.startswith("reports/metrics/evaluate/mrpc-tinybert4/42.json: missing; stage evaluate")
    assert evaluation.endswith("fix: dvc repro evaluate")


def test_a_metrics_file_without_a_score_is_named(root):
    write_json(root / "reports/metrics/evaluate/mrpc-tinybert4/42.json", {"dev": {"teacher": {}}})
    with pytest.raises(UserError, match=r"evaluate/mrpc-tinybert4/42\.json: has no dev collapsed"):
        load_results(small_params(), root)


def test_files_of_systems_that_params_do_not_list_are_not_read(root):
    write_json(root / "reports/metrics/evaluate/cola-tinybert6/42.json", {})
    found = load_results(small_params(), root)
    assert set(found.frame["task"]) == {"", "mrpc", "mnli"}


def test_a_damaged_curve_is_named(root):
    (root / "reports/curves/prepare_teacher.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"curves/prepare_teacher\.csv: damaged \(no column step\)"):
        curve_charts(load_results(small_params(), root))
