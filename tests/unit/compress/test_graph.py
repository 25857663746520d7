"""What of a graph counts as a product with a matrix or as a table."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tinybert.compress.graph import Product, Table, quantizable, read_graph
from tinybert.pipeline.errors import UserError

WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)


def model(operator: str, inputs: list[str], **attributes) -> onnx.ModelProto:
    """input -> one node with a weight -> hidden."""
    constants = {"weight": WEIGHT, "bias": np.ones(3, np.float32)}
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items() if name in inputs]
    node = helper.make_node(operator, inputs, ["hidden"], name="node", **attributes)
    given = helper.make_tensor_value_info("given", TensorProto.FLOAT, None)
    hidden = helper.make_tensor_value_info("hidden", TensorProto.FLOAT, None)
    return helper.make_model(helper.make_graph([node], "graph", [given], [hidden], initializers))


def test_a_gemm_is_a_product_its_weight_transposed_or_not():
    [plain] = quantizable(model("Gemm", ["given", "weight", "bias"], alpha=1.0, beta=1.0))
    [transposed] = quantizable(model("Gemm", ["given", "weight"], transB=1))
    assert isinstance(plain, Product) and np.array_equal(plain.weight, WEIGHT) and plain.bias.tolist() == [1, 1, 1]
    assert np.array_equal(transposed.weight, WEIGHT.T) and transposed.bias is None


@pytest.mark.parametrize("attributes", [{"transA": 1}, {"alpha": 0.5}, {"beta": 2.0}])
def test_a_gemm_that_computes_something_else_stays_in_float(attributes):
    with pytest.raises(UserError, match="no Linear layer"):
        quantizable(model("Gemm", ["given", "weight", "bias"], **attributes))


def test_a_table_is_looked_up_by_rows():
    [table] = quantizable(model("Gather", ["weight", "given"]))
    assert isinstance(table, Table) and np.array_equal(table.weight, WEIGHT)
    with pytest.raises(UserError, match="no embedding"):
        quantizable(model("Gather", ["weight", "given"], axis=1))


def test_a_file_cut_short_is_told(tmp_path):
    whole = model("Gemm", ["given", "weight"]).SerializeToString()
    (tmp_path / "short.onnx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"short\.onnx: no whole ONNX file") as told:
        read_graph(tmp_path / "short.onnx")
    assert "\n" not in str(told.value)
