"""The benchmark against OpenVINO: the turns, which times count, what is printed."""

import importlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.peers import ServedFile, fastest, openvino_systems, table, take_turns
from tinybert.compress import onnx_files
from tinybert.data.encoding import Encoded


def system(times_ms: list[float]) -> ServedFile:
    return ServedFile(None, 1.0, {"single row": times_ms})


def test_the_second_run_counts_and_turns_alternate():
    order, seconds = [], iter(range(8))

    def recorder(name):
        return ServedFile(lambda feeds: (order.append(name + feeds), next(seconds)), 1.0)

    systems = {"a": recorder("a"), "b": recorder("b")}
    take_turns(systems, "row", ["1", "2"])
    assert order == ["a1", "a1", "b1", "b1", "b2", "b2", "a2", "a2"]
    assert systems["a"].times_ms == {"row": [1000, 7000]} and systems["b"].times_ms == {"row": [3000, 5000]}


def test_logits_come_in_the_order_of_the_rows():
    rows = [np.arange(1, 2 + length) for length in (3, 70, 1)]
    examples = Encoded(rows, [np.zeros_like(ids) for ids in rows], None)
    count = ServedFile(lambda feeds: (feeds["attention_mask"].sum(1, keepdims=True), 0.0), 1.0)
    assert count.logits_of(examples).tolist() == [[4], [71], [2]]


def test_the_fastest_file_of_a_side_by_its_median():
    times = {"fp32": 1.0, "int8-qdq": 2.0, "int8-dynamic": 3.0, "openvino-fp32": 4.0, "openvino-int8": 5.0}
    systems = {name: system([9.0, ms, 0.0]) for name, ms in times.items()}
    assert fastest(systems, "single row", is_peer=False, variants="int8") == 2.0
    assert fastest(systems, "single row", is_peer=True) == 4.0
    assert fastest(systems, "single row", is_peer=True, variants="int8") == 5.0


def test_the_table_has_score_agreement_and_times():
    scores = {"dev": {"accuracy": 0.75}, "agreement": 0.5, "difference_95": {"low": -0.25, "high": 0.0}}
    printed = table({"fp32": system([2.0, 3.0, 7.0])}, {"fp32": scores}, "accuracy")
    assert printed.splitlines()[-1].split("  ")[0] == "fp32"
    for part in ("1.00", "0.7500", "-0.2500 to +0.0000", "50.0%", "3.00", "ms, single row"):
        assert part in printed


WORKER = """
import pickle, sys
from multiprocessing.connection import Connection
pipe, model, batches, threads = sys.argv[2:]
with Connection(int(pipe)) as connection:
    connection.send({"openvino-int8": float(len(pickle.load(open(batches, "rb"))))})
    while True:
        name, feeds = connection.recv()
        if feeds == "crash":
            sys.exit(3)
        connection.send((name + model[-4:] + threads + feeds, 0.5))
"""


@pytest.fixture
def peer(tmp_path, monkeypatch):
    """A function that starts the systems of a Python script instead of OpenVINO's worker."""

    def start(script: str):
        (tmp_path / "worker.py").write_text(script)
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/worker.py "$@"\n')
        python.chmod(0o755)
        monkeypatch.setattr("benchmarks.peers.peers_python", lambda: python)
        return openvino_systems(tmp_path / "fp32.onnx", ["a", "b"], 2)

    return start


def test_a_peer_answers_by_name_and_ends_with_the_block(peer):
    with peer(WORKER) as systems:
        assert {name: system.file_mb for name, system in systems.items()} == {"openvino-int8": 2.0}
        assert systems["openvino-int8"].predict("row") == ("openvino-int8onnx2row", 0.5)


@pytest.mark.parametrize("script", ["import sys; sys.exit('no OpenVINO here')", WORKER])
def test_a_peer_that_ends_early_ends_the_benchmark(peer, script):
    with pytest.raises(SystemExit, match="ended too early"), peer(script) as systems:
        systems["openvino-int8"].predict("crash")


@pytest.fixture
def worker(monkeypatch):
    """The worker's module, without OpenVINO."""
    absent = {"Core": None, "Model": None, "InferRequest": None, "AsyncInferQueue": Queue}
    monkeypatch.setitem(sys.modules, "nncf", SimpleNamespace(IgnoredScope=lambda patterns: patterns))
    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(**absent))
    sys.modules.pop("benchmarks.openvino_worker", None)
    yield importlib.import_module("benchmarks.openvino_worker")
    sys.modules.pop("benchmarks.openvino_worker")


class Queue:
    """Answers slices with the sum of each row, the last slice first."""

    def __init__(self, model, requests):
        self.waiting = []

    def set_callback(self, keep):
        self.keep = keep

    def start_async(self, feeds, start):
        self.waiting.append((start, feeds["input_ids"].sum(axis=1, keepdims=True)))

    def wait_all(self):
        while self.waiting:
            start, found = self.waiting.pop()
            self.keep(SimpleNamespace(get_output_tensor=lambda number, data=found: SimpleNamespace(data=data)), start)


def test_slices_come_back_in_order(worker):
    assert worker.SLICE_TOKENS == onnx_files.SLICE_TOKENS
    sliced = worker.Sliced(SimpleNamespace(compile_model=lambda *settings: None), None, 2)
    ids = np.arange(5 * 128).reshape(5, 128)
    assert sliced.logits({"input_ids": ids}).tolist() == ids.sum(axis=1, keepdims=True).tolist()
    assert sorted(sliced.found) == [0, 2, 4]
