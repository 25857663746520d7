"""A classifier as an FP32 ONNX file, checked against PyTorch."""

import copy
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import Tensor, nn

from tinybert.compress.serving import INPUT_NAMES, OnnxClassifier, feeds_of
from tinybert.models.bert import SelfAttention, SequenceClassifier
from tinybert.models.checkpoints import Classifier
from tinybert.models.outputs import Batch, OutputSpec
from tinybert.pipeline.files import atomic_file, report_full_disk

OPSET = 20  # the last one that the tracing exporter knows
ATTENTION_OPSET = 23  # the first one with an Attention operator; our other operators only gained types since 20
UNKNOWN_DOMAIN = "later"
LARGEST_DIFFERENCE = 1e-4


class AttentionOperator(torch.autograd.Function):
    """softmax(q·kᵀ/√d)·v over all heads as one ONNX operator.

    Exported step by step, attention also contains a guard for rows without a real token, which no batch has; that
    guard took a fifth of a small INT8 model's time.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, heads: int) -> Tensor:
        """query, key, value (batch, length, width), mask (batch, 1, 1, key) bool -> (batch, query, width)."""
        query, key, value = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (query, key, value))
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)

    @staticmethod
    def symbolic(graph: Any, query: Any, key: Any, value: Any, mask: Any, heads: int) -> Any:
        """The node, in a made-up domain that `_trace` removes, because the tracer does not know the operator."""
        one = graph.op("Constant", value_t=torch.ones(1, dtype=torch.int64))
        length = graph.op("Shape", query, start_i=1, end_i=2)
        mask = graph.op("Expand", mask, graph.op("Concat", one, one, length, one, axis_i=0))
        sizes = {"q_num_heads_i": heads, "kv_num_heads_i": heads}
        context = graph.op(f"{UNKNOWN_DOMAIN}::Attention", query, key, value, mask, **sizes)
        context.setType(query.type())
        return context


class ServedAttention(SelfAttention):
    """Self-attention that is exported as one operator."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scores: Tensor | None = None
    ) -> Tensor:
        """As SelfAttention's; scores are never given."""
        return AttentionOperator.apply(query, key, value, mask, self.heads)


class LogitsFromTensors(nn.Module):
    """The classifier with plain tensors as inputs, as a graph has them."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        batch = Batch(input_ids=input_ids, mask=attention_mask.bool(), token_type_ids=token_type_ids)
        # The classifier reads [CLS] only, so the last layer computes no other row.
        return self.model(batch, OutputSpec(only_first=True)).required_logits


def export_onnx(model: Classifier, path: str | Path, *, real_rows: Sequence[Batch] = ()) -> None:
    """Writes the model in evaluation mode to one ONNX file; the same weights give the same bytes.

    Inputs of the graph: input_ids, attention_mask (1 on real tokens) and token_type_ids, int64 (batch, length), both
    sizes dynamic. Output: logits, float32 (batch, classes). Raises RuntimeError and writes no file if ONNX Runtime and
    PyTorch differ by more than 1e-4 in a logit of random rows or of the padded batches `real_rows`.
    """
    plain, served = (copy.deepcopy(model).cpu().float().eval() for _ in range(2))
    if isinstance(served, SequenceClassifier):
        for layer in served.bert.encoder.layer:
            layer.attention.self.__class__ = ServedAttention
    with tempfile.TemporaryDirectory() as folder, report_full_disk(folder):
        draft = Path(folder) / "model.onnx"
        _trace(served, draft)
        _compare(plain, draft, [_padded_batch(plain, 1, 5), _padded_batch(plain, 3, 17), *real_rows])
        with atomic_file(path, "wb") as handle:
            handle.write(draft.read_bytes())


def _trace(served: Classifier, path: Path) -> None:
    """Writes the graph without the comparison."""
    example = feeds_of(_padded_batch(served, 2, 8))
    with warnings.catch_warnings():
        # The tracing exporter takes 0.3 s, the one on torch.export 5 s, and its graph runs no slower. It warns that it
        # is deprecated, and of an LSTM that other shapes may fail; the comparison tries some.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            LogitsFromTensors(served),
            tuple(map(torch.from_numpy, example.values())),
            str(path),
            input_names=list(INPUT_NAMES),
            output_names=["logits"],
            dynamic_axes={name: {0: "batch", 1: "length"} for name in INPUT_NAMES} | {"logits": {0: "batch"}},
            opset_version=OPSET,
            dynamo=False,
        )
    model = onnx.load(path)
    for node in model.graph.node:
        node.domain = node.domain.removeprefix(UNKNOWN_DOMAIN)
    del model.opset_import[:]
    model.opset_import.append(onnx.helper.make_opsetid("", ATTENTION_OPSET))
    model.ir_version = onnx.helper.find_min_ir_version_for(model.opset_import)
    onnx.save(model, path)
    quant_pre_process(path, path, skip_symbolic_shape=True)  # folds constants


def _compare(plain: Classifier, path: Path, batches: Sequence[Batch]) -> None:
    """RuntimeError unless ONNX Runtime and PyTorch agree, also on shapes other than the traced one."""
    served = OnnxClassifier(path, 1)
    for batch in batches:
        with torch.inference_mode():
            expected = plain(batch).required_logits.numpy()
        difference = float(np.abs(served.logits(feeds_of(batch)) - expected).max())
        if not difference <= LARGEST_DIFFERENCE:  # true for NaN as well
            batch_size, length = batch.input_ids.shape
            raise RuntimeError(
                f"the exported graph differs from PyTorch by {difference:.2g} in a logit at batch {batch_size}, "
                f"length {length}; allowed: at most {LARGEST_DIFFERENCE:g}"
            )


def _padded_batch(model: Classifier, batch_size: int, length: int) -> Batch:
    """Fixed random tokens, rows of 2 to `length` real tokens in two segments."""
    length = min(length, getattr(model.config, "max_position_embeddings", length))
    generator = torch.Generator().manual_seed(0)
    input_ids = torch.randint(model.config.vocab_size, (batch_size, length), generator=generator)
    real, places = torch.linspace(2, length, batch_size).long()[:, None], torch.arange(length)
    second = (places >= real // 2) & (places < real)
    return Batch(input_ids=input_ids, mask=places < real, token_type_ids=second.long())
