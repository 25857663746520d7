"""Claims: outcomes by intervals, seeds that would decide, evidence and page."""

import re

import numpy as np
import pytest
import yaml

from tests.unit.report.test_studies import SMALL
from tinybert.evaluate.scoring import Predictions, paired_interval
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_json
from tinybert.report.claims import (
    FAILS,
    HOLDS,
    OPEN,
    SAME,
    Difference,
    Study,
    difference,
    judge_claims,
    map_difference,
    outcome,
    read_evidence,
    save_evidence,
    seeds_needed,
    what_decides,
    write_page,
)


def small(**changes) -> Study:
    return Study.model_validate(yaml.safe_load(SMALL) | changes)


def with_hits(*hits: int, rows: int = 200) -> dict[int, Predictions]:
    """Predictions with the given numbers of correct rows, for seeds from 42."""
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
        ("keeps 0.9 of", 0.001, 0.05, HOLDS),
        ("keeps 0.9 of", -0.05, -0.001, FAILS),
        ("equals", -0.009, 0.009, HOLDS),
        ("equals", -0.009, 0.02, OPEN),
        ("equals", 0.011, 0.02, FAILS),
        ("equals", -0.02, -0.011, FAILS),
        ("not_below", -0.009, 0.05, HOLDS),
        ("not_below", -0.02, 0.05, OPEN),
        ("not_below", -0.05, -0.011, FAILS),
    ],
)
def test_outcomes_follow_the_entire_interval(relation, low, high, expected):
    study = small(one_training=True, claims=[{"claim": f"uniform {relation} top", "published": "-"}])
    assert outcome(study, study.claims[0], {}, {}, Difference((low + high) / 2, low, high)) == expected


def test_a_lower_perplexity_is_the_better_one():
    tokens = np.full(50, 10)
    low, high = (Predictions("perplexity", tokens, tokens * np.log(value)) for value in (8.0, 10.0))
    found = difference({42: low}, {42: high}, seed=0)
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_a_share_of_a_perplexity_is_its_reverse():
    tokens = np.full(50, 10)
    student, teacher = (Predictions("perplexity", tokens, tokens * np.log(value)) for value in (10.0, 9.9))
    found = difference({42: student}, {42: teacher}, seed=0, share=0.9)
    assert found.mean == pytest.approx(9.9 / 0.9 - 10.0)


def test_one_seed_and_identical_predictions_decide_nothing():
    study, claim = small(), small().claims[0]
    found = Difference(0.3, 0.2, 0.4)
    ours, other = (Predictions("accuracy", np.array([1, 0]), np.array(values)) for values in ([1, 0], [0, 1]))
    assert outcome(study, claim, {42: ours, 43: ours}, {42: other, 43: other}, found) == HOLDS
    assert outcome(study, claim, {42: ours}, {42: other}, found) == OPEN
    assert outcome(study, claim, {42: ours}, {42: ours}, found) == SAME
    assert outcome(small(one_training=True), claim, {42: ours}, {42: other}, found) == HOLDS


def test_a_study_needs_two_variants():
    with pytest.raises(ValueError, match="at least 2"):
        Study.model_validate({"question": "?", "source": "-", "tasks": ["cola"], "student": "a", "variants": {"b": {}}})


def test_a_claimed_share_is_compared_with_that_share():
    student, teacher = with_hits(150, 152), with_hits(160, 160)
    found = difference(student, teacher, seed=0, share=0.9)
    assert found.mean == pytest.approx(151 / 200 - 0.9 * 160 / 200)
    # Equals the interval if the row scores of the reference are multiplied by the share.
    predictions, reference, labels = ([getattr(one, name) for one in side.values()] for side, name in (
        (student, "predictions"), (teacher, "predictions"), (student, "labels"),
    ))  # fmt: skip
    right = [(mine == gold).astype(float) for mine, gold in zip(predictions, labels, strict=True)]
    shared = [0.9 * (other == gold) for other, gold in zip(reference, labels, strict=True)]
    expected = paired_interval(
        lambda values, _, weights: weights @ values / weights.sum(axis=-1), right, shared, labels, seed=0
    )
    assert (found.low, found.high) == pytest.approx((expected["low"], expected["high"]))


