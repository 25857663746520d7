import numpy as np
import onnx
import pytest

from benchmarks.inference import SIZES, write_forms
from tests.support.onnx_models import save_sum_model
from tinybert.compress import serving
from tinybert.compress.latency import random_feeds
from tinybert.compress.serving import OnnxClassifier, session_of, sliced
from tinybert.pipeline.errors import UserError


def test_the_logits_are_those_of_the_rows_in_their_order(tmp_path):
    ids = np.array([[3, 4, 5], [6, 7, 8]])
    mask = np.array([[1, 1, 0], [1, 0, 0]])
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    assert OnnxClassifier(save_sum_model(tmp_path), 1).logits(feeds).tolist() == [[7.0], [6.0]]


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_slices_side_by_side_or_one_after_the_other_give_the_same_logits(tmp_path, threads):
    feeds = random_feeds(9, 200, 50)  # of one row each
    assert len(sliced(feeds)) == 9
    expected = feeds["input_ids"].sum(1, keepdims=True)
    assert (OnnxClassifier(save_sum_model(tmp_path), threads).logits(feeds) == expected).all()


@pytest.mark.parametrize("form", ["fp32", "dynamic", "qdq", "qoperator"])
def test_a_berts_logits_are_the_same_for_any_number_of_threads(tmp_path, form):
    write_forms(SIZES["small"].student, SIZES["small"], tmp_path / "student")
    path, feeds = tmp_path / "student" / f"{form}.onnx", random_feeds(11, 60, 50)
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


def test_threads_are_those_asked_for(tmp_path, monkeypatch):
    made = []
    make = OnnxClassifier._session
    monkeypatch.setattr(OnnxClassifier, "_session", lambda self, threads: made.append(make(self, threads)) or made[-1])
    model = OnnxClassifier(save_sum_model(tmp_path), 3)
    model.logits(random_feeds(1, 8, 9))  # one slice: all threads on it
    model.logits(random_feeds(32, 128, 9))  # sixteen: three at a time
    assert [session.get_session_options().intra_op_num_threads for session in made] == [3, 1]
    assert model._pool._max_workers == 3


def test_a_missing_model_is_told(tmp_path):
    with pytest.raises(UserError, match=r"none\.onnx: absent"):
        OnnxClassifier(tmp_path / "none.onnx", 1)


@pytest.mark.parametrize(
    ("capabilities", "entry"), [({"avx2": True}, "1"), ({"avx512_vnni": True}, None), ({"avx_vnni": True}, None)]
)
def test_exact_products_are_asked_for_only_where_the_cpu_has_no_int8_dot_products(
    tmp_path, monkeypatch, capabilities, entry
):
    monkeypatch.setattr(serving.torch.cpu, "get_capabilities", lambda: capabilities)
    options = session_of(onnx.load(save_sum_model(tmp_path))).get_session_options()
    if entry:
        assert options.get_session_config_entry("session.x64quantprecision") == entry
    else:
        with pytest.raises(RuntimeError):
            options.get_session_config_entry("session.x64quantprecision")
