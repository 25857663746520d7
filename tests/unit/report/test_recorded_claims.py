"""results/claims: the page follows from the predictions in git, and other code finds the same intervals."""

import json
import shutil

import numpy as np
import pytest
from scipy import stats

from tests.support.root import ROOT
from tinybert.report.claims import difference, read_evidence, write_page

CLAIMS = ROOT / "results/claims"
STUDIES = sorted(folder.name for folder in CLAIMS.iterdir() if folder.is_dir())
DRAWS = 2_000


def written_page(folder, monkeypatch, names) -> str:
    """The page that the predictions of some studies give."""
    for name in names:
        shutil.copytree(CLAIMS / name, folder / "claims" / name)
    shutil.copytree(ROOT / "studies", folder / "studies")
    monkeypatch.chdir(folder)
    write_page(folder / "claims")
    return (folder / "claims/README.md").read_text()


def sections(page: str) -> dict[str, str]:
    """The text of each study by its name."""
    return {text.split("\n")[0]: text.strip() for text in page.split("\n## ")[1:]}


@pytest.mark.long
def test_the_page_follows_from_the_predictions(tmp_path, monkeypatch):
    assert written_page(tmp_path, monkeypatch, STUDIES) == (CLAIMS / "README.md").read_text()


def test_three_sections_follow_from_the_predictions(tmp_path, monkeypatch):
    """Training seeds, rows of one training, and a score of which less is better."""
    chosen = ("augmentation", "quantization_teacher", "three_professors")
    page, recorded = written_page(tmp_path, monkeypatch, chosen), (CLAIMS / "README.md").read_text()
    assert list(sections(recorded)) == STUDIES
    assert sections(page) == {name: text for name, text in sections(recorded).items() if name in chosen}
    assert rows_of_claims(page) == [row for row in rows_of_claims(recorded) if row[0] in chosen]


def rows_of_claims(page: str) -> list[list[str]]:
    lines = [line for line in page.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if row[0] in STUDIES]


def test_claims_in_the_readme_are_rows_of_the_page():
    page, shown = (rows_of_claims((folder / "README.md").read_text(encoding="utf-8")) for folder in (CLAIMS, ROOT))
    assert len(shown) >= 5
    assert [row for row in shown if row not in page] == []


def predictions(study, task, variant):
    """(seeds, rows) predictions and (rows,) labels, read without the package."""
    files = [json.loads(path.read_text())[variant] for path in sorted((CLAIMS / study).glob(f"{task}-*.json"))]
    return np.array([found["predictions"] for found in files]), np.array(files[0]["labels"])


def matthews(predicted, labels):
    """(draws, rows) -> (draws,), by the counts of the four cells."""
    cells = [((predicted == mine) & (labels == gold)).sum(axis=1) for mine in (0, 1) for gold in (0, 1)]
    tn, fn, fp, tp = (np.asarray(cell, dtype=float) for cell in cells)
    return (tp * tn - fp * fn) / np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))


def pearson(predicted, labels):
    predicted, labels = (side - side.mean(axis=1, keepdims=True) for side in (predicted, labels))
    return (predicted * labels).sum(axis=1) / np.sqrt((predicted**2).sum(axis=1) * (labels**2).sum(axis=1))


def accuracy(predicted, labels):
    return (predicted == labels).mean(axis=1)


@pytest.mark.parametrize(
    ("study", "task", "metric", "first", "second", "share"),
    [
        ("quantization_teacher", "cola", matthews, "fp32", "published_qdq", 1.0),
        ("task_distillation", "stsb", pearson, "student", "teacher", 0.944),
        ("task_distillation", "mrpc", accuracy, "student", "fine_tuned", 1.0),
    ],
)
def test_other_code_finds_the_same_interval(study, task, metric, first, second, share):
    ours, labels = predictions(study, task, first)
    reference, _ = predictions(study, task, second)
    rng, seeds = np.random.default_rng(1), len(ours)
    rows = rng.integers(len(labels), size=(DRAWS, len(labels)))

    def of_seeds(chosen):  # (draws, seeds)
        drawn = [metric(ours[s][chosen], labels[chosen]) - share * metric(reference[s][chosen], labels[chosen])
                 for s in range(seeds)]  # fmt: skip
        return np.stack(drawn, axis=1)

    values, on_all = of_seeds(rows).mean(axis=1), of_seeds(np.arange(len(labels))[None])[0]
    if seeds > 1:  # drawn seeds spread too little: Student's t and the sample's deviation
        widening = stats.t.ppf(0.975, seeds - 1) / stats.norm.ppf(0.975) * np.sqrt(seeds / (seeds - 1))
        drawn = on_all[rng.integers(seeds, size=(DRAWS, seeds))].mean(axis=1)
        values = values + widening * (drawn - on_all.mean())
    low, high = np.percentile(values, [2.5, 97.5])
    measured = read_evidence(CLAIMS / study)
    found = difference(measured[task, first], measured[task, second], seed=42, share=share)
    assert found.mean == pytest.approx(on_all.mean(), abs=1e-9)
    # Both ends have a Monte Carlo error of about a twentieth of the interval.
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.1 * (high - low))
