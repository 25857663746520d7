"""Files for other runtimes: operators, opset, the same logits; here, in ONNX Runtime 1.17 and in JavaScript."""

import json
import subprocess
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch

from tests.support.builders import STUDENT, batch, classifier
from tests.support.runtimes import old_python, run_node
from tinybert.compress.onnx_files import export_onnx, feeds_of, random_feeds, session_of, write_portable
from tinybert.compress.quantization import plan_int8, write_int8
from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig
from tinybert.pipeline.paths import INT8_VARIANTS, VARIANTS

MODEL = classifier(replace(STUDENT, initializer_range=0.3), ("a", "b", "c"))
BATCHES = [batch((7, 4, 5)), batch((1,), 1), batch((2, 20, 9, 3), 24)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Each variant, and as portable_<variant> its portable file."""
    folder = tmp_path_factory.mktemp("portable")
    export_onnx(MODEL, folder / "fp32.onnx")
    plan = plan_int8(folder / "fp32.onnx", [random_feeds(8, 12, 50)], smoothing=0.9)
    for variant in INT8_VARIANTS:
        write_int8(plan, folder / f"{variant}.onnx", variant)
    for variant in VARIANTS:
        write_portable(folder / f"{variant}.onnx", folder / f"portable_{variant}.onnx")
    return folder


def logits(path, one) -> np.ndarray:
    """Of the batch in one piece: the scales of the dynamic variant depend on it."""
    return session_of(str(path)).run(["logits"], feeds_of(one))[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_portable_files_have_standard_operators_only(folder, variant):
    model = onnx.load(folder / f"portable_{variant}.onnx")
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 20)]
    assert model.ir_version <= 9 and not model.functions
    assert {node.domain for node in model.graph.node} == {""}
    assert "Attention" not in {node.op_type for node in model.graph.node}
    onnx.checker.check_model(model, full_check=True)
    described = {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in [*model.graph.input, *model.graph.output]
    }
    inputs = {name: ["batch", "length"] for name in ("input_ids", "attention_mask", "token_type_ids")}
    assert described == inputs | {"logits": ["batch", 3]}


@pytest.mark.parametrize("one", BATCHES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_portable_files_give_the_logits_of_the_fast_ones(folder, variant, one):
    expected = logits(folder / f"{variant}.onnx", one)
    assert np.ptp(expected) > 0.1  # logits that differ, or the comparison says nothing
    np.testing.assert_allclose(logits(folder / f"portable_{variant}.onnx", one), expected, atol=1e-5)


@pytest.mark.parametrize("variant", INT8_VARIANTS)
def test_int8_weights_stay_int8(folder, variant):
    weights = [tensor for tensor in onnx.load(folder / f"portable_{variant}.onnx").graph.initializer if tensor.dims]
    widths = {tensor.dims[0] for tensor in weights if tensor.data_type == onnx.TensorProto.INT8}
    assert {12, 24, 50} <= widths  # products and the table of words
    operators = {node.op_type for node in onnx.load(folder / f"portable_{variant}.onnx").graph.node}
    assert ("DequantizeLinear" if variant == "int8-qdq" else "MatMulInteger") in operators


def test_the_same_source_gives_the_same_bytes(folder, tmp_path):
    write_portable(folder / "fp32.onnx", tmp_path / "onnx/again.onnx")
    assert (tmp_path / "onnx/again.onnx").read_bytes() == (folder / "portable_fp32.onnx").read_bytes()


@pytest.mark.parametrize("pair", [False, True])
def test_a_bilstm_is_portable_too(tmp_path, pair):
    torch.manual_seed(0)
    export_onnx(BiLstmClassifier(BiLstmConfig(50, 8, 6, 1, 7), ("a", "b"), pair=pair).eval(), tmp_path / "fp32.onnx")
    write_portable(tmp_path / "fp32.onnx", tmp_path / "portable.onnx")
    expected, found = (logits(tmp_path / f"{name}.onnx", batch((7, 4, 5))) for name in ("fp32", "portable"))
    np.testing.assert_allclose(found, expected, atol=1e-6)


OLD_RUNTIME = """
import sys, numpy, onnxruntime
assert onnxruntime.__version__.startswith("1.17."), onnxruntime.__version__
feeds = dict(numpy.load("feeds.npz"))
for variant in sys.argv[1:]:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # exact integers without VNNI
    session = onnxruntime.InferenceSession(f"portable_{variant}.onnx", options, providers=["CPUExecutionProvider"])
    numpy.save(f"{variant}.npy", session.run(["logits"], feeds)[0])
"""


@pytest.mark.long
def test_onnx_runtime_1_17_gives_the_same_logits(folder):
    python, one = old_python(), BATCHES[2]
    np.savez(folder / "feeds.npz", **feeds_of(one))
    subprocess.run([python, "-c", OLD_RUNTIME, *VARIANTS], cwd=folder, check=True, timeout=300)
    for variant in VARIANTS:
        expected = logits(folder / f"{variant}.onnx", one)
        np.testing.assert_allclose(np.load(folder / f"{variant}.npy"), expected, atol=1e-4, err_msg=variant)


WASM = """
import fs from "node:fs";
import * as ort from "onnxruntime-web";

ort.env.wasm.numThreads = 1;
const { feeds, dims, variants } = JSON.parse(fs.readFileSync("feeds.json"));
const inputs = {};
for (const name in feeds) inputs[name] = new ort.Tensor("int64", BigInt64Array.from(feeds[name].map(BigInt)), dims);
const found = {};
for (const variant of variants) {
  const file = fs.readFileSync(`portable_${variant}.onnx`);
  const session = await ort.InferenceSession.create(file, { executionProviders: ["wasm"] });
  found[variant] = Array.from((await session.run(inputs)).logits.data);
}
console.log(JSON.stringify(found));
"""


@pytest.mark.long
def test_onnxruntime_web_gives_the_same_logits(folder):
    one = BATCHES[2]
    feeds = {name: values.flatten().tolist() for name, values in feeds_of(one).items()}
    about = {"feeds": feeds, "dims": list(one.input_ids.shape), "variants": VARIANTS}
    (folder / "feeds.json").write_text(json.dumps(about))
    found = json.loads(run_node(WASM, folder))
    for variant in VARIANTS:
        expected = logits(folder / f"{variant}.onnx", one).flatten()
        np.testing.assert_allclose(found[variant], expected, atol=1e-4, err_msg=variant)
