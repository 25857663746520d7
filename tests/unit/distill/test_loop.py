"""The loop: schedule, determinism, the curve, what stops it."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.support.builders import PRECISIONS, STUDENT, TEACHER, classifier, learnable, masked_lm
from tinybert.config.fields import Training
from tinybert.data.encoding import Encoded
from tinybert.distill.batches import Batches
from tinybert.distill.loop import (
    Distiller,
    LiveTeacher,
    Settings,
    adamw,
    lr_factor,
    optimizer_step,
    start_accelerator,
    train,
)
from tinybert.distill.metric_log import TrainRun
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.resume import Checkpoint
from tinybert.pipeline.errors import UserError
from tinybert.training import training_metrics

OPTIMIZER = SimpleNamespace(weight_decay=0.01, max_gradient_norm=1.0, warmup_fraction=0.25)
RUN = TrainRun("test")


def examples(count=24, seed=0) -> Encoded:
    """Label 1 where the second token is high: learnable at once."""
    rng = np.random.default_rng(seed)
    rows = [np.concatenate([[2], rng.integers(5, 50, rng.integers(2, 9)), [3]]) for _ in range(count)]
    labels = np.array([int(row[1] > 27) for row in rows])
    return Encoded(rows, [np.zeros_like(row) for row in rows], labels)


def settings(epochs=3, learning_rate=1e-3, max_steps=None, precision="float32"):
    training = Training(epochs=epochs, max_steps=max_steps, batch_size=8, learning_rate=learning_rate)
    return Settings(training, OPTIMIZER, 7, precision)


def distill(losses, run_settings, *, student=None, teacher=None, run=RUN, **config):
    student, teacher = student or classifier(seed=1), teacher or classifier(TEACHER, seed=2)
    torch.manual_seed(3)
    loss = DistillationLoss(DistillationConfig(losses, **config), STUDENT, TEACHER)
    batches = Batches(examples(), batch_size=8, seed=7)
    curve = train(student, loss, batches, run_settings, teacher=LiveTeacher(teacher, loss), run=run)
    return student, teacher, curve


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_live_teacher_computes_in_the_precision_of_the_run(precision):
    teacher = classifier(TEACHER, seed=2)
    loss = DistillationLoss(DistillationConfig({"hidden": 1.0, "prediction": 1.0}), STUDENT, TEACHER)
    batch = next(Batches(examples(), batch_size=8, seed=7).epoch(0))
    with torch.no_grad():
        exact = teacher.eval()(batch, loss.teacher_spec())
    live, accelerator = LiveTeacher(teacher, loss), start_accelerator(precision)
    for _ in range(2):  # a teacher may serve two runs
        live.begin(accelerator)
    with accelerator.autocast():  # as in the loop
        found = live(batch)
    assert next(teacher.parameters()).dtype == torch.float32
    tolerance = 0.05 if precision == "bfloat16" else 0.0
    for layer, states in found.hidden.items():
        assert states.dtype == getattr(torch, precision)
        torch.testing.assert_close(states.float(), exact.hidden[layer], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found.logits.float(), exact.logits, rtol=tolerance, atol=tolerance)


def test_a_constant_learning_rate_has_no_warm_up():
    assert {lr_factor(step, 10, 0.2, "constant") for step in range(10)} == {1.0}


def test_learning_rate_rises_and_falls_as_computed_by_hand():
    found = [lr_factor(step, 10, 0.2, "linear") for step in range(10)]
    assert found == pytest.approx([1 / 3, 2 / 3, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])


def test_steps_are_all_epochs_or_max_steps():
    batches = Batches(examples(20), batch_size=8, seed=0)
    assert settings(epochs=4).training.steps(len(batches)) == 12
    assert settings(epochs=4, max_steps=5).training.steps(len(batches)) == 5
    assert settings(epochs=0).training.steps(len(batches)) == 0


def test_gradients_are_clipped_to_the_norm_of_params():
    module = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(module.weight)
    module.weight.grad = torch.tensor([[3.0, 4.0]])
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    assert optimizer_step(0, module, optimizer, start_accelerator("float32"), settings()).item() == 5.0
    assert module.weight[0].tolist() == pytest.approx([-0.6, -0.8], rel=1e-5)


def test_training_lowers_every_term_and_logs_a_curve():
    points = []
    _, _, curve = distill(
        {"prediction": 1.0, "hidden": 1.0},
        settings(epochs=20, learning_rate=3e-3),
        run=TrainRun("test", points.append),
    )
    assert points == curve
    assert [curve[0]["step"], curve[-1]["step"], curve[-1]["epoch"]] == [1, 60, 19]
    assert curve[-1]["hidden"] < 0.8 * curve[0]["hidden"]
    assert curve[-1]["prediction"] < 0.8 * curve[0]["prediction"]
    assert curve[0]["total"] == pytest.approx(curve[0]["prediction"] + curve[0]["hidden"], rel=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_same_seed_same_weights_and_the_teacher_is_untouched(precision):
    losses, of_run = {"prediction": 1.0, "attention": 1.0, "hidden": 1.0}, settings(precision=precision)
    (first, teacher, _), (second, _, _) = distill(losses, of_run), distill(losses, of_run)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    fresh = classifier(TEACHER, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(teacher.parameters(), fresh.parameters(), strict=True))
    assert not teacher.training
    assert not first.training


def test_no_epochs_leave_the_student_as_it_is():
    student, _, curve = distill({"hidden": 1.0}, settings(epochs=0))
    assert curve == []
    assert all(torch.equal(a, b) for a, b in zip(student.parameters(), classifier(seed=1).parameters(), strict=True))
    assert training_metrics(student, curve) == {"parameters": student.parameter_count, "steps": 0, "loss": {}}


def test_a_non_finite_loss_stops_the_run_with_step_and_term():
    with pytest.raises(UserError, match=r"step 1 of 9: the hidden loss is (nan|inf)"):
        teacher = classifier(TEACHER, seed=2)
        torch.nn.init.constant_(teacher.bert.encoder.layer[3].output.LayerNorm.weight, float("inf"))
        distill({"hidden": 1.0}, settings(), teacher=teacher)


def test_only_matrices_are_decayed():
    student, loss = masked_lm(), DistillationLoss(DistillationConfig({"hidden": 1.0}), STUDENT, TEACHER)
    decayed, plain = adamw(Distiller(student, loss), settings()).param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.01, 0.0)
    names = {id(parameter): name for name, parameter in Distiller(student, loss).named_parameters()}
    kept = {names[id(parameter)] for parameter in plain["params"]}
    assert {"loss.projections.hidden.weight", "student.bert.embeddings.word_embeddings.weight"} <= set(
        names.values()
    ) - kept
    assert kept == {name for name in names.values() if name.endswith(".bias") or "LayerNorm" in name}


def test_a_learnable_map_has_its_own_learning_rate():
    config = DistillationConfig({"hidden": 1.0}, layer_map=learnable(learning_rate=0.5))
    *others, of_map = adamw(Distiller(masked_lm(), DistillationLoss(config, STUDENT, TEACHER)), settings()).param_groups
    assert [group["peak_lr"] for group in (*others, of_map)] == [1e-3, 1e-3, 0.5]
    assert [tuple(parameter.shape) for parameter in of_map["params"]] == [(2,), (2,)]
    assert of_map["weight_decay"] == 0.0


def test_the_weights_of_a_learnable_map_move_and_are_logged():
    student, _, curve = distill({"hidden": 1.0}, settings(), layer_map=learnable(learning_rate=0.1))
    names = ["map_1_1", "map_1_2", "map_2_3", "map_2_4"]
    assert [name for name in curve[0] if name.startswith("map_")] == names
    assert curve[0]["map_1_1"] != curve[-1]["map_1_1"]
    assert curve[-1]["map_1_1"] + curve[-1]["map_1_2"] == pytest.approx(1.0)
    assert training_metrics(student, curve)["layer_map"] == {name: curve[-1][name] for name in names}


def test_without_losses_nothing_is_trained():
    student = classifier(seed=1)
    batches = Batches(examples(), batch_size=8, seed=7)
    assert train(student, DistillationLoss(DistillationConfig({}), STUDENT), batches, settings(), run=RUN) == []
    assert all(torch.equal(a, b) for a, b in zip(student.parameters(), classifier(seed=1).parameters(), strict=True))


def test_rows_longer_than_the_positions_are_rejected_at_start():
    rows = [np.arange(5, 45)]  # 40 tokens, 32 positions
    long = Encoded(rows, [np.zeros_like(row) for row in rows], np.array([0]))
    loss = DistillationLoss(DistillationConfig({"hard": 1.0}), STUDENT)
    with pytest.raises(UserError, match=r"max_length_tokens: .*\(got 40 tokens\); allowed: at most 32"):
        train(classifier(), loss, Batches(long, batch_size=8, seed=0), settings(), run=RUN)


def test_rows_padded_beyond_the_positions_are_rejected_at_start():
    loss = DistillationLoss(DistillationConfig({"hidden": 1.0}, padded_tokens=40), STUDENT, TEACHER)
    with pytest.raises(UserError, match=r"max_length_tokens: .*\(got 40 tokens\); allowed: at most 32"):
        train(classifier(), loss, Batches(examples(), batch_size=8, seed=0), settings(), run=RUN)


def spoil(student, *, step: int, value: float) -> None:
    """Makes the student's hidden states `value` in the forward pass of `step`, from 1."""
    passes = itertools.count(1)

    def hook(module, inputs, output):
        return output * value if next(passes) == step else output

    student.bert.encoder.layer[-1].output.register_forward_hook(hook)


