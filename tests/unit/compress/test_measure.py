import numpy as np
import pytest
import torch

from tinybert.compress.export import export_onnx
from tinybert.compress.measure import answers_of_forms, latencies, scores_of_forms
from tinybert.compress.variants import FORMS
from tinybert.config.schema import Latency
from tinybert.data.encoding import Encoded
from tinybert.data.tasks import TASKS
from tinybert.models.bert import BertConfig, SequenceClassifier
from tinybert.pipeline.files import write_json


def examples(count: int) -> Encoded:
    """Rows of 3 to 12 tokens, label 1 in every other one."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(1, 50, 3 + row % 10) for row in range(count)]
    return Encoded(ids, [0 * each for each in ids], labels=np.arange(count) % 2)


@pytest.fixture
def folder(tmp_path):
    """Four forms; the last is another model."""
    for form, seed in zip(FORMS, (0, 0, 0, 1), strict=True):
        torch.manual_seed(seed)
        model = SequenceClassifier(BertConfig(50, 16, 2, 4, 32, initializer_range=0.3), ("no", "yes"))
        export_onnx(model, tmp_path / f"{form}.onnx")
    write_json(tmp_path / "config.json", {"vocab_size": 50})
    return tmp_path


def test_forms_are_compared_with_fp32_on_the_same_rows(folder):
    answers = answers_of_forms(folder, examples(60), TASKS["sst2"], threads=1)
    found = scores_of_forms(folder, answers, TASKS["sst2"], seed=0)
    assert list(found) == list(FORMS)
    assert found["qdq"]["agreement"] == 1.0 > found["qoperator"]["agreement"]
    assert found["qdq"]["dev"] == found["fp32"]["dev"]
    assert found["qdq"]["difference_95"] == {"low": 0.0, "high": 0.0}
    assert found["qoperator"]["difference_95"]["low"] < found["qoperator"]["difference_95"]["high"]


def test_latencies_of_full_rows_and_of_dev_rows(folder):
    settings = Latency(batch_sizes=[1, 4], length_tokens=16, dev_examples=8, warmup_runs=1, runs=2, threads=1)
    found = latencies(folder, settings, examples(30))
    assert (found["threads"], found["length_tokens"], found["dev_examples"]) == (1, 16, 8)
    for form in FORMS:
        assert set(found[form]) == {"batch_1", "batch_4", "dev_batch_1", "dev_batch_4"}
        for times in found[form].values():
            assert 0 < times["p10"] <= times["median"] <= times["p90"]


def test_fewer_dev_rows_than_asked_for_are_all_taken(folder):
    settings = Latency(batch_sizes=[2], length_tokens=16, dev_examples=100, warmup_runs=0, runs=1, threads=1)
    assert latencies(folder, settings, examples(6))["dev_examples"] == 6
