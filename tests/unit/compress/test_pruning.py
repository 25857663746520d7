from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.support.builders import STUDENT, TEACHER, classifier
from tinybert.compress.pruning import Pruner, linear_sparsity
from tinybert.config.fields import Training
from tinybert.data.encoding import Encoded
from tinybert.distill.batches import Batches
from tinybert.distill.loop import LiveTeacher, Settings
from tinybert.distill.loop import train as distill
from tinybert.distill.metric_log import TrainRun
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.resume import Checkpoint
from tinybert.models.bert import BertConfig, SequenceClassifier
from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig
from tinybert.models.model_folders import save_model
from tinybert.models.outputs import Batch


def small_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(5, 10), nn.Linear(10, 20), nn.LayerNorm(20), nn.Linear(20, 40))  # 1000 weights


def zeros(model: nn.Module) -> list[torch.Tensor]:
    return [module.weight == 0 for module in model.modules() if isinstance(module, nn.Linear)]


def train(model: nn.Module, pruner: Pruner, steps: range, optimizer: torch.optim.Optimizer) -> list[int]:
    """Steps on random data; returns how many Linear weights are zero after each."""
    generator = torch.Generator().manual_seed(1)
    counts = []
    for step in steps:
        tokens = torch.randint(5, (8,), generator=generator)
        optimizer.zero_grad()
        (model(tokens) - torch.randn(8, 40, generator=generator)).square().mean().backward()
        pruner.before_step(step)
        optimizer.step()
        pruner.after_step()
        counts.append(sum(int(mask.sum()) for mask in zeros(model)))
    return counts


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def started(model: nn.Module, target: float, steps: int, ramp_fraction: float = 1.0) -> Pruner:
    pruner = Pruner(model, target=target, ramp_fraction=ramp_fraction)
    pruner.begin(steps)
    return pruner


def test_sparsity_follows_the_cubic_ramp_exactly():
    model = small_model()
    pruner = started(model, 0.2, 6, ramp_fraction=0.6)
    # 20 % of 1000 weights over 0.6·6 ≈ 4 steps; by hand: 200·(1 − (3/4)³, 1 − (1/2)³, 1 − (1/4)³, 1)
    assert train(model, pruner, range(6), adamw(model)) == [116, 175, 197, 200, 200, 200]
    assert linear_sparsity(model) == 0.2


def test_sparsity_rises_by_equal_increments():
    model = small_model()
    pruner = Pruner(model, target=0.3, ramp_fraction=0.75, increments=3)
    pruner.begin(8)
    # 30 % of 1000 weights, a third of them at each of the steps 0, 2 and 4 of a ramp of 0.75·8 = 6 steps
    assert train(model, pruner, range(8), adamw(model)) == [100, 100, 200, 200, 300, 300, 300, 300]


def test_more_increments_than_steps_reach_the_target():
    model = small_model()
    pruner = Pruner(model, target=0.2, ramp_fraction=1.0, increments=6)
    pruner.begin(2)
    assert train(model, pruner, range(2), adamw(model))[-1] == 200


def test_a_target_of_zero_keeps_the_zeros():
    model = small_model()
    train(model, started(model, 0.4, 1), range(1), adamw(model))
    pruned = zeros(model)
    keeper = Pruner(model, target=0.0, ramp_fraction=0.5, increments=3)
    keeper.begin(5)
    assert train(model, keeper, range(5), adamw(model)) == [400] * 5
    assert all(torch.equal(old, new) for old, new in zip(pruned, zeros(model), strict=True))


def test_the_ramp_has_at_least_one_step():
    model = small_model()
    pruner = started(model, 0.2, 2, ramp_fraction=0.1)
    assert train(model, pruner, range(2), adamw(model)) == [200, 200]


