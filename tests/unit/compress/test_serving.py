from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.inference import SIZES, write_variants
from tests.support.onnx_models import save_sum_model
from tinybert.compress import onnx_files
from tinybert.compress.onnx_files import OnnxClassifier, latencies, measure_latency_ms, random_feeds, session_of, sliced
from tinybert.config.schema import Latency
from tinybert.data.encoding import Encoded
from tinybert.pipeline.paths import VARIANTS


def examples(count: int) -> Encoded:
    """Rows of 3 to 12 tokens, label 1 in every other one."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(1, 50, 3 + row % 10) for row in range(count)]
    return Encoded(ids, [0 * each for each in ids], labels=np.arange(count) % 2)


def test_the_logits_are_those_of_the_rows_in_their_order(tmp_path):
    ids = np.array([[3, 4, 5], [6, 7, 8]])
    mask = np.array([[1, 1, 0], [1, 0, 0]])
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    assert OnnxClassifier(save_sum_model(tmp_path), 1).logits(feeds).tolist() == [[7.0], [6.0]]


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_slices_give_the_same_logits_for_any_number_of_threads(tmp_path, threads):
    feeds = random_feeds(9, 200, 50)  # of one row each
    assert len(sliced(feeds)) == 9
    expected = feeds["input_ids"].sum(1, keepdims=True)
    assert (OnnxClassifier(save_sum_model(tmp_path), threads).logits(feeds) == expected).all()


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    """A folder of a small student's ONNX variants."""
    folder = tmp_path_factory.mktemp("small") / "student"
    write_variants(SIZES["small"].student, SIZES["small"], folder)
    return folder


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_berts_logits_are_the_same_for_any_number_of_threads(student, variant):
    path, feeds = student / f"{variant}.onnx", random_feeds(11, 60, 50)
    feeds["attention_mask"][::2, 40:] = 0
    expected = OnnxClassifier(path, 1).logits(feeds)
    assert np.ptp(expected) > 0
    for threads in (2, 3, 16):
        assert (OnnxClassifier(path, threads).logits(feeds) == expected).all()


@pytest.mark.parametrize(
    ("rows", "length", "slices"),
    [
        (1, 128, [1]),
        (1, 256, [1]),
        (3, 600, [1, 1, 1]),  # no row is cut
        (2, 4, [1, 1]),
        (32, 12, [16, 16]),
        (32, 128, [2] * 16),
        (33, 32, [6, 6, 6, 5, 5, 5]),  # five slices of eight rows at most: six
        (5, 100, [2, 1, 1, 1]),
        (17, 120, [2] * 7 + [1] * 3),
    ],
)
def test_slices_are_even_in_number_and_hold_256_tokens_at_most(rows, length, slices):
    feeds = random_feeds(rows, length, 50)
    found = sliced(feeds)
    assert [len(each["input_ids"]) for each in found] == slices
    for name, values in feeds.items():
        assert (np.concatenate([each[name] for each in found]) == values).all()


def test_few_slices_share_all_threads_and_many_get_one_each(tmp_path):
    model = OnnxClassifier(save_sum_model(tmp_path), 3)
    for feeds, threads, sessions in ((random_feeds(1, 8, 9), 3, 1), (random_feeds(32, 128, 9), 1, 2)):
        model.logits(feeds)  # one slice, then sixteen
        assert model._session(threads).get_session_options().intra_op_num_threads == threads
        assert model._session.cache_info().currsize == sessions  # the one above was there already
    assert model._pool._max_workers == 3


def test_logits_of_examples_are_in_their_order(tmp_path):
    found = OnnxClassifier(save_sum_model(tmp_path), 1).logits_of(examples(11), 4)
    assert found.tolist() == [[float(ids.sum())] for ids in examples(11).input_ids]


@pytest.mark.parametrize(
    ("capabilities", "entry"), [({"avx2": True}, "1"), ({"avx512_vnni": True}, None), ({"avx_vnni": True}, None)]
)
def test_exact_products_are_requested_only_without_vnni(tmp_path, monkeypatch, capabilities, entry):
    monkeypatch.setattr(onnx_files.torch.cpu, "get_capabilities", lambda: capabilities)
    options = session_of(str(save_sum_model(tmp_path))).get_session_options()
    if entry:
        assert options.get_session_config_entry("session.x64quantprecision") == entry
    else:
        with pytest.raises(RuntimeError):
            options.get_session_config_entry("session.x64quantprecision")


def test_random_feeds_are_full_rows_of_known_tokens():
    feeds = random_feeds(2, 64, 9)
    assert set(feeds["input_ids"].ravel()) == set(range(9))
    assert feeds["attention_mask"].shape == (2, 64) and feeds["attention_mask"].all()
    assert not feeds["token_type_ids"].any()
    assert (random_feeds(2, 64, 9)["input_ids"] == feeds["input_ids"]).all()


def test_latency_counts_each_batch_once_and_no_warm_up(monkeypatch):
    fed = []
    clock = iter([0.0, 9.0] * 2 + [0.0, 0.001, 0.0, 0.002, 0.0, 0.003, 0.0, 0.004, 0.0, 0.005])
    monkeypatch.setattr(onnx_files.time, "perf_counter", lambda: next(clock))
    batches = [random_feeds(1, length, 9) for length in (1, 2, 3, 4, 5)]
    found = measure_latency_ms(SimpleNamespace(logits=fed.append), batches, warmup_runs=2)
    # of 1, 2, 3, 4, 5 ms: the median is 3, a tenth of the way 1.4, nine tenths 4.6
    assert found == pytest.approx({"median": 3.0, "p10": 1.4, "p90": 4.6})
    assert [feeds["input_ids"].shape[1] for feeds in fed] == [1, 1, 1, 2, 3, 4, 5]


@pytest.fixture
def models(tmp_path):
    """The same file under two names."""
    return dict.fromkeys(("fp32", "int8-qdq"), save_sum_model(tmp_path))


def test_latencies_of_full_rows_and_of_dev_rows(models):
    settings = Latency(batch_sizes=[1, 4], length_tokens=16, dev_examples=8, warmup_runs=1, runs=2, threads=1)
    found = latencies(models, settings, examples(30), 50)
    assert (found["threads"], found["length_tokens"], found["dev_examples"]) == (1, 16, 8)
    for variant in models:
        assert set(found[variant]) == {"batch_1", "batch_4", "dev_batch_1", "dev_batch_4"}
        for times in found[variant].values():
            assert 0 < times["p10"] <= times["median"] <= times["p90"]


def test_fewer_dev_rows_than_asked_for_are_all_taken(models):
    settings = Latency(batch_sizes=[2], length_tokens=16, dev_examples=100, warmup_runs=0, runs=1, threads=1)
    assert latencies(models, settings, examples(6), 50)["dev_examples"] == 6
