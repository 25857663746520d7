"""ONNX files of classifiers: their export, and running them with ONNX Runtime."""

import copy
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx.parser
import onnxruntime
import torch
import torch.nn.functional as F
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import Tensor, nn

from tinybert.config.schema import Latency
from tinybert.data.encoding import Encoded
from tinybert.models.bert import SequenceClassifier
from tinybert.models.model_folders import Classifier
from tinybert.models.outputs import Batch
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import report_disk_error, write_file

OPSET = 20  # the last one that the tracing exporter knows
ATTENTION_OPSET = 23  # the first one with an Attention operator; our other operators only gained types since 20
UNKNOWN_DOMAIN = "later"
PORTABLE_OPSET, PORTABLE_IR_VERSION = 20, 9  # what ONNX Runtime 1.17 reads
# The operators of our files that opset 20 lacks, as functions of operators that it has; blank lines separate them.
PORTABLE_FUNCTIONS = Path(__file__).with_name("portable_functions.txt").read_text(encoding="utf-8").split("\n\n")
LARGEST_DIFFERENCE, LARGEST_SHARE = 1e-4, 1e-5  # of the largest logit, which can be in the thousands for a score
INPUT_NAMES = ("input_ids", "attention_mask", "token_type_ids")
ORT_DOMAIN = "com.microsoft"
LARGEST_BYTES = 2**31 - 2**24  # of the weights: protobuf messages end at 2 GiB
SLICE_TOKENS = 256  # among the fastest of 128 to 4,096, at the size of BERT-base and of TinyBERT4

Feeds = dict[str, np.ndarray]  # input name -> (batch, length) int64


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