@pytest.mark.parametrize("target", [0.2, 0.5, 0.7, 0.9, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_the_target_is_exact_however_few_the_steps(target, steps):
    model = small_model()
    pruner = started(model, target, steps)
    assert train(model, pruner, range(steps), adamw(model))[-1] == round(1000 * target)


def test_masks_only_grow():
    model = small_model()
    pruner = started(model, 0.6, 10)
    optimizer = adamw(model)
    before = zeros(model)
    for step in range(12):
        train(model, pruner, range(step, step + 1), optimizer)
        after = zeros(model)
        assert all(bool((new | ~old).all()) for old, new in zip(before, after, strict=True))
        before = after
    assert linear_sparsity(model) == 0.6


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_pruned_weights_stay_zero_despite_momentum_and_decay(kind):
    model = small_model()
    optimizers = {
        "adamw": adamw(model),
        "sgd": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
    }
    idle = started(model, 0.0, 1)
    assert train(model, idle, range(10), optimizers[kind])[-1] == 0  # momentum is built up
    pruner = started(model, 0.3, 1)
    assert train(model, pruner, range(10), optimizers[kind]) == [300] * 10


def test_only_gradients_of_pruned_weights_become_zero():
    model = small_model()
    pruner = started(model, 0.5, 1)
    model(torch.arange(5)).square().mean().backward()
    linear = model[3]
    raw = linear.weight.grad.clone()
    bias = linear.bias.grad.clone()
    pruner.before_step(0)
    pruner.after_step()
    pruned = linear.weight == 0
    assert 0 < pruned.sum() < pruned.numel()
    assert (linear.weight.grad[pruned] == 0).all() and (raw[pruned] != 0).any()
    assert torch.equal(linear.weight.grad[~pruned], raw[~pruned])
    assert torch.equal(linear.bias.grad, bias)


def test_one_ranking_over_all_layers_takes_the_smallest():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.1, -0.2], [0.3, -0.4]]))
        model[1].weight.copy_(torch.tensor([[-0.05, 5.0], [0.25, 6.0]]))
    pruner = started(model, 0.5, 1)
    pruner.before_step(0)
    pruner.after_step()
    assert torch.equal(model[0].weight, torch.tensor([[0.0, 0.0], [0.3, -0.4]]))
    assert torch.equal(model[1].weight, torch.tensor([[0.0, 5.0], [0.0, 6.0]]))


def test_equal_magnitudes_are_pruned_in_order():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for module in model:
        nn.init.constant_(module.weight, -1.0)
    pruner = started(model, 5 / 8, 1)
    pruner.before_step(0)
    pruner.after_step()
    assert torch.equal(model[0].weight, torch.zeros(2, 2))
    assert torch.equal(model[1].weight, torch.tensor([[0.0, -1.0], [-1.0, -1.0]]))


