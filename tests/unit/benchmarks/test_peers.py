"""The benchmark against OpenVINO: the turns, which times count, what is printed."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.peers import PEERS, System, fastest_int8, openvino, table, take_turns
from tinybert.compress import onnx_files
from tinybert.data.encoding import Encoded
from tinybert.pipeline.paths import VARIANTS


def system(times_ms: list[float]) -> System:
    return System(None, 1.0, {"single row": times_ms})


def test_the_second_of_two_runs_counts_and_every_other_batch_goes_backwards():
    order, seconds = [], iter(range(8))

    def recorder(name):
        return System(lambda feeds: (order.append(name + feeds), next(seconds)), 1.0)

    systems = {"a": recorder("a"), "b": recorder("b")}
    take_turns(systems, "row", ["1", "2"])
    assert order == ["a1", "a1", "b1", "b1", "b2", "b2", "a2", "a2"]
    assert systems["a"].times_ms == {"row": [1000, 7000]} and systems["b"].times_ms == {"row": [3000, 5000]}


def test_logits_come_in_the_order_of_the_rows():
    rows = [np.arange(1, 2 + length) for length in (3, 70, 1)]
    examples = Encoded(rows, [np.zeros_like(ids) for ids in rows], None)
    count = System(lambda feeds: (feeds["attention_mask"].sum(1, keepdims=True), 0.0), 1.0)
    assert count.logits_of(examples).tolist() == [[4], [71], [2]]


def test_the_fastest_int8_file_of_each_side_by_its_median():
    systems = {name: system([float(place), 9.0, float(place)]) for place, name in enumerate((*VARIANTS, *PEERS))}
    assert fastest_int8(systems, "single row", is_peer=False) == 1.0  # fp32 has 0
    assert fastest_int8(systems, "single row", is_peer=True) == 5.0  # openvino-fp32 has 4


def test_the_table_has_score_agreement_and_times():
    scores = {"dev": {"accuracy": 0.75}, "agreement": 0.5, "difference_95": {"low": -0.25, "high": 0.0}}
    printed = table({"fp32": system([2.0, 3.0, 7.0])}, {"fp32": scores}, "accuracy")
    assert printed.splitlines()[-1].split("  ")[0] == "fp32"
    for part in ("1.00", "0.7500", "-0.2500 to +0.0000", "50.0%", "3.00", "ms, single row"):
        assert part in printed


def test_a_peer_that_ends_early_ends_the_benchmark(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("benchmarks.peers.write_portable", lambda source, path: path.write_bytes(b""))
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no OpenVINO here >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr("benchmarks.peers.peers_python", lambda: broken)
    with pytest.raises(SystemExit, match="ended too early"), openvino(tmp_path / "fp32.onnx", [], 1):
        pass
    assert "no OpenVINO here" in capfd.readouterr().err


def test_slices_are_as_long_as_ours(monkeypatch):
    monkeypatch.setitem(sys.modules, "nncf", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(Core=None, Model=None, InferRequest=None))
    from benchmarks.openvino_worker import SLICE_TOKENS

    assert SLICE_TOKENS == onnx_files.SLICE_TOKENS
