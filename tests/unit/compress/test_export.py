import warnings
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch

from tinybert.compress.onnx_files import OnnxClassifier, export_onnx, feeds_of, session_of
from tinybert.models.bert import BertConfig, SequenceClassifier
from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig
from tinybert.models.outputs import Batch
from tinybert.pipeline.errors import UserError

CONFIG = BertConfig(50, 16, 2, 4, 32, max_position_embeddings=40, initializer_range=0.3)


def classifier(labels: int = 3) -> SequenceClassifier:
    torch.manual_seed(0)
    return SequenceClassifier(CONFIG, tuple("abc"[:labels]))


def padded_batch(lengths: list[int], width: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), width)
    return Batch(
        input_ids=torch.randint(50, shape, generator=generator),
        mask=torch.arange(width) < torch.tensor(lengths)[:, None],
        token_type_ids=torch.randint(2, shape, generator=generator),
    )


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    model = classifier().eval()
    path = tmp_path_factory.mktemp("export") / "fp32.onnx"
    export_onnx(model, path)
    return model, path


def test_a_model_too_large_for_a_file_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("tinybert.compress.onnx_files.LARGEST_BYTES", 1000)
    with pytest.raises(UserError, match=r"^quantization\.models \(FOLDER\): too large for one ONNX file \(got 0\.\d"):
        export_onnx(classifier(), tmp_path / "fp32.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("lengths", "width"), [([1, 6, 9], 9), ([40], 40), ([3] * 11, 12), ([1], 1)])
def test_the_graph_equals_pytorch_on_any_shape(exported, lengths, width):
    model, path = exported
    batch = padded_batch(lengths, width)
    with torch.inference_mode():
        expected = model(batch).logits.numpy()
    found = OnnxClassifier(path, 1).logits(feeds_of(batch))
    assert found.dtype == np.float32
    assert np.ptp(expected) > 0.1  # logits that differ, or the comparison says nothing
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_what_stands_in_padding_changes_nothing(exported):
    _, path = exported
    served = OnnxClassifier(path, 1)
    short = padded_batch([5, 5], 5)
    feeds = feeds_of(short)
    rest = padded_batch([7, 7], 7, seed=3)
    padded = {
        "input_ids": np.concatenate([feeds["input_ids"], rest.input_ids.numpy()], axis=1),
        "attention_mask": np.concatenate([feeds["attention_mask"], np.zeros((2, 7), dtype=np.int64)], axis=1),
        "token_type_ids": np.concatenate([feeds["token_type_ids"], rest.token_type_ids.numpy()], axis=1),
    }
    np.testing.assert_allclose(served.logits(padded), served.logits(feeds), atol=1e-6)
    unmasked = padded | {"attention_mask": np.ones((2, 12), dtype=np.int64)}
    assert np.abs(served.logits(unmasked) - served.logits(feeds)).max() > 1e-3


def test_the_graph_does_no_work_that_the_logits_do_not_need(exported):
    graph = onnx.load(exported[1]).graph
    found = [node.op_type for node in graph.node]
    assert found.count("Attention") == 2  # no step of attention stands by itself
    assert not {"Softmax", "Where", "IsNaN", "Transpose"} & set(found)
    session = open_session_with_output(
        exported[1], "/model/bert/layer.1/output/LayerNorm_1/LayerNormalization_output_0"
    )
    (states,) = session.run(None, feeds_of(padded_batch([4, 9], 9)))
    assert states.shape == (2, 1, 16)  # of the last layer the [CLS] row alone


def open_session_with_output(path, name):
    model = onnx.load(path)
    del model.graph.output[:]
    model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return session_of(model.SerializeToString())


def test_names_types_and_free_sizes(exported):
    session = session_of(str(exported[1]))
    described = [(value.name, value.type, value.shape) for value in session.get_inputs() + session.get_outputs()]
    both = ["batch", "length"]
    assert described == [
        ("input_ids", "tensor(int64)", both),
        ("attention_mask", "tensor(int64)", both),
        ("token_type_ids", "tensor(int64)", both),
        ("logits", "tensor(float)", ["batch", 3]),
    ]
    onnx.checker.check_model(onnx.load(exported[1]), full_check=True)


def test_export_uses_evaluation_mode_and_leaves_the_model_alone(exported, tmp_path):
    model = classifier().train()
    export_onnx(model, tmp_path / "again.onnx")
    assert model.training
    assert (tmp_path / "again.onnx").read_bytes() == exported[1].read_bytes()


def test_a_regression_has_one_logit(tmp_path):
    export_onnx(classifier(labels=1), tmp_path / "score.onnx")
    assert OnnxClassifier(tmp_path / "score.onnx", 1).logits(feeds_of(padded_batch([2, 4], 4))).shape == (2, 1)


def test_rounding_of_large_outputs_is_no_difference(tmp_path, monkeypatch):
    model, right = classifier(labels=1), OnnxClassifier.logits
    with torch.no_grad():
        model.classifier.bias += 1000.0
    monkeypatch.setattr(OnnxClassifier, "logits", lambda self, feeds: right(self, feeds) + 5e-3)
    export_onnx(model, tmp_path / "score.onnx")
    monkeypatch.setattr(OnnxClassifier, "logits", lambda self, feeds: right(self, feeds) + 2e-2)
    with pytest.raises(RuntimeError, match=r"differs from PyTorch by 0\.02 in a logit"):
        export_onnx(model, tmp_path / "score.onnx")


def test_a_graph_that_differs_is_refused_and_leaves_no_file(tmp_path, monkeypatch):
    right = OnnxClassifier.logits
    monkeypatch.setattr(OnnxClassifier, "logits", lambda self, feeds: right(self, feeds) + 2e-4)
    with pytest.raises(RuntimeError, match=r"by 0\.0002 in a logit"):
        export_onnx(classifier(), tmp_path / "bad.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_differs_on_real_rows_alone_is_refused(tmp_path, monkeypatch):
    right = OnnxClassifier.logits
    off = lambda self, feeds: right(self, feeds) + 2e-4 * (len(feeds["input_ids"]) == 4)  # noqa: E731
    monkeypatch.setattr(OnnxClassifier, "logits", off)
    export_onnx(classifier(), tmp_path / "unseen.onnx", real_rows=[padded_batch([2, 3], 3)])
    with pytest.raises(RuntimeError, match="at batch 4, length 9"):
        export_onnx(classifier(), tmp_path / "bad.onnx", real_rows=[padded_batch([9, 2, 3, 4], 9)])


def test_nothing_is_printed(tmp_path, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export_onnx(classifier(), tmp_path / "quiet.onnx")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("pair", [False, True])
def test_a_bilstm_is_exported_too(tmp_path, pair):
    torch.manual_seed(0)
    model = BiLstmClassifier(BiLstmConfig(50, 8, 6, 1, 7), ("a", "b"), pair=pair).eval()
    export_onnx(model, tmp_path / "fp32.onnx")
    types = (torch.arange(9) > torch.tensor([2, 2, 8])[:, None]).long()  # the last row has no second text
    batch = replace(padded_batch([9, 6, 4], 9), token_type_ids=types)
    with torch.inference_mode():
        expected = model(batch).logits.numpy()
    np.testing.assert_allclose(OnnxClassifier(tmp_path / "fp32.onnx", 1).logits(feeds_of(batch)), expected, atol=1e-5)
