"""Numbers of README and docs that name a record in results/ are the record's; tests/support/records.py checks them."""

import pytest

from tests.support.records import mistakes
from tests.support.root import ROOT
from tinybert.pipeline.files import write_json

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RECORDS = sorted(path.parent for path in (ROOT / "results").glob("*/dvc.lock"))
TABLE = """Text.

<!-- from results/small:
teacher = metrics/evaluate/{row}-tinybert4/* dev.teacher.{headline}
student = metrics/evaluate/{row}-tinybert4/* dev.student.{headline}
retention = summary_metrics {row}.tinybert4.retention_above_majority
INT8 file = metrics/quantize/{row}-tinybert4 int8-dynamic.size_mb.raw
parameters = metrics/evaluate/{row}-tinybert4/* costs.student.parameters
-->

| task | teacher | student | retention | INT8 file | parameters |
|---|---|---|---|---|---|
| CoLA, Matthews (two seeds) | .400 | .250 ± .071 | 62 % | **14.7 MB** | 14.4M |
| SST-2, accuracy | 0.9 | .85 | 88 % | 14.66 MB | 14,350,000 |

More text with | a bar and 3 numbers.
"""


@pytest.fixture
def root(tmp_path):
    """A folder with a record of two tasks: two seeds of CoLA (.2 and .3, teacher .4), one of SST-2."""
    metrics = tmp_path / "results/small/metrics"
    write_evaluation(metrics / "evaluate/cola-tinybert4/42.json", "matthews", 0.2, 0.4)
    write_evaluation(metrics / "evaluate/cola-tinybert4/43.json", "matthews", 0.3, 0.4)
    write_evaluation(metrics / "evaluate/sst2-tinybert4/42.json", "accuracy", 0.85, 0.9)
    shares = {"cola": 0.625, "sst2": 0.875}
    summary = {task: {"tinybert4": {"retention_above_majority": share}} for task, share in shares.items()}
    write_json(tmp_path / "results/small/summary_metrics.json", summary)
    for task in ("cola", "sst2"):
        write_json(metrics / f"quantize/{task}-tinybert4.json", {"int8-dynamic": {"size_mb": {"raw": 14.6585}}})
    return tmp_path


def write_evaluation(path, metric, student, teacher):
    scores = {"student": {metric: student}, "teacher": {metric: teacher}}
    write_json(path, {"dev": scores, "costs": {"student": {"parameters": 14_350_000}}})


def check(root, text):
    (root / "page.md").write_text(text, encoding="utf-8")
    return mistakes(root / "page.md", root)


def test_right_numbers_pass(root):
    assert check(root, TABLE) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (".400", ".401"),
        (".400", "−.400"),
        (".250 ±", ".251 ±"),
        ("± .071", "± .070"),
        ("± .071", "± .050"),  # the standard deviation with n instead of n - 1
        ("62 %", "61 %"),
        ("62 %", ".62 %"),
        ("14.7 MB", "14.6 MB"),
        ("14.4M", "14.5M"),
        (".85 ", ".850 ± .000 "),  # one seed has no deviation
        (".85 ", "about .85 "),
        (".85 ", " "),
    ],
)
def test_a_wrong_number_fails(root, right, wrong):
    assert TABLE.count(right) == 1
    assert len(check(root, TABLE.replace(right, wrong))) == 1


def test_a_mistake_names_document_row_column_and_values(root):
    assert check(root, TABLE.replace(".400", ".391")) == [
        "page.md: CoLA, Matthews (two seeds), teacher: .391 is printed, the record has 0.4 "
        "(metrics/evaluate/cola-tinybert4/*, dev.teacher.matthews)"
    ]


def test_a_row_without_data_fails(root):
    found = check(root, TABLE.replace("SST-2, accuracy", "RTE, accuracy"))
    assert len(found) == 5 and all("no data" in mistake for mistake in found)


def test_a_key_without_data_fails(root):
    assert all("no data" in line for line in check(root, TABLE.replace("dev.teacher", "dev.control")))
    assert all("no data" in line for line in check(root, TABLE.replace("above_majority", "plain")))


@pytest.mark.parametrize(
    ("right", "wrong", "mistake"),
    [
        ("results/small:", "results/large:", "results/large: no such record"),
        ("<!-- from results/small:", "<!-- from small:", "a marker is malformed"),
        ("| task |", "Text.\n\n| task |", "no table follows"),
        ("| teacher |", "| score |", "no column teacher"),
        (" | 14.4M |", " |", "5 cells below 6 headings"),
        ("dev.teacher.{headline}", "dev.teacher.{metric}", "dev.teacher.{metric}: no data"),
        ("teacher = metrics", "teacher: metrics", "not COLUMN = FILE KEY"),
        (
            "teacher = metrics/evaluate/{row}-tinybert4/* dev.teacher.{headline}\n",
            "",
            ".400 has no source in the marker",
        ),
    ],
)
def test_a_broken_marker_fails(root, right, wrong, mistake):
    assert mistake in "\n".join(check(root, TABLE.replace(right, wrong, 1)))


def test_tables_without_a_marker_are_not_checked(root):
    assert check(root, "| task | score |\n|---|---|\n| CoLA | .9 |\n") == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_numbers_of_the_documents_are_those_of_the_records(document):
    assert mistakes(document, ROOT) == []


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.name)
def test_records_are_complete(record):
    names = {"dvc.lock", "metrics", "params.yaml", "run.json", "summary.md", "summary_metrics.json"}
    assert {path.name for path in record.iterdir()} - {"latency"} == names  # older records lack it