def test_a_claim_names_its_sides_and_share():
    study = small(claims=[{"claim": "top keeps 0.968 of uniform", "published": "96.8 %"}])
    assert (study.claims[0].sides, study.claims[0].share) == (("top", "uniform"), 0.968)
    measured = dict.fromkeys([("cola", "top"), ("cola", "uniform")], with_hits(150, 152))
    claims = judge_claims(study, measured, seed=0, maps={})
    assert claims["outcome"].tolist() == [SAME]


@pytest.mark.parametrize(
    ("of_rows", "distance", "expected"),
    [
        # Student's t times .02 / sqrt(seeds): .0497 with three seeds, .0318 with four, .0248 with five.
        (0.0336, 0.06, "4 seeds"),  # .0336² + .0318² = .0463²
        (0.0336, 0.045, "5 seeds"),  # .0336² + .0248² = .0418²
        (0.0, 0.003, "over 100 seeds"),  # t(99) * .02 / 10 = .00397
        (0.0336, 0.0336, "more rows"),
    ],
)
def test_seeds_that_would_decide(of_rows, distance, expected):
    assert seeds_needed(3, 0.02, of_rows, distance) == expected


def test_what_decides_depends_on_seeds_and_training():
    study = small(claims=[{"claim": "uniform beats top", "published": "-"}])
    first, second = with_hits(108, 112, 150), with_hits(100, 106, 100)
    assert re.fullmatch(r"\d+ seeds|over 100 seeds", what_decides(study, study.claims[0], first, second, seed=0))
    assert what_decides(study, study.claims[0], {42: first[42]}, {42: second[42]}, seed=0) == "more seeds"
    one_training = small(one_training=True)
    assert what_decides(one_training, one_training.claims[0], first, second, seed=0) == "more rows"


def map_of(*firsts: float) -> dict[str, dict[str, float]]:
    """Weights of a group of two teacher layers and of one of one, for seeds from 42."""
    rest = {"map_2_3": 1.0}  # has no choice, so it does not count
    return {str(42 + number): {"map_1_1": first, "map_1_2": 1 - first} | rest for number, first in enumerate(firsts)}


def test_layer_maps_are_compared_by_their_weights():
    found = map_difference(map_of(0.50, 0.60, 0.70), map_of(0.40, 0.62, 0.67))
    # |differences| .10, .02 and .03: mean .05, standard error .0252, Student's t with two degrees of freedom 4.303
    assert (found.mean, found.low, found.high) == pytest.approx((0.05, 0.05 - 0.10828, 0.05 + 0.10828), abs=1e-4)


def test_layer_maps_without_a_choice_are_equal():
    maps = {seed: {"map_1_1": 1.0, "map_2_2": 1.0} for seed in ("42", "43")}
    found = map_difference(maps, maps)
    assert (found.mean, found.low, found.high) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ((0.500, 0.510, 0.520), (0.501, 0.510, 0.519), [HOLDS]),
        ((0.500, 0.510, 0.520), (0.700, 0.711, 0.722), [FAILS]),
        ((0.500, 0.510, 0.520), (0.500, 0.600, 0.530), [f"{OPEN} (more seeds)"]),
        ((0.500,), (0.700,), [f"{OPEN} (more seeds)"]),
        ((0.500, 0.510, 0.520), (), []),  # evidence of before the study had this claim
    ],
)
def test_a_claim_of_equal_maps(ours, theirs, expected):
    study = small(claims=[{"claim": "top learns_map_of uniform", "published": "same weights"}])
    hits = [(90, 95, 92)[: len(ours)], (100, 102, 104)[: len(ours)]]
    measured = {("cola", name): with_hits(*counts) for name, counts in zip(("top", "uniform"), hits, strict=True)}
    maps = {"cola": {"top": map_of(*ours), "uniform": map_of(*theirs)}}
    claims = judge_claims(study, measured, seed=0, maps=maps)
    assert claims["outcome"].tolist() == expected
    assert claims["claim"].tolist() == ["top learns the map of uniform"] * len(expected)


