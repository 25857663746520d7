"""The weighted sum: what it asks for, what it adds up, where gradients go, what it refuses."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.builders import STUDENT, TEACHER, batch, classifier, masked_lm
from tinybert.errors import UserError
from tinybert.models.activations import Wanted
from tinybert.objective import Imitation, Objective

ALL = {"hard": 1.0, "prediction": 2.0, "attention": 0.5, "hidden": 3.0, "embedding": 0.25}


def masked_batch():
    return batch(positions=torch.tensor([1, 8, 15]), labels=torch.tensor([9, 10, 11]))


def run(objective, student, teacher, example):
    with torch.no_grad():
        answers = teacher(example, objective.teacher_wants)
    return objective(student(example, objective.student_wants), answers, example)


def test_asks_only_for_what_its_losses_read():
    hard = Objective(Imitation({"hard": 1.0}), STUDENT)
    assert hard.student_wants == Wanted()
    assert hard.teacher_wants is None
    layers = Objective(Imitation({"attention": 1.0, "hidden": 1.0}, layer_map=(1, 3)), STUDENT, TEACHER)
    assert layers.student_wants == Wanted(frozenset({1, 2}), frozenset({1, 2}), logits=False)
    assert layers.teacher_wants == Wanted(frozenset({1, 3}), frozenset({1, 3}), logits=False)
    answers = Objective(Imitation({"prediction": 1.0, "embedding": 1.0}), STUDENT, TEACHER)
    assert answers.teacher_wants == Wanted(frozenset({0}), frozenset(), logits=True)


def test_total_is_the_weighted_sum_of_terms():
    objective = Objective(Imitation(ALL, temperature=2.0), STUDENT, TEACHER)
    terms = run(objective, masked_lm(), masked_lm(TEACHER, seed=1), masked_batch())
    assert list(terms) == list(ALL)
    expected = sum(ALL[name] * value.item() for name, value in terms.items())
    assert objective.total(terms).item() == pytest.approx(expected, rel=1e-6)


def test_layer_terms_are_sums_over_student_layers_in_numpy():
    objective = Objective(Imitation({"attention": 1.0, "hidden": 1.0}, layer_map=(2, 4)), STUDENT, TEACHER).double()
    student, teacher = masked_lm().double(), masked_lm(TEACHER, seed=1).double()
    example = batch()
    terms = run(objective, student, teacher, example)
    s, t = student(example, objective.student_wants), teacher(example, objective.teacher_wants)
    project = objective.projections["hidden"].weight.detach().numpy().T
    real = [np.flatnonzero(row) for row in example.mask.numpy()]
    hidden = attention = 0.0
    for ours, theirs in ((1, 2), (2, 4)):
        difference = s.hidden[ours].detach().numpy() @ project - t.hidden[theirs].detach().numpy()
        hidden += np.concatenate([difference[row, tokens] for row, tokens in enumerate(real)]).__pow__(2).mean()
        difference = (s.scores[ours] - t.scores[theirs]).detach().numpy()
        pairs = [difference[row][:, tokens][:, :, tokens].ravel() for row, tokens in enumerate(real)]
        attention += (np.concatenate(pairs) ** 2).mean()
    assert terms["hidden"].item() == pytest.approx(hidden, rel=1e-10)
    assert terms["attention"].item() == pytest.approx(attention, rel=1e-10)


@pytest.mark.parametrize("projection", ["shared", "per_layer"])
def test_gradients_reach_student_and_projections_and_never_the_teacher(projection):
    objective = Objective(Imitation(ALL, projection=projection), STUDENT, TEACHER)
    student, teacher = masked_lm(), masked_lm(TEACHER, seed=1)
    objective.total(run(objective, student, teacher, masked_batch())).backward()
    assert set(objective.projections) == {"embedding"} | (
        {"hidden"} if projection == "shared" else {"hidden_1", "hidden_2"}
    )
    assert all(part.grad.abs().sum() > 0 for part in objective.parameters())
    assert all(part.grad is not None for name, part in student.named_parameters() if "pooler" not in name)
    assert all(part.grad is None for part in teacher.parameters())


def test_the_whole_sum_is_invariant_to_padding():
    objective = Objective(Imitation(ALL, temperature=2.0), STUDENT, TEACHER).double()
    student, teacher = masked_lm().double(), masked_lm(TEACHER, seed=1).double()
    narrow = masked_batch()
    wide = replace(batch(width=14), positions=torch.tensor([1, 15, 29]), labels=narrow.labels)
    for name, value in run(objective, student, teacher, narrow).items():
        assert abs(value - run(objective, student, teacher, wide)[name]) < 1e-10, name


def test_a_student_that_is_the_teacher_has_no_distance():
    objective = Objective(Imitation({name: 1.0 for name in ALL if name != "hard"}), TEACHER, TEACHER)
    terms = run(objective, masked_lm(TEACHER), masked_lm(TEACHER), masked_batch())
    assert not objective.projections
    assert all(abs(value) < 1e-6 for value in terms.values())


def test_classifiers_are_compared_the_same_way():
    objective = Objective(Imitation({"hidden": 1.0, "prediction": 1.0}), STUDENT, TEACHER)
    terms = run(objective, classifier(), classifier(TEACHER, seed=1), batch())
    assert all(value > 0 for value in terms.values())


def test_projections_are_kept_between_stages(tmp_path):
    first = Objective(Imitation({"hidden": 1.0}), STUDENT, TEACHER)
    first.save_projections(tmp_path)
    second = Objective(Imitation({"hidden": 1.0, "embedding": 1.0}), STUDENT, TEACHER)
    new = second.projections["embedding"].weight.clone()
    second.load_projections(tmp_path)
    assert torch.equal(second.projections["hidden"].weight, first.projections["hidden"].weight)
    assert torch.equal(second.projections["embedding"].weight, new)


def test_recipe_of_a_stage_drops_what_is_off():
    stage = SimpleNamespace(losses={"hard": 1.0, "attention": 0.0}, temperature=None)
    student = SimpleNamespace(general=stage, layer_map="top", projection="shared")
    assert Imitation.of(student, "general") == Imitation({"hard": 1.0}, "top", "shared", 1.0)


@pytest.mark.parametrize(
    ("student", "losses", "layer_map", "named"),
    [
        (replace(STUDENT, vocab_size=60), {"prediction": 1.0}, "uniform", "60 word pieces, the teacher 50"),
        (replace(STUDENT, num_attention_heads=4), {"attention": 1.0}, "uniform", "4 heads, the teacher 3"),
        (STUDENT, {"hidden": 1.0}, (1, 5), "5 is beyond the teacher's layers; choose from 1 to 4"),
        (replace(STUDENT, num_hidden_layers=6), {"hidden": 1.0}, "uniform", "6 student layers to 4 teacher"),
    ],
)
def test_unfit_pairs_are_refused_before_training(student, losses, layer_map, named):
    with pytest.raises(UserError, match=named):
        Objective(Imitation(losses, layer_map=layer_map), student, TEACHER)
