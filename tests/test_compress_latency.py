import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tinybert.compress import latency
from tinybert.compress.latency import measure_latency_ms, open_session, predict, random_feeds
from tinybert.errors import UserError


@pytest.fixture
def sum_model(tmp_path):
    """A graph with a classifier's inputs; logits (batch, 1): the sum of the real tokens' ids."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in names]
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1])
    nodes = [
        helper.make_node("Mul", ["input_ids", "attention_mask"], ["real"]),
        helper.make_node("Add", ["real", "token_type_ids"], ["all"]),
        helper.make_node("Cast", ["all"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["floats", "axes"], ["logits"]),
    ]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "sum", inputs, [output], [axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "sum.onnx")
    return tmp_path / "sum.onnx"


def test_predict_returns_the_logits(sum_model):
    ids = np.array([[3, 4, 5], [6, 7, 8]])
    mask = np.array([[1, 1, 0], [1, 0, 0]])
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    assert predict(open_session(sum_model, 1), feeds).tolist() == [[7.0], [6.0]]


def test_random_feeds_are_full_rows_of_known_tokens():
    feeds = random_feeds(2, 64, 9)
    assert set(feeds["input_ids"].ravel()) == set(range(9))
    assert feeds["attention_mask"].shape == (2, 64) and feeds["attention_mask"].all()
    assert not feeds["token_type_ids"].any()
    assert (random_feeds(2, 64, 9)["input_ids"] == feeds["input_ids"]).all()


def test_latency_is_of_each_batch_once_and_leaves_out_warm_up(sum_model, monkeypatch):
    fed = []
    clock = iter([0.0, 9.0] * 2 + [0.0, 0.001, 0.0, 0.002, 0.0, 0.003, 0.0, 0.004, 0.0, 0.005])
    monkeypatch.setattr(latency, "predict", lambda session, feeds: fed.append(feeds))
    monkeypatch.setattr(latency.time, "perf_counter", lambda: next(clock))
    batches = [random_feeds(1, length, 9) for length in (1, 2, 3, 4, 5)]
    found = measure_latency_ms(open_session(sum_model, 1), batches, warmup_runs=2)
    # of 1, 2, 3, 4, 5 ms: the median is 3, a tenth of the way 1.4, nine tenths 4.6
    assert found == pytest.approx({"median": 3.0, "p10": 1.4, "p90": 4.6})
    assert [feeds["input_ids"].shape[1] for feeds in fed] == [1, 1, 1, 2, 3, 4, 5]


def test_latency_of_a_real_session_is_positive(sum_model):
    found = measure_latency_ms(open_session(sum_model, 1), [random_feeds(1, 8, 9)] * 3, warmup_runs=1)
    assert 0 < found["p10"] <= found["median"] <= found["p90"]


def test_threads_are_those_asked_for(sum_model):
    assert open_session(sum_model, 2).get_session_options().intra_op_num_threads == 2


def test_a_missing_model_is_told(tmp_path):
    with pytest.raises(UserError, match=r"none\.onnx: absent"):
        open_session(tmp_path / "none.onnx", 1)


@pytest.mark.parametrize(
    ("capabilities", "entry"), [({"avx2": True}, "1"), ({"avx512_vnni": True}, None), ({"avx_vnni": True}, None)]
)
def test_exact_products_are_asked_for_only_where_the_cpu_has_no_int8_dot_products(
    sum_model, monkeypatch, capabilities, entry
):
    monkeypatch.setattr(latency.torch.cpu, "get_capabilities", lambda: capabilities)
    options = open_session(sum_model, 1).get_session_options()
    if entry:
        assert options.get_session_config_entry("session.x64quantprecision") == entry
    else:
        with pytest.raises(RuntimeError):
            options.get_session_config_entry("session.x64quantprecision")
