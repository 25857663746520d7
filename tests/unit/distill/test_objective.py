"""The weighted sum: what it asks for, what it adds up, where gradients go, what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.builders import STUDENT, TEACHER, batch, classifier, learnable, masked_lm
from tests.support.project import default_tree
from tinybert.config.load import check_params
from tinybert.config.tasks import MULTILABEL
from tinybert.distill import losses
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.models.outputs import OutputSpec
from tinybert.pipeline.errors import UserError

ALL = {"hard": 1.0, "prediction": 2.0, "attention": 0.5, "hidden": 3.0, "embedding": 0.25}
OTHERS = {"logit_mse": 0.1, "attention_kl": 1.0, "cosine": 1.0, "pkd": 2.0}
EVERYTHING = DistillationConfig(ALL | OTHERS, temperature=2.0)


def config_of(tree, student, stage) -> DistillationConfig:
    return DistillationConfig.of(check_params(tree).students[student], stage, seed=42, length_tokens=64)


def masked_batch():
    return batch(positions=torch.tensor([1, 8, 15]), labels=torch.tensor([9, 10, 11]))


def run(objective, student, teacher, example):
    with torch.no_grad():
        answers = teacher(example, objective.teacher_spec())
    return objective(student(example, objective.student_spec), answers, example)


def test_asks_only_for_what_its_losses_read():
    hard = DistillationLoss(DistillationConfig({"hard": 1.0}), STUDENT)
    assert hard.student_spec == OutputSpec()
    assert hard.teacher_spec() == OutputSpec(logits=False)
    top = DistillationLoss(DistillationConfig({"cosine": 1.0}), STUDENT, TEACHER)
    assert top.student_spec == OutputSpec(frozenset({2}), logits=False)
    assert top.teacher_spec() == OutputSpec(frozenset({4}), logits=False)
    patient = DistillationLoss(DistillationConfig({"pkd": 1.0}), STUDENT, TEACHER)
    assert patient.teacher_spec() == OutputSpec(frozenset({2}), logits=False)  # all student layers but the last
    layers = DistillationLoss(DistillationConfig({"attention": 1.0, "hidden": 1.0}, layer_map=(1, 3)), STUDENT, TEACHER)
    assert layers.student_spec == OutputSpec(frozenset({1, 2}), frozenset({1, 2}), logits=False)
    assert layers.teacher_spec() == OutputSpec(frozenset({1, 3}), frozenset({1, 3}), logits=False)
    answers = DistillationLoss(DistillationConfig({"prediction": 1.0, "embedding": 1.0}), STUDENT, TEACHER)
    assert answers.teacher_spec() == OutputSpec(frozenset({0}), frozenset(), logits=True)


def test_total_is_the_weighted_sum_of_terms():
    objective = DistillationLoss(DistillationConfig(ALL, temperature=2.0), STUDENT, TEACHER)
    terms = run(objective, masked_lm(), masked_lm(TEACHER, seed=1), masked_batch())
    assert list(terms) == list(ALL)
    expected = sum(ALL[name] * value.item() for name, value in terms.items())
    assert objective.total(terms).item() == pytest.approx(expected, rel=1e-6)


def test_layer_terms_are_sums_over_student_layers_in_numpy():
    objective = DistillationLoss(
        DistillationConfig({"attention": 1.0, "hidden": 1.0}, layer_map=(2, 4)), STUDENT, TEACHER
    ).double()
    student, teacher = masked_lm().double(), masked_lm(TEACHER, seed=1).double()
    example = batch()
    terms = run(objective, student, teacher, example)
    s, t = student(example, objective.student_spec), teacher(example, objective.teacher_spec())
    project = objective.projections["hidden"].weight.detach().numpy().T
    real = [np.flatnonzero(row) for row in example.mask.numpy()]
    hidden = attention = 0.0
    for ours, theirs in ((1, 2), (2, 4)):
        difference = s.hidden[ours].detach().numpy() @ project - t.hidden[theirs].detach().numpy()
        hidden += (difference**2).mean()
        difference = (s.scores[ours] - t.scores[theirs]).detach().numpy()
        pairs = [difference[row][:, tokens][:, :, tokens].ravel() for row, tokens in enumerate(real)]
        attention += (np.concatenate(pairs) ** 2).mean()
    assert terms["hidden"].item() == pytest.approx(hidden, rel=1e-10)
    assert terms["attention"].item() == pytest.approx(attention, rel=1e-10)


@pytest.mark.parametrize("projection", ["shared", "per_layer"])
def test_gradients_reach_projections_and_map_but_not_the_teacher(projection):
    config = replace(EVERYTHING, projection=projection, layer_map=learnable())
    objective = DistillationLoss(config, STUDENT, TEACHER)
    student, teacher = masked_lm(), masked_lm(TEACHER, seed=1)
    objective.total(run(objective, student, teacher, masked_batch())).backward()
    assert set(objective.projections) == {"embedding"} | (
        {"hidden"} if projection == "shared" else {"hidden_1", "hidden_2"}
    )
    assert all(part.grad.abs().sum() > 0 for part in objective.parameters())
    assert all(part.grad is not None for name, part in student.named_parameters() if "pooler" not in name)
    assert all(part.grad is None for part in teacher.parameters())


def test_the_whole_sum_is_invariant_to_padding():
    objective = DistillationLoss(EVERYTHING, STUDENT, TEACHER).double()
    student, teacher = masked_lm().double(), masked_lm(TEACHER, seed=1).double()
    narrow = masked_batch()
    wide = replace(batch(width=14), positions=torch.tensor([1, 15, 29]), labels=narrow.labels)
    for name, value in run(objective, student, teacher, narrow).items():
        assert abs(value - run(objective, student, teacher, wide)[name]) < 1e-10, name


def test_a_student_that_is_the_teacher_has_no_distance():
    weights = {name: 1.0 for name in EVERYTHING.weights if name != "hard"}
    objective = DistillationLoss(DistillationConfig(weights), TEACHER, TEACHER)
    terms = run(objective, masked_lm(TEACHER), masked_lm(TEACHER), masked_batch())
    assert not objective.projections
    assert all(abs(value) < 1e-6 for value in terms.values())


def test_projections_are_kept_between_stages(tmp_path):
    first = DistillationLoss(DistillationConfig({"hidden": 1.0}), STUDENT, TEACHER)
    first.save(tmp_path)
    second = DistillationLoss(DistillationConfig({"hidden": 1.0, "embedding": 1.0}), STUDENT, TEACHER)
    new = second.projections["embedding"].weight.clone()
    second.load(tmp_path)
    assert torch.equal(second.projections["hidden"].weight, first.projections["hidden"].weight)
    assert torch.equal(second.projections["embedding"].weight, new)


def test_all_settings_of_a_stage_are_taken():
    tree = default_tree({"students.tinybert4.projection": "per_layer"})
    student = tree["students"]["tinybert4"]
    student["general"] = {"losses": {"hidden": 1.0, "prediction": 1.0}, "temperature": 3.0, "layer_map": "top"}
    student["general"]["reduction"] = "published"
    student["intermediate"] = {"losses": {"cosine": 1.0}}
    assert config_of(tree, "tinybert4", "general") == DistillationConfig(
        {"hidden": 1.0, "prediction": 1.0}, "top", True, "per_layer", temperature=3.0, padded_tokens=64, seed=42
    )
    assert config_of(tree, "tinybert4", "intermediate") == DistillationConfig(
        {"cosine": 1.0}, projection="per_layer", seed=42
    )


def test_losses_that_are_off_are_dropped():
    tree = check_params(default_tree())
    lazy, skip = (
        DistillationConfig.of(tree.students[name], "general", seed=42, length_tokens=64)
        for name in ("lazy", "pkd_skip")
    )
    assert (lazy, skip) == (DistillationConfig({"hard": 1.0}, seed=42), DistillationConfig({}))


def test_alpha_trades_hidden_for_attention():
    """2α·hidden + 2(1 − α)·attention, by hand for α = .25; a loss that it switches off is not computed."""
    changed = default_tree()
    changed["students"]["tinybert4"]["general"] = {"losses": {"attention": 1.0, "hidden": 3.0}, "alpha": 0.25}
    assert config_of(changed, "tinybert4", "general").weights == {
        "attention": 1.5,
        "hidden": 1.5,
    }
    changed["students"]["tinybert4"]["general"]["alpha"] = 1.0
    assert config_of(changed, "tinybert4", "general").weights == {"hidden": 6.0}


def test_a_learnable_map_takes_its_settings_from_the_student():
    changed = default_tree()
    changed["students"]["tinybert4"]["layer_map"] = {"learnable": {"learning_rate": 0.01, "init": "last"}}
    found = config_of(changed, "tinybert4", "general")
    assert found.layer_map == learnable(learning_rate=0.01, init="last")


def test_a_stage_may_have_a_layer_map_of_its_own():
    changed = default_tree()
    student = changed["students"]["tinybert4"]
    student["layer_map"] = {"learnable": {"learning_rate": 0.01, "init": "last"}}
    student["general"]["layer_map"] = [2, 3]
    student["intermediate"]["layer_map"] = {"learnable": {"learning_rate": 0.2, "init": "equal"}}
    general, intermediate = (config_of(changed, "tinybert4", stage) for stage in ("general", "intermediate"))
    assert general.layer_map == (2, 3)
    assert intermediate.layer_map == learnable(learning_rate=0.2)


@pytest.mark.parametrize(
    ("student", "losses", "layer_map", "named"),
    [
        (replace(STUDENT, num_attention_heads=4), {"attention": 1.0}, "uniform", "4 heads, the teacher 3"),
        (STUDENT, {"hidden": 1.0}, (1, 5), "5 is beyond the teacher's layers; allowed: 1 to 4"),
        (replace(STUDENT, num_hidden_layers=6), {"hidden": 1.0}, "uniform", "6 student layers to 4 teacher"),
    ],
)
def test_unfit_pairs_are_refused_before_training(student, losses, layer_map, named):
    with pytest.raises(UserError, match=named):
        DistillationLoss(DistillationConfig(losses, layer_map=layer_map), student, TEACHER)


def test_a_random_map_requests_only_the_layers_it_drew():
    objective = DistillationLoss(
        DistillationConfig({"attention": 1.0, "hidden": 1.0}, layer_map="random"), STUDENT, TEACHER
    )
    seen = set()
    for step in range(20):
        objective.map.redraw(step)
        wanted = objective.teacher_spec()
        assert wanted.hidden == wanted.scores
        seen.add(tuple(sorted(wanted.hidden)))
        run(objective, masked_lm(), masked_lm(TEACHER), batch())
    assert seen == {(1, 3), (1, 4), (2, 3), (2, 4)}


def test_mean_map_imitates_the_mean_of_each_block():
    objective = DistillationLoss(DistillationConfig({"attention": 1.0}, layer_map="mean"), STUDENT, TEACHER)
    student, teacher, example = masked_lm(), masked_lm(TEACHER, seed=1), batch()
    s, t = student(example, objective.student_spec), teacher(example, objective.teacher_spec())
    pairs = (example.mask[:, :, None] & example.mask[:, None, :])[:, None].expand(-1, 3, -1, -1).numpy()
    expected = 0.0
    for ours, (first, second) in ((1, (1, 2)), (2, (3, 4))):
        target = (t.scores[first] + t.scores[second]).detach().numpy() / 2
        expected += ((s.scores[ours].detach().numpy() - target)[pairs] ** 2).mean()
    assert objective(s, t, example)["attention"].item() == pytest.approx(expected, rel=1e-5)


def test_pkd_reads_the_first_token_of_all_layers_but_the_last():
    student_config = replace(TEACHER, num_hidden_layers=3)
    objective = DistillationLoss(DistillationConfig({"pkd": 1.0}, layer_map=(1, 3, 4)), student_config, TEACHER)
    student, teacher, example = masked_lm(student_config, seed=2), masked_lm(TEACHER, seed=1), batch()
    s, t = student(example, objective.student_spec), teacher(example, objective.teacher_spec())
    expected = 0.0
    for ours, theirs in ((1, 1), (2, 3)):
        # rows of 7, 4 and 5 tokens
        a, b = (part[[0, 7, 11]].detach().double().numpy() for part in (s.hidden[ours], t.hidden[theirs]))
        a, b = a / np.linalg.norm(a, axis=1, keepdims=True), b / np.linalg.norm(b, axis=1, keepdims=True)
        expected += ((a - b) ** 2).sum(1).mean()
    assert objective(s, t, example)["pkd"].item() == pytest.approx(expected, rel=1e-5)


def test_projections_start_from_a_given_matrix():
    objective = DistillationLoss(DistillationConfig({"hidden": 1.0, "embedding": 1.0}), STUDENT, TEACHER)
    matrix = torch.randn(24, 12)
    objective.start_projections(matrix)
    assert all(torch.equal(part.weight, matrix) for part in objective.projections.values())


@pytest.mark.parametrize(
    ("projection", "places"), [("per_layer", {"embedding": 0, "hidden_1": 1, "hidden_2": 2}),
                               ("shared", {"embedding": 0, "hidden": 2})]
)  # fmt: skip
def test_projections_start_from_a_matrix_a_layer(projection, places):
    objective = DistillationLoss(
        DistillationConfig({"hidden": 1.0, "embedding": 1.0}, projection=projection), STUDENT, TEACHER
    )
    matrices = torch.randn(3, 24, 12)
    objective.start_projections(matrices)
    assert objective.projections.keys() == places.keys()
    assert all(torch.equal(part.weight, matrices[places[name]]) for name, part in objective.projections.items())


def test_what_a_stage_does_not_use_is_kept_for_the_next(tmp_path):
    matrix = torch.randn(24, 12)
    started = DistillationLoss(DistillationConfig({}), STUDENT)
    started.start_projections(matrix)
    started.save(tmp_path)
    between = DistillationLoss(DistillationConfig({"prediction": 1.0}), STUDENT, TEACHER)
    between.load(tmp_path)
    between.save(tmp_path)
    last = DistillationLoss(DistillationConfig({"hidden": 1.0, "embedding": 1.0}), STUDENT, TEACHER)
    last.load(tmp_path)
    assert all(torch.equal(part.weight, matrix) for part in last.projections.values())


def test_damaged_projections_are_named(tmp_path):
    DistillationLoss(DistillationConfig({"hidden": 1.0}), STUDENT, TEACHER).save(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=f"{path.name}: damaged"):
        DistillationLoss(DistillationConfig({"hidden": 1.0}), STUDENT, TEACHER).load(tmp_path)


def test_only_a_stages_own_learnable_map_starts_again(tmp_path):
    def objective(init="equal", **settings):
        config = DistillationConfig({"hidden": 1.0}, layer_map=learnable(init=init), **settings)
        return DistillationLoss(config, STUDENT, TEACHER)

    before = objective()
    with torch.no_grad():
        before.map.theta[0].copy_(torch.tensor([0.5, -0.5]))
    before.save(tmp_path)
    continued, started_again = objective(), objective("last", map_is_new=True)
    continued.load(tmp_path)
    started_again.load(tmp_path)
    assert continued.map.theta[0].tolist() == [0.5, -0.5]
    assert started_again.map.theta[0].tolist() == [-1.0, 1.0]
    assert torch.equal(started_again.projections["hidden"].weight, before.projections["hidden"].weight)


def test_a_student_of_several_labels_imitates_each(tmp_path):
    config = DistillationConfig({"hard": 1.0, "prediction": 1.0}, temperature=2.0)
    student = classifier(replace(STUDENT, problem_type=MULTILABEL), ("a", "b", "c"))
    teacher = classifier(replace(TEACHER, problem_type=MULTILABEL), ("a", "b", "c"))
    example = batch(labels=torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]))
    terms = run(DistillationLoss(config, student.config, teacher.config), student, teacher, example)
    ours, theirs = (model(example).required_logits for model in (student, teacher))
    assert terms["prediction"].item() == pytest.approx(
        losses.multilabel_prediction(ours, theirs, temperature=2.0).item(), rel=1e-5
    )
    expected = torch.nn.functional.binary_cross_entropy_with_logits(ours, example.gold)
    assert terms["hard"].item() == pytest.approx(expected.item(), rel=1e-5)
