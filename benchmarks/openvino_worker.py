"""OpenVINO for `benchmarks.peers`; runs in the environment of peers.txt, without this project's packages.

`openvino_worker.py PIPE MODEL BATCHES THREADS`: quantizes an FP32 ONNX file with nncf on pickled calibration batches,
sends what it serves (name -> MB), then answers each (name, feeds) with the logits and the seconds they took.
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
# What the project leaves in float: products of two activations, and the classifier.
EXCLUDED_NODES = nncf.IgnoredScope(patterns=[".*ScaledDotProductAttention.*", ".*/classifier/.*"])
FLOAT = {"INFERENCE_PRECISION_HINT": "f32"}  # the default is bf16 on processors that have it


class Whole:
    """A batch in one call on all threads, OpenVINO's setting for low latency."""

    def __init__(self, core: openvino.Core, model: openvino.Model, threads: int) -> None:
        settings = FLOAT | {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
        self.model = core.compile_model(model, "CPU", settings)

    def logits(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        return self.model(feeds)[0]


class Sliced:
    """A batch in slices, on as many streams as there are threads (OnnxClassifier gives a lone slice all threads)."""

    def __init__(self, core: openvino.Core, model: openvino.Model, threads: int) -> None:
        settings = FLOAT | {"NUM_STREAMS": threads, "INFERENCE_NUM_THREADS": threads}
        self.queue = openvino.AsyncInferQueue(core.compile_model(model, "CPU", settings), 2 * threads)
        self.queue.set_callback(self._keep)
        self.found: dict[int, np.ndarray] = {}  # by the first row of the slice

    def _keep(self, request: openvino.InferRequest, start: int) -> None:
        self.found[start] = request.get_output_tensor(0).data.copy()

    def logits(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        self.found.clear()
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
    models, sizes = {"fp32": core.read_model(path)}, {"fp32": Path(path).stat().st_size / 1e6}
    calibration = pickle.loads(Path(batches).read_bytes())
    exact = nncf.AdvancedQuantizationParameters(overflow_fix=nncf.OverflowFix.ENABLE)
    settings = {"int8": {}, "int8-exact": {"ignored_scope": EXCLUDED_NODES, "advanced_parameters": exact}}
    with tempfile.TemporaryDirectory() as folder:
        for name, options in settings.items():
            int8 = nncf.quantize(
                core.read_model(path), nncf.Dataset(calibration), model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(calibration), **options,
            )  # fmt: skip
            openvino.save_model(int8, Path(folder) / f"{name}.xml")
            models[name] = core.read_model(Path(folder) / f"{name}.xml")
            sizes[name] = sum(file.stat().st_size for file in Path(folder).glob(f"{name}.*")) / 1e6
        ways = {"": Whole, "-sliced": Sliced}
        systems = {
            f"openvino-{name}{ending}": way(core, model, threads)
            for name, model in models.items()
            for ending, way in ways.items()
        }
    with Connection(pipe) as connection:
        connection.send({f"openvino-{name}{ending}": size for name, size in sizes.items() for ending in ways})
        while True:
            try:
                name, feeds = connection.recv()
            except EOFError:
                return
            started = time.perf_counter()
            logits = systems[name].logits(feeds)
            connection.send((logits, time.perf_counter() - started))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4]))