class LogitsFromTensors(nn.Module):
    """The classifier with plain tensors as inputs, as a graph has them."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        batch = Batch(input_ids=input_ids, mask=attention_mask.bool(), token_type_ids=token_type_ids)
        return self.model(batch).required_logits


def export_onnx(model: Classifier, path: str | Path, *, real_rows: Sequence[Batch] = ()) -> None:
    """Writes the model in evaluation mode to one ONNX file; the same weights give the same bytes.

    Inputs of the graph: input_ids, attention_mask (1 on real tokens) and token_type_ids, int64 (batch, length), both
    sizes dynamic. Output: logits, float32 (batch, classes). Raises RuntimeError and writes no file if ONNX Runtime and
    PyTorch differ by more than 1e-4 plus 1e-5 of a logit's size, in random rows or the padded batches `real_rows`;
    UserError if the weights are too large for one file.
    """
    if (size := 4 * model.parameter_count) > LARGEST_BYTES:
        problem = f"too large for one ONNX file (got {size / 1e9:.2f} GB); allowed: {LARGEST_BYTES / 1e9:.2f} GB"
        raise UserError(f"quantization.models (FOLDER): {problem}; fix: choose a smaller model, or use tinybert cut")
    plain, served = (copy.deepcopy(model).cpu().float().eval() for _ in range(2))
    if isinstance(served, SequenceClassifier):
        heads = served.config.num_attention_heads
        for layer in served.bert.encoder.layer:  # in an export the mask is always given, scores never are
            layer.attention.self.forward = lambda q, k, v, mask, _: AttentionOperator.apply(q, k, v, mask, heads)
    with tempfile.TemporaryDirectory() as folder, report_disk_error(folder):
        draft = Path(folder) / "model.onnx"
        _trace(served, draft)
        _compare(plain, draft, [_padded_batch(plain, 1, 5), _padded_batch(plain, 3, 17), *real_rows])
        write_file(path, draft.read_bytes())


def _trace(served: Classifier, path: Path) -> None:
    with warnings.catch_warnings():
        # The tracing exporter takes 0.3 s, the one on torch.export 5 s, and its graph runs no slower. It warns that it
        # is deprecated, and of an LSTM that other shapes may fail; the comparison tries some.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            LogitsFromTensors(served),
            tuple(map(torch.from_numpy, feeds_of(_padded_batch(served, 2, 8)).values())),
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


def write_portable(source: str | Path, path: str | Path) -> None:
    """Writes a file of `export_onnx` or `write_int8` with operators of opset 20 only, for other and older runtimes.

    Integers stay and floats differ by rounding, so the scores of `source` hold. Attention becomes several operators.
    """
    model = onnx.load(source)
    del model.opset_import[:]
    # com.microsoft is listed for the functions that are inlined next.
    model.opset_import.extend([onnx.helper.make_opsetid("", PORTABLE_OPSET), onnx.helper.make_opsetid(ORT_DOMAIN, 1)])
    model.ir_version = PORTABLE_IR_VERSION
    model.functions.extend(map(onnx.parser.parse_function, PORTABLE_FUNCTIONS))
    model = onnx.inliner.inline_local_functions(model)
    del model.opset_import[1:], model.graph.value_info[:]
    onnx.checker.check_model(model, full_check=True)
    write_file(path, model.SerializeToString(deterministic=True))


def _compare(plain: Classifier, path: Path, batches: Sequence[Batch]) -> None:
    """RuntimeError unless ONNX Runtime and PyTorch agree, also on shapes other than the traced one."""
    served = OnnxClassifier(path, 1)
    for batch in batches:
        with torch.inference_mode():
            expected = plain(batch).required_logits.numpy()
        found = served.logits(feeds_of(batch))
        allowed = LARGEST_DIFFERENCE + LARGEST_SHARE * np.abs(expected).max()
        if not np.allclose(found, expected, rtol=0, atol=allowed):  # NaN is not close
            difference = float(np.abs(found - expected).max())
            place = "batch {}, length {}".format(*batch.input_ids.shape)
            problem = f"the exported graph differs from PyTorch by {difference:.2g} in a logit at {place}"
            raise RuntimeError(f"{problem}; allowed: at most {allowed:.2g}")


def _padded_batch(model: Classifier, batch_size: int, length: int) -> Batch:
    """Fixed random tokens, rows of 2 to `length` real tokens in two segments."""
    length = min(length, model.config.max_position_embeddings)
    generator = torch.Generator().manual_seed(0)
    input_ids = torch.randint(model.config.vocab_size, (batch_size, length), generator=generator)
    real, places = torch.linspace(2, length, batch_size).long()[:, None], torch.arange(length)
    second = (places >= real // 2) & (places < real)
    return Batch(input_ids=input_ids, mask=places < real, token_type_ids=second.long())


class OnnxClassifier:
    """An ONNX file on `threads` CPU threads, for one caller at a time.

    A batch is split into slices of few rows, each run by one thread: a slice stays in its core's cache from layer to
    layer, and threads do not wait for each other after every node.
    """

    def __init__(self, path: str | Path, threads: int) -> None:
        self.threads = threads
        self._session = cache(partial(session_of, str(path)))  # by the number of its threads
        self._pool = ThreadPoolExecutor(threads)  # starts a thread only when there is work for it

    def logits(self, feeds: Feeds) -> np.ndarray:
        """Logits of one batch: (batch, classes) float32, identical in every run and for any number of threads."""
        slices = sliced(feeds)
        is_few = len(slices) < self.threads  # then all threads work at each node
        session, each_of = (self._session(self.threads), map) if is_few else (self._session(1), self._pool.map)
        return np.concatenate(list(each_of(lambda part: session.run(["logits"], part)[0], slices)))

    def logits_of(self, examples: Encoded, batch_size: int) -> np.ndarray:
        """Logits of all examples in their order: (rows, classes) float32."""
        found = [(rows, self.logits(feeds_of(batch))) for rows, batch in examples.batches(batch_size)]
        rows, logits = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return logits[np.argsort(rows)]


def feeds_of(batch: Batch) -> Feeds:
    """The batch as inputs of the graph: name -> (batch, length) int64."""
    tensors = (batch.input_ids, batch.mask.long(), batch.token_type_ids)
    return {name: tensor.cpu().numpy() for name, tensor in zip(INPUT_NAMES, tensors, strict=True)}


def random_feeds(batch_size: int, length_tokens: int, vocab_size: int) -> Feeds:
    """A batch of full-length rows of random tokens, the same in every run."""
    input_ids = torch.from_numpy(np.random.default_rng(0).integers(vocab_size, size=(batch_size, length_tokens)))
    return feeds_of(Batch(input_ids, torch.ones_like(input_ids, dtype=torch.bool), torch.zeros_like(input_ids)))


def sliced(feeds: Feeds) -> list[Feeds]:
    """The batch in slices of at most SLICE_TOKENS tokens (or one row), of similar size and even in number."""
    rows, length = feeds["input_ids"].shape
    count = -(-rows // max(1, SLICE_TOKENS // length))
    # An odd number would leave one of two threads idle while the last slice runs.
    count = min(count + count % 2, rows)
    pieces = {name: np.array_split(values, count) for name, values in feeds.items()}
    return [{name: pieces[name][number] for name in feeds} for number in range(count)]


def session_of(model: str | bytes, threads: int = 0) -> onnxruntime.InferenceSession:
    """A CPU session of a file or of its bytes; 0: as many threads as there are cores."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    options.log_severity_level = 3  # errors only
    # Otherwise idle threads of one session spin for a while on the cores that the next session runs on.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    capabilities = torch.cpu.get_capabilities()
    if not (capabilities.get("avx512_vnni") or capabilities.get("avx_vnni")):
        # Without VNNI (uint8 x int8 into 32 bits) the fast integer product of x64 saturates at 16 bits, which can ruin
        # a score; this entry asks for an exact one. With VNNI it must stay unset: it costs half of the speed there.
        options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def latencies(models: Mapping[str, str | Path], settings: Latency, examples: Encoded, vocab_size: int) -> dict:
    """Times one batch on each ONNX file (variant -> file), for every batch size.

    Returns threads, length_tokens and dev_examples as used, and for each variant median, p10 and p90 in milliseconds of
    batch_<n> (`length_tokens` random tokens a row, `runs` times) and dev_batch_<n> (rows evenly spread over the lengths
    of `examples`, each batch once: the spread is that of the lengths).
    """
    longest_first = np.argsort(-examples.lengths, kind="stable")
    rows = longest_first[np.linspace(0, len(examples) - 1, min(settings.dev_examples, len(examples))).astype(int)]
    results: dict = {"threads": settings.threads, "length_tokens": settings.length_tokens, "dev_examples": len(rows)}
    for variant, path in models.items():
        model = OnnxClassifier(path, settings.threads)
        results[variant] = {}
        for size in settings.batch_sizes:
            random = [random_feeds(size, settings.length_tokens, vocab_size)] * settings.runs
            # Batches of exactly that size; a smaller one only if there is no other.
            starts = range(0, max(1, len(rows) - size + 1), size)
            real = [feeds_of(examples.batch(rows[start : start + size])) for start in starts]
            for kind, batches in ((f"batch_{size}", random), (f"dev_batch_{size}", real)):
                results[variant][kind] = measure_latency_ms(model, batches, warmup_runs=settings.warmup_runs)
    return results


def measure_latency_ms(model: OnnxClassifier, batches: Sequence[Feeds], *, warmup_runs: int) -> dict[str, float]:
    """Median, p10 and p90 of the milliseconds per batch, after the first batch was run `warmup_runs` times."""
    times_ms = []
    for feeds in [batches[0]] * warmup_runs + list(batches):
        started = time.perf_counter()
        model.logits(feeds)
        times_ms.append(1000.0 * (time.perf_counter() - started))
    found = np.percentile(times_ms[warmup_runs:], [50, 10, 90]).tolist()
    return dict(zip(("median", "p10", "p90"), found, strict=True))
