"""OpenVINO for `benchmarks.peers`; runs in the environment of peers.txt, without this project's packages.

`openvino_worker.py PIPE MODEL BATCHES THREADS`: quantizes an FP32 ONNX file with nncf on pickled calibration batches,
sends the size of the INT8 files, then answers each (system, feeds) with the logits and the seconds they took.
"""

import logging
import pickle
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import nncf
import numpy as np
import openvino

SLICE_TOKENS = 256  # that of tinybert.compress.onnx_files


class Whole:
    """A batch in one call on all threads, OpenVINO's setting for low latency."""

    def __init__(self, core: openvino.Core, model: openvino.Model, threads: int) -> None:
        self.model = core.compile_model(model, "CPU", {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads})

    def logits(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        return self.model(feeds)[0]


class Sliced:
    """Slices of a batch on as many streams as there are threads, as ours runs it."""

    def __init__(self, core: openvino.Core, model: openvino.Model, threads: int) -> None:
        model = core.compile_model(model, "CPU", {"NUM_STREAMS": threads, "INFERENCE_NUM_THREADS": threads})
        self.queue = openvino.AsyncInferQueue(model, 2 * threads)
        self.queue.set_callback(self._keep)
        self.found: dict[int, np.ndarray] = {}  # by the first row of the slice

    def _keep(self, request: openvino.InferRequest, start: int) -> None:
        self.found[start] = request.get_output_tensor(0).data.copy()

    def logits(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        rows, length = feeds["input_ids"].shape
        step = max(1, SLICE_TOKENS // length)
        starts = range(0, rows, step)
        for start in starts:
            self.queue.start_async({name: values[start : start + step] for name, values in feeds.items()}, start)
        self.queue.wait_all()
        return np.concatenate([self.found[start] for start in starts])


def main(pipe: int, path: str, batches: str, threads: int) -> None:
    nncf.set_log_level(logging.ERROR)
    core = openvino.Core()
    fp32 = core.read_model(path)
    calibration = pickle.loads(Path(batches).read_bytes())
    int8 = nncf.quantize(
        fp32, nncf.Dataset(calibration), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(calibration)
    )
    with tempfile.TemporaryDirectory() as folder:
        openvino.save_model(int8, Path(folder) / "model.xml")
        size_mb = sum(file.stat().st_size for file in Path(folder).iterdir()) / 1e6
    systems = {
        "openvino-fp32": Whole(core, fp32, threads),
        "openvino-int8": Whole(core, int8, threads),
        "openvino-int8-sliced": Sliced(core, int8, threads),
    }
    with Connection(pipe) as connection:
        connection.send(size_mb)
        while (order := connection.recv()) is not None:
            name, feeds = order
            started = time.perf_counter()
            logits = systems[name].logits(feeds)
            connection.send((logits, time.perf_counter() - started))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4]))