@pytest.fixture
def evidence(tmp_path, monkeypatch):
    """A project with a study and a folder with its evidence, which is entered."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies/small.yaml").write_text(SMALL)
    measured = {("cola", "uniform"): with_hits(150, 151), ("cola", "top"): with_hits(100, 101)}
    params = {"seed": 42, "teacher": {"source": "hub", "hub": {"model": "a/b"}}, "tasks": {"source": "local"}}
    about = {"revision": "0123456789", "processor": "a CPU", "params": params, "layer_maps": {}}
    save_evidence(tmp_path / "claims/small", small(), measured, about)
    return tmp_path / "claims", measured


def test_page_follows_from_evidence_alone(evidence):
    folder, measured = evidence
    found = read_evidence(folder / "small")
    assert set(found) == set(measured)
    for place, of_seeds in measured.items():
        assert list(found[place]) == list(of_seeds)
        for seed, one in of_seeds.items():
            assert np.array_equal(found[place][seed].predictions, one.predictions)
            assert np.array_equal(found[place][seed].labels, one.labels)
    (folder / ".small.0.partial").mkdir()  # as after a kill
    (folder / ".small.0.partial/about.json").write_text("{}")
    cells = write_page(folder).cells
    assert cells["outcome"].tolist() == ["holds"] and cells["difference (95 %)"][0].startswith("+0.250 (+0.")
    page = " ".join((folder / "README.md").read_text().split())
    assert (
        "- cola: teacher hub a/b, rows local, saved at 0123456789 on a CPU." in page
        and "| cola | top | accuracy | 0.502 ± 0.004 | 2 |" in page
    )
    chart = (folder / "small/claims.svg").read_text()
    assert "uniform beats top, cola" in chart and chart.startswith("<svg ") and ' xmlns="http' in chart


def test_tasks_that_are_not_measured_again_keep_their_evidence(evidence):
    folder, first = evidence
    study, about = small(tasks=["cola", "mrpc"]), read_json(folder / "small/about.json")[0]
    both = first | {("mrpc", variant): with_hits(90, 95) for variant in study.variants}
    save_evidence(folder / "small", study, both, about | {"revision": "second"})
    again = {("cola", variant): with_hits(70, 75) for variant in study.variants}
    save_evidence(folder / "small", study, again, about | {"revision": "third"})
    assert set(read_evidence(folder / "small")) == set(both)
    runs = [(run["tasks"], run["revision"]) for run in read_json(folder / "small/about.json")]
    assert runs == [(["mrpc"], "second"), (["cola"], "third")]
    found = read_evidence(folder / "small")
    assert (
        found["cola", "uniform"][42].score == again["cola", "uniform"][42].score != first["cola", "uniform"][42].score
    )


def test_a_changed_study_keeps_the_page(evidence):
    folder, _ = evidence
    (folder.parent / "studies/small.yaml").write_text(SMALL.replace("uniform", "even"))
    assert write_page(folder).cells.empty
    (folder.parent / "studies/small.yaml").unlink()
    with pytest.raises(UserError, match=r"claims/small: no such study in studies \(got small\); fix: rm -r"):
        write_page(folder)


def test_variants_on_different_rows_are_not_saved(tmp_path):
    measured = {("cola", "uniform"): with_hits(150, 151), ("cola", "top"): with_hits(100, 101, rows=198)}
    with pytest.raises(UserError, match="small, cola, seed 42, top: its rows differ from those"):
        save_evidence(tmp_path / "small", small(), measured, {})
    assert not (tmp_path / "small").exists()
