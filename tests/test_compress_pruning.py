import pytest
import torch
from torch import nn

from tinybert.compress.pruning import Pruner, linear_sparsity
from tinybert.errors import UserError
from tinybert.models.activations import Batch
from tinybert.models.bert import BertConfig, SequenceClassifier


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


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # 20 % of 1000 weights over 4 steps; cubic by hand: 200·(1 − (3/4)³, 1 − (1/2)³, 1 − (1/4)³, 1)
        ("cubic", [116, 175, 197, 200, 200, 200]),
        ("linear", [50, 100, 150, 200, 200, 200]),
    ],
)
def test_sparsity_follows_the_schedule_exactly(schedule, expected):
    model = small_model()
    pruner = Pruner(model, target=0.2, schedule=schedule, ramp_steps=4)
    assert train(model, pruner, range(6), adamw(model)) == expected
    assert linear_sparsity(model) == 0.2


def test_the_target_counts_all_weights_and_increments_do_not_compound():
    # Five increments of 4 % of what is left reach 1 − 0.96⁵ = 18.46 % only: the published mistake.
    model = small_model()
    pruner = Pruner(model, target=0.2, schedule="linear", ramp_steps=5)
    assert train(model, pruner, range(5), adamw(model)) == [40, 80, 120, 160, 200]


def test_masks_only_grow():
    model = small_model()
    pruner = Pruner(model, target=0.6, schedule="cubic", ramp_steps=10)
    optimizer = adamw(model)
    before = zeros(model)
    for step in range(12):
        train(model, pruner, range(step, step + 1), optimizer)
        after = zeros(model)
        assert all(bool((new | ~old).all()) for old, new in zip(before, after, strict=True))
        before = after
    assert linear_sparsity(model) == 0.6


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_pruned_weights_stay_exactly_zero_despite_momentum_and_weight_decay(kind):
    model = small_model()
    optimizers = {
        "adamw": adamw(model),
        "sgd": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
    }
    idle = Pruner(model, target=0.0, schedule="linear", ramp_steps=1)
    assert train(model, idle, range(10), optimizers[kind])[-1] == 0  # momentum is built up
    pruner = Pruner(model, target=0.3, schedule="linear", ramp_steps=1)
    assert train(model, pruner, range(10), optimizers[kind]) == [300] * 10


def test_gradients_of_pruned_weights_are_zero_and_the_others_untouched():
    model = small_model()
    pruner = Pruner(model, target=0.5, schedule="linear", ramp_steps=1)
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


def test_one_ranking_over_all_layers_takes_the_smallest_magnitudes():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.1, -0.2], [0.3, -0.4]]))
        model[1].weight.copy_(torch.tensor([[-0.05, 5.0], [0.25, 6.0]]))
    pruner = Pruner(model, target=0.5, schedule="linear", ramp_steps=1)
    pruner.before_step(0)
    pruner.after_step()
    assert torch.equal(model[0].weight, torch.tensor([[0.0, 0.0], [0.3, -0.4]]))
    assert torch.equal(model[1].weight, torch.tensor([[0.0, 5.0], [0.0, 6.0]]))


def test_equal_magnitudes_are_pruned_in_order_and_in_exact_number():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for module in model:
        nn.init.constant_(module.weight, -1.0)
    pruner = Pruner(model, target=5 / 8, schedule="linear", ramp_steps=1)
    pruner.before_step(0)
    pruner.after_step()
    assert torch.equal(model[0].weight, torch.zeros(2, 2))
    assert torch.equal(model[1].weight, torch.tensor([[0.0, -1.0], [-1.0, -1.0]]))


def test_only_linear_weights_are_pruned():
    config = BertConfig(11, 8, 2, 2, 16, max_position_embeddings=12)
    torch.manual_seed(0)
    model = SequenceClassifier(config, ("no", "yes"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pruner = Pruner(model, target=0.9, schedule="cubic", ramp_steps=1)
    pruner.before_step(0)
    pruner.after_step()
    # by hand: a layer has 4·8·8 + 2·8·16 = 512 Linear weights; two layers, the pooler's 64, the head's 16
    assert sum(int((before[name] != value).sum()) for name, value in model.state_dict().items()) == round(0.9 * 1104)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(before[name], value)}
    assert all(name.endswith("weight") and "LayerNorm" not in name and "embeddings" not in name for name in changed)
    ids = torch.ones(1, 3, dtype=torch.long)
    assert model(Batch(input_ids=ids, mask=ids.bool(), token_type_ids=0 * ids)).logits.isfinite().all()


def test_a_restored_model_goes_on_as_if_never_interrupted():
    def run(interrupted: bool) -> dict:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pruner = Pruner(model, target=0.4, schedule="cubic", ramp_steps=8)
        train(model, pruner, range(3), optimizer)
        if interrupted:
            restored = small_model(seed=9)
            restored.load_state_dict(model.state_dict())
            model, optimizer = restored, torch.optim.SGD(restored.parameters(), lr=0.1)
            pruner = Pruner(model, target=0.4, schedule="cubic", ramp_steps=8)
        train(model, pruner, range(3, 9), optimizer)
        return model.state_dict()

    whole, resumed = run(False), run(True)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_layer_without_gradient_is_pruned_too():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    pruner = Pruner(model, target=1.0, schedule="linear", ramp_steps=1)
    pruner.before_step(0)
    pruner.after_step()
    assert linear_sparsity(model) == 1.0


@pytest.mark.parametrize(
    ("change", "told"),
    [({"target": 1.2}, "1.2"), ({"schedule": "square"}, "cubic, linear"), ({"ramp_steps": 0}, "at least 1")],
)
def test_bad_arguments_are_told_in_one_line(change, told):
    with pytest.raises(UserError, match=told) as error:
        Pruner(small_model(), **({"target": 0.2, "schedule": "cubic", "ramp_steps": 4} | change))
    assert "\n" not in str(error.value)


def test_a_model_without_linear_layers_is_refused():
    with pytest.raises(UserError, match="no Linear layer"):
        linear_sparsity(nn.Embedding(3, 3))