def faulty(*, step: int, value=float("nan"), checkpoint=None, epochs=70):
    """210 steps, a point every fourth, one of them spoilt."""
    student = classifier(seed=1)
    spoil(student, step=step, value=value)
    run = TrainRun("test", checkpoint=checkpoint)
    distill({"prediction": 1.0, "hidden": 1.0}, settings(epochs), student=student, run=run)


@pytest.mark.parametrize("step", [4, 5, 6, 8, 210])
def test_the_very_step_of_a_fault_is_named(step):
    with pytest.raises(UserError, match=rf"^step {step} of 210: the hidden loss is nan; .* \(no checkpoint\)$"):
        faulty(step=step)


def test_an_infinite_term_is_distinguished_from_the_total():
    with pytest.raises(UserError, match="step 6 of 210: the hidden loss is inf; fix: lower learning_rate or its λ"):
        faulty(step=6, value=1e30)  # whose square float32 does not hold


def test_a_non_finite_gradient_of_finite_losses_stops_the_run():
    student, steps = classifier(seed=1), itertools.count(1)
    student.classifier.weight.register_hook(lambda gradient: gradient * (float("inf") if next(steps) == 6 else 1.0))
    batches = Batches(examples(), batch_size=8, seed=7)
    with pytest.raises(UserError, match=r"step 6 of 210: the gradient is (nan|inf); fix: lower learning_rate \(no"):
        train(student, DistillationLoss(DistillationConfig({"hard": 1.0}), STUDENT), batches, settings(70), run=RUN)


def test_a_fault_leaves_the_last_good_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("TINYBERT_CHECKPOINT_SECONDS", "0")
    checkpoint = Checkpoint(tmp_path, lambda: "run")
    with pytest.raises(UserError, match=rf"step 6 .* \(last good checkpoint: step 5, {tmp_path}/run\.pt\)"):
        faulty(step=6, checkpoint=checkpoint)
    saved = checkpoint.load()
    assert saved["step"] == 5
    assert all(tensor.isfinite().all() for tensor in saved["module"].values())
    again = Checkpoint(tmp_path, lambda: "run")
    again._lock = checkpoint._lock  # as after the end of the first
    with pytest.raises(UserError, match=r"step 7 of 210: .* \(last good checkpoint: step 6, "):
        faulty(step=2, checkpoint=again)  # the second step after the fifth


def test_a_fault_before_the_first_checkpoint_says_so(tmp_path):
    with pytest.raises(UserError, match=r"step 2 of 210: .* \(no checkpoint\)"):
        faulty(step=2, checkpoint=Checkpoint(tmp_path, lambda: "run"))
    assert list(tmp_path.iterdir()) == []
