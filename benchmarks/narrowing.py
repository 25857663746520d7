"""HomoDistil (Liang et al. 2023): a student begins in its teacher's width and is narrowed while it trains.

Residual columns, head dimensions and feed-forward neurons are removed by their sensitivity. The paper masks a few more
at each step; here they are really removed, at a few events: layer norms then see kept columns only, and steps get
cheaper.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tinybert.distill.objective import DistillationLoss
from tinybert.models.bert import BertConfig, MaskedLM

EVENTS = 20
SENSITIVITY_DECAY = 0.85  # of the moving average; chosen here, not taken from the paper

Axis = tuple[Tensor, int]  # a tensor and the dimension that runs over a structure's units


@dataclass
class Structure:
    """Units that the same index removes from several tensors: residual columns, head dimensions or neurons.

    Attributes:
        axes: The dimensions that have one entry a unit.
        final_size: Units that remain in each group.
        groups: Attention heads, which all keep the same number of units; otherwise 1.
        queries: Rescaled at each removal, to cancel the change of the factor 1/√(head width) of the scores.
        sensitivity: (units,) moving average of Σ |w · dL/dw| over the unit's weights.
    """

    axes: list[Axis]
    final_size: int
    groups: int = 1
    queries: tuple[nn.Parameter, ...] = ()
    sensitivity: Tensor = field(init=False)

    def __post_init__(self) -> None:
        tensor, dimension = self.axes[0]
        self.sensitivity = torch.zeros(tensor.shape[dimension], device=tensor.device)
        self.full_size = len(self.sensitivity) // self.groups

    def measure(self) -> None:
        """Adds the gradients of a step to the sensitivities."""
        total = torch.zeros_like(self.sensitivity)
        for tensor, dimension in self.axes:
            if tensor.grad is not None:  # the losses may not reach it
                products = (tensor * tensor.grad).abs()
                total += products.sum(dim=1 - dimension) if tensor.ndim > 1 else products
        self.sensitivity.lerp_(total, 1 - SENSITIVITY_DECAY)

    def shrink(self, progress: float, optimizer: torch.optim.Optimizer) -> None:
        """Removes the least sensitive units; `progress` (0 to 1) is the part of the narrowing that is over."""
        grouped = self.sensitivity.unflatten(0, (self.groups, -1))
        before = grouped.shape[1]
        # The cubic schedule of the paper: most units are removed early.
        size = round(self.final_size + (self.full_size - self.final_size) * (1 - progress) ** 3)
        if size == before:
            return
        kept = grouped.topk(size, dim=1).indices.sort(dim=1).values
        index = (kept + before * torch.arange(self.groups, device=kept.device)[:, None]).flatten()
        self.sensitivity = self.sensitivity[index]
        for tensor, dimension in self.axes:
            select(tensor, dimension, index, optimizer)
        for query in self.queries:
            rescale(query, (size / before) ** 0.5, optimizer)


def select(tensor: Tensor, dimension: int, index: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Keeps the entries `index` of a tensor, in place, and of Adam's moments if it has some."""
    state = optimizer.state.get(tensor, {})
    for name in ("exp_avg", "exp_avg_sq"):
        if name in state:
            state[name] = state[name].index_select(dimension, index)
    tensor.data = tensor.data.index_select(dimension, index.to(tensor.device))


def rescale(query: nn.Parameter, factor: float, optimizer: torch.optim.Optimizer) -> None:
    """Multiplies a weight by `factor`; its gradients are divided by it, and so are Adam's moments of them."""
    query.data.mul_(factor)
    if state := optimizer.state.get(query):
        state["exp_avg"].div_(factor)
        state["exp_avg_sq"].div_(factor**2)


def structures(student: MaskedLM, loss: DistillationLoss, config: BertConfig) -> list[Structure]:
    """All that shrinks until a student has the shape of `config`: the residual stream, then each layer's parts."""

    def rows(linear: nn.Linear) -> list[Axis]:
        return [(linear.weight, 0), (linear.bias, 0)]

    def columns(*modules: nn.Module) -> list[Axis]:
        return [(module.weight, 1) for module in modules]

    bert, head = student.bert, student.cls.predictions.transform.dense
    norms = [module for module in student.modules() if isinstance(module, nn.LayerNorm)]
    residual = [(weight, 0) for norm in norms for weight in (norm.weight, norm.bias)]
    residual += columns(*(module for module in student.modules() if isinstance(module, nn.Embedding)))
    residual += columns(*loss.projections.values())
    residual += [(tensor, 1) for name, tensor in loss.unused.items() if name.startswith("projections.")]
    # The units of pooler and head keep the numbers of the residual columns, as in subcloning; the diagonals of these
    # two weights count twice in the sensitivity.
    residual += [axis for dense in (bert.pooler.dense, head) for axis in (*rows(dense), *columns(dense))]
    parts, heads = [], config.num_attention_heads
    for layer in bert.encoder.layer:
        attend, attended = layer.attention.self, layer.attention.output.dense
        inner, output = layer.intermediate.dense, layer.output.dense
        residual += [*columns(attend.query, attend.key, attend.value, inner), *rows(attended), *rows(output)]
        queries, size = (attend.query.weight, attend.query.bias), config.hidden_size // heads
        parts.append(Structure(rows(attend.query) + rows(attend.key), size, heads, queries))
        parts.append(Structure(rows(attend.value) + columns(attended), size, heads))
        parts.append(Structure(rows(inner) + columns(output), config.intermediate_size))
    return [Structure(residual, config.hidden_size), *parts]


class Narrower:
    """Shrinks a student to `config` in the first `fraction` of its steps; called as compress.pruning.Pruner is."""

    def __init__(self, student: MaskedLM, loss: DistillationLoss, config: BertConfig, fraction: float) -> None:
        self.student, self.loss, self.config, self.fraction = student, loss, config, fraction

    def begin(self, steps: int, optimizer: torch.optim.Optimizer) -> None:
        """Called before the first of `steps` steps, when the weights are on their device."""
        self.steps, self.optimizer, self.done = max(1, round(self.fraction * steps)), optimizer, 0
        self.due = {max(1, round(self.steps * number / EVENTS)) for number in range(1, EVENTS + 1)}
        self.structures = structures(self.student, self.loss, self.config)

    @torch.no_grad()
    def before_step(self, step: int) -> None:
        """Measures the sensitivities by the gradients, which are not clipped yet."""
        if step < self.steps:
            for structure in self.structures:
                structure.measure()

    @torch.no_grad()
    def after_step(self) -> None:
        """Removes units if it is time; gradients are None then, so their shapes need not agree."""
        self.done += 1
        if self.done not in self.due:
            return
        for structure in self.structures:
            structure.shrink(self.done / self.steps, self.optimizer)
        for module in (*self.student.modules(), *self.loss.modules()):
            if isinstance(module, nn.LayerNorm):
                module.normalized_shape = tuple(module.weight.shape)
            elif isinstance(module, nn.Linear):
                module.out_features, module.in_features = module.weight.shape
            elif isinstance(module, nn.Embedding):
                module.embedding_dim = module.weight.shape[1]
        if self.done == self.steps:
            self.student.config = self.config
