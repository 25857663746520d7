"""Claims: outcomes by intervals, seeds that would decide, evidence and page."""

import numpy as np
import pytest
import yaml

from tests.unit.report.test_studies import SMALL
from tinybert.evaluate.scoring import Predictions, paired_interval
from tinybert.report.claims import (
    FAILS,
    HOLDS,
    OPEN,
    SAME,
    Difference,
    Study,
    difference,
    judged,
    outcome,
    read_evidence,
    save_evidence,
    seeds_needed,
    write_page,
)


def small(**changes) -> Study:
    return Study.model_validate(yaml.safe_load(SMALL) | changes)


def with_hits(*hits: int, rows: int = 200) -> dict[int, Predictions]:
    """Accuracy of as many rows of 0 and 1, for each seed."""
    labels = np.arange(rows) % 2
    return {
        42 + number: Predictions("accuracy", labels, np.where(np.arange(rows) < right, labels, 1 - labels))
        for number, right in enumerate(hits)
    }


@pytest.mark.parametrize(
    ("relation", "low", "high", "expected"),
    [
        ("beats", 0.001, 0.05, HOLDS),
        ("beats", -0.001, 0.05, OPEN),
        ("beats", -0.05, -0.001, FAILS),
        ("beats", 0.0, 0.0, FAILS),
        ("equals", -0.009, 0.009, HOLDS),
        ("equals", -0.009, 0.02, OPEN),
        ("equals", 0.011, 0.02, FAILS),
        ("equals", -0.02, -0.011, FAILS),
        ("not_below", -0.009, 0.05, HOLDS),
        ("not_below", -0.02, 0.05, OPEN),
        ("not_below", -0.05, -0.011, FAILS),
    ],
)
def test_outcomes_are_by_the_whole_interval(relation, low, high, expected):
    study = small(margin=0.01, one_training=True)
    assert outcome(study, relation, {}, {}, Difference((low + high) / 2, low, high)) == expected


def test_a_lower_perplexity_is_the_better_one():
    tokens = np.full(50, 10)
    low, high = (Predictions("perplexity", tokens, tokens * np.log(value)) for value in (8.0, 10.0))
    found = difference({42: low}, {42: high}, seed=0)
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_one_seed_and_identical_predictions_decide_nothing():
    study = small()
    found = Difference(0.3, 0.2, 0.4)
    ours, other = (Predictions("accuracy", np.array([1, 0]), np.array(values)) for values in ([1, 0], [0, 1]))
    assert outcome(study, "beats", {42: ours, 43: ours}, {42: other, 43: other}, found) == HOLDS
    assert outcome(study, "beats", {42: ours}, {42: other}, found) == OPEN
    assert outcome(study, "beats", {42: ours}, {42: ours}, found) == SAME
    one_training = study.model_copy(update={"one_training": True})
    assert outcome(one_training, "beats", {42: ours}, {42: other}, found) == HOLDS


def test_a_study_needs_two_variants():
    with pytest.raises(ValueError, match="at least 2"):
        Study.model_validate({"question": "?", "source": "-", "tasks": ["cola"], "student": "a", "variants": {"b": {}}})


def test_a_claimed_share_is_compared_with_that_share():
    student, teacher = with_hits(150, 152), with_hits(160, 160)
    found = difference(student, teacher, seed=0, share=0.9)
    assert found.mean == pytest.approx(151 / 200 - 0.9 * 160 / 200)
    # As the interval of scores of which the reference's were multiplied before.
    ours, theirs, labels = ([getattr(one, name) for one in side.values()] for side, name in (
        (student, "predictions"), (teacher, "predictions"), (student, "labels"),
    ))  # fmt: skip
    right = [(mine == gold).astype(float) for mine, gold in zip(ours, labels, strict=True)]
    shared = [0.9 * (other == gold) for other, gold in zip(theirs, labels, strict=True)]
    expected = paired_interval(lambda values, _: values.mean(), right, shared, labels, seed=0)
    assert (found.low, found.high) == pytest.approx((expected["low"], expected["high"]))


def test_a_claim_names_its_sides_and_share():
    study = small(claims=[{"claim": "top keeps 0.968 of uniform", "published": "96.8 %"}])
    assert (study.claims[0].sides, study.claims[0].share) == (("top", "uniform"), 0.968)
    claims = judged(study, {("cola", "top"): with_hits(150, 152), ("cola", "uniform"): with_hits(150, 152)}, seed=0)
    assert claims["outcome"].tolist() == [SAME]


@pytest.mark.parametrize(
    ("claim", "shift", "expected"),
    [
        # Differences of .04, .06 and .08 spread by .02, times Student's t / sqrt(3) .0497. Half of the interval is .06,
        # so the rows make .0336. Four seeds: .0318, with the rows .0463, less than .06 and less than .07.
        ("uniform beats top", 0.0, "4"),
        ("uniform not_below top", 0.0, "4"),
        # .02 beyond the margin, less than what the rows make.
        ("uniform equals top", 0.03, "more rows"),
    ],
)
def test_seeds_that_would_decide(claim, shift, expected):
    study = small(claims=[{"claim": claim, "published": "-"}], margin=0.01)
    first, second = with_hits(108, 112, 116), with_hits(100, 100, 100)
    mean = 0.06 - shift
    found = Difference(mean, mean - 0.06, mean + 0.06)
    assert seeds_needed(study, study.claims[0], first, second, found) == expected
    one = {42: first[42]}
    assert seeds_needed(study, study.claims[0], one, second, found) == "2 or more"


def test_page_follows_from_the_evidence_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies/small.yaml").write_text(SMALL)
    measured = {("cola", "uniform"): with_hits(150, 151), ("cola", "top"): with_hits(100, 101)}
    about = {"revision": "0123456789", "processor": "a CPU", "params": {"seed": 42, "teacher": {"source": "local"}}}
    folder = tmp_path / "claims"
    save_evidence(folder / "small", small(), measured, about)
    found = read_evidence(folder / "small")
    assert list(found) == list(measured)
    for place, of_seeds in measured.items():
        for seed, one in of_seeds.items():
            assert np.array_equal(found[place][seed].predictions, one.predictions)
            assert np.array_equal(found[place][seed].labels, one.labels)
    cells = write_page(folder).cells
    assert cells["outcome"].tolist() == ["holds"] and cells["difference, 95 %"][0].startswith("+0.250 [+0.")
    page = " ".join((folder / "README.md").read_text().split())
    assert "Teacher: local. Code: 0123456. Processor: a CPU." in page and "| cola | top | accuracy | 0.502 |" in page
    chart = (folder / "small/claims.svg").read_text()
    assert "uniform beats top, cola" in chart and chart.startswith("<svg ") and ' xmlns="http' in chart