def test_only_linear_weights_are_pruned():
    config = BertConfig(11, 8, 2, 2, 16, max_position_embeddings=12)
    torch.manual_seed(0)
    model = SequenceClassifier(config, ("no", "yes"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pruner = started(model, 0.9, 1)
    pruner.before_step(0)
    pruner.after_step()
    # by hand: a layer has 4·8·8 + 2·8·16 = 512 Linear weights; two layers, the pooler's 64, the head's 16
    assert sum(int((before[name] != value).sum()) for name, value in model.state_dict().items()) == round(0.9 * 1104)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(before[name], value)}
    assert all(name.endswith("weight") and "LayerNorm" not in name and "embeddings" not in name for name in changed)
    ids = torch.ones(1, 3, dtype=torch.long)
    assert model(Batch(input_ids=ids, mask=ids.bool(), token_type_ids=0 * ids)).logits.isfinite().all()


def test_a_restored_model_continues_as_if_never_interrupted():
    def run(interrupted: bool) -> dict:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pruner = started(model, 0.4, 8)
        train(model, pruner, range(3), optimizer)
        if interrupted:
            restored = small_model(seed=9)
            restored.load_state_dict(model.state_dict())
            model, optimizer = restored, torch.optim.SGD(restored.parameters(), lr=0.1)
            pruner = started(model, 0.4, 8)
        train(model, pruner, range(3, 9), optimizer)
        return model.state_dict()

    whole, resumed = run(False), run(True)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_layer_without_gradient_is_pruned_too():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    pruner = started(model, 1.0, 1)
    pruner.before_step(0)
    pruner.after_step()
    assert linear_sparsity(model) == 1.0


LSTM = BiLstmConfig(50, 8, 6, 2, 10, dropout=0.0)
# by hand: two directions of 4·6 rows, 8 + 6 columns in the first layer, 12 + 6 in the second; head 12·10 + 10·2
LSTM_WEIGHTS = 2 * 24 * (14 + 18) + 140


def test_lstm_weights_count_and_are_pruned():
    torch.manual_seed(0)
    model = BiLstmClassifier(LSTM, ("no", "yes"), pair=False)
    pruner = started(model, 0.9, 1)
    ids = torch.randint(5, 50, (3, 7))
    batch = Batch(input_ids=ids, mask=ids.bool(), token_type_ids=0 * ids)
    model(batch).logits.square().sum().backward()
    pruner.before_step(0)
    pruner.after_step()
    zero = {name: int((value == 0).sum()) for name, value in model.state_dict().items()}
    assert zero["encoder.layer.0.forward_lstm.weight_hh_l0"] > 0 and zero["encoder.layer.1.backward_lstm.weight_ih_l0"]
    assert sum(zero.values()) == round(0.9 * LSTM_WEIGHTS) + LSTM.embedding_size  # the embedding of padding
    assert linear_sparsity(model) == round(0.9 * LSTM_WEIGHTS) / LSTM_WEIGHTS
    assert model(batch).logits.isfinite().all()


class Killed(Exception):
    pass


class DyingBatches(Batches):
    """Task examples of a run that dies before its step `last`."""

    last = None

    def epoch(self, number: int, first: int = 0):
        for step, batch in enumerate(super().epoch(number, first), start=number * len(self) + first):
            if step == self.last:
                raise Killed
            yield batch


def examples() -> Encoded:
    rng = np.random.default_rng(0)
    ids = [rng.integers(5, 50, length) for length in rng.integers(4, 9, 40)]
    return Encoded(ids, [np.zeros_like(row) for row in ids], rng.integers(0, 2, 40))


def prune(student, *, target: float = 0.7, dies_at: int | None = None, checkpoint=None):
    """Distills `student` over 20 steps while it is pruned in the first 12."""
    torch.manual_seed(3)
    batches = DyingBatches(examples(), batch_size=8, seed=7)
    batches.last = dies_at
    training = Training(epochs=4, max_steps=None, batch_size=8, learning_rate=3e-2, accumulation_steps=2)
    optimizer = SimpleNamespace(weight_decay=0.01, max_gradient_norm=1.0, warmup_fraction=0.1)
    loss = DistillationLoss(DistillationConfig({"prediction": 1.0, "hard": 1.0}), student.config, TEACHER)
    pruner = Pruner(student, target=target, ramp_fraction=0.6)
    settings = Settings(training, optimizer, 7, "float32", pruner)
    teacher, run = LiveTeacher(classifier(TEACHER, seed=2), loss), TrainRun("small", checkpoint=checkpoint)
    return distill(student, loss, batches, settings, teacher=teacher, run=run)


def test_a_killed_pruning_ends_with_the_same_weights_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setenv("TINYBERT_CHECKPOINT_SECONDS", "0")
    whole = classifier(STUDENT, seed=1)
    curve = prune(whole)
    lock = None
    for dies_at in (1, 5, 11, 12, 17, None):
        checkpoint = Checkpoint(tmp_path, lambda: "a")
        checkpoint._lock = lock  # as after the death of the one before
        student = classifier(STUDENT, seed=1)
        if dies_at is None:
            resumed = prune(student, checkpoint=checkpoint)
        else:
            with pytest.raises(Killed):
                prune(student, dies_at=dies_at, checkpoint=checkpoint)
            assert checkpoint.load()["step"] == dies_at
        lock = checkpoint._lock
    assert resumed == curve
    assert linear_sparsity(whole) == pytest.approx(0.7, abs=0.0005)
    theirs = whole.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in student.state_dict().items())


@pytest.mark.parametrize(("kind", "percent"), [("bert", 20), ("bilstm", 90)])
def test_the_saved_file_has_the_target_share_of_zeros(kind, percent, tmp_path):
    torch.manual_seed(0)
    student = classifier(STUDENT) if kind == "bert" else BiLstmClassifier(LSTM, ("no", "yes"), pair=False)
    prune(student, target=percent / 100)
    save_model(student, tmp_path)
    matrices = {name: value for name, value in load_file(tmp_path / "model.safetensors").items() if value.ndim == 2}
    counted = [value for name, value in matrices.items() if "embeddings" not in name]
    zeros, total = sum(int((value == 0).sum()) for value in counted), sum(value.numel() for value in counted)
    # by hand: two layers of 4·12·12 + 2·12·24, pooler 144, head 24
    assert total == (LSTM_WEIGHTS if kind == "bilstm" else 2 * 1152 + 168)
    assert abs(zeros / total - percent / 100) < 0.001
