from types import SimpleNamespace

import pytest

from tests.support.onnx_models import save_sum_model
from tinybert.compress import latency
from tinybert.compress.latency import measure_latency_ms, random_feeds
from tinybert.compress.serving import OnnxClassifier


def test_random_feeds_are_full_rows_of_known_tokens():
    feeds = random_feeds(2, 64, 9)
    assert set(feeds["input_ids"].ravel()) == set(range(9))
    assert feeds["attention_mask"].shape == (2, 64) and feeds["attention_mask"].all()
    assert not feeds["token_type_ids"].any()
    assert (random_feeds(2, 64, 9)["input_ids"] == feeds["input_ids"]).all()


def test_latency_is_of_each_batch_once_and_leaves_out_warm_up(monkeypatch):
    fed = []
    clock = iter([0.0, 9.0] * 2 + [0.0, 0.001, 0.0, 0.002, 0.0, 0.003, 0.0, 0.004, 0.0, 0.005])
    monkeypatch.setattr(latency.time, "perf_counter", lambda: next(clock))
    batches = [random_feeds(1, length, 9) for length in (1, 2, 3, 4, 5)]
    found = measure_latency_ms(SimpleNamespace(logits=fed.append), batches, warmup_runs=2)
    # of 1, 2, 3, 4, 5 ms: the median is 3, a tenth of the way 1.4, nine tenths 4.6
    assert found == pytest.approx({"median": 3.0, "p10": 1.4, "p90": 4.6})
    assert [feeds["input_ids"].shape[1] for feeds in fed] == [1, 1, 1, 2, 3, 4, 5]


def test_latency_of_a_real_model_is_positive(tmp_path):
    model = OnnxClassifier(save_sum_model(tmp_path), 1)
    found = measure_latency_ms(model, [random_feeds(1, 8, 9)] * 3, warmup_runs=1)
    assert 0 < found["p10"] <= found["median"] <= found["p90"]
