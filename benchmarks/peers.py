"""Our ONNX files beside OpenVINO's, quantized by nncf: size, score and latency of one model in one run.

`python -m benchmarks.peers TASK MODEL`, after `dvc repro quantize@TASK-MODEL`. The first run installs peers.txt into
.venv-peers. Both sides calibrate on the same training rows and use the same threads; floats are float32. OpenVINO reads
our FP32 file and serves it in FP32, in INT8 by nncf's defaults, and in "int8-exact": attention and classifier in float
and products that cannot saturate, as in ours. Each OpenVINO model runs whole batches on all threads and, as "-sliced",
slices of 256 tokens on one thread each. Ours are sliced too, but a single row takes all threads.

The systems take turns on batches of 32 x 128 random tokens and on single dev rows without padding. Each system runs
each batch twice and only the second run counts, because the previous system has filled the processor's cache. The last
line is the median time of OpenVINO's fastest file, FP32 included, over that of our fastest INT8 file, on single rows.
"""

import argparse
import multiprocessing
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
from tabulate import tabulate

from benchmarks.timing import processor
from tinybert.compress.onnx_files import Feeds, OnnxClassifier, feeds_of, random_feeds
from tinybert.compress.quantization import calibration_feeds, draw_rows
from tinybert.config.load import load_params
from tinybert.config.tasks import read_task
from tinybert.data.encoding import Encoded, encode, read_rows
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.batches import PREDICTION_BATCH_SIZE, decide
from tinybert.evaluate.scoring import Predictions, variant_scores
from tinybert.models.model_folders import load_task_model
from tinybert.pipeline import paths

HERE = Path(__file__).resolve().parent
ENVIRONMENT = HERE.parent / ".venv-peers"
PEER = "openvino"
BATCH_ROWS, LENGTH_TOKENS, ROW = 32, 128, "single row"


@dataclass
class ServedFile:
    """An ONNX file served by one library.

    Attributes:
        predict: Maps a batch to its logits, (rows, classes) float32, and the seconds they took.
        file_mb: Size of the file in MB.
        times_ms: Workload -> time of each batch in ms.
    """

    predict: Callable[[Feeds], tuple[np.ndarray, float]]
    file_mb: float
    times_ms: dict[str, list[float]] = field(default_factory=dict)

    def logits_of(self, examples: Encoded) -> np.ndarray:
        """Logits of all examples in their order: (rows, classes) float32."""
        found = [(rows, self.predict(feeds_of(batch))[0]) for rows, batch in examples.batches(PREDICTION_BATCH_SIZE)]
        rows, logits = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return logits[np.argsort(rows)]


def timed(served: OnnxClassifier, feeds: Feeds) -> tuple[np.ndarray, float]:
    """Logits of one batch by ONNX Runtime, and the seconds they took."""
    started = time.perf_counter()
    logits = served.logits(feeds)
    return logits, time.perf_counter() - started


def peers_python() -> Path:
    """The interpreter of the peers' environment, which is made if it is missing."""
    python = ENVIRONMENT / "bin/python"
    if not (ENVIRONMENT / "bin/pip").is_file():
        print(f"Installing {HERE / 'peers.txt'} into {ENVIRONMENT}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", HERE / "peers.txt"], check=True)
    return python


@contextmanager
def openvino_systems(fp32: Path, calibration: Sequence[Feeds], threads: int) -> Iterator[dict[str, ServedFile]]:
    """Runs OpenVINO in its own process; yields its systems by name."""
    ours, theirs = multiprocessing.Pipe()

    def ask(*order: Any) -> Any:
        try:
            if order:
                ours.send(order)
            return ours.recv()
        except (EOFError, OSError):
            sys.exit("OpenVINO's process ended too early; see above")

    with tempfile.TemporaryDirectory() as folder:
        batches = Path(folder, "batches")
        batches.write_bytes(pickle.dumps(list(calibration)))
        command = [peers_python(), HERE / "openvino_worker.py", str(theirs.fileno()), fp32, batches, str(threads)]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.DEVNULL)
        theirs.close()
        try:
            sizes: dict[str, float] = ask()
            yield {name: ServedFile(partial(ask, name), size_mb) for name, size_mb in sizes.items()}
        finally:
            ours.close()
            process.wait()


def take_turns(systems: dict[str, ServedFile], workload: str, batches: Sequence[Feeds]) -> None:
    """Times each batch on all systems; every other batch goes through them backwards."""
    for number, feeds in enumerate(batches):
        for system in list(systems.values())[:: -1 if number % 2 else 1]:
            system.predict(feeds)
            system.times_ms.setdefault(workload, []).append(1000 * system.predict(feeds)[1])


def fastest(systems: dict[str, ServedFile], workload: str, *, is_peer: bool, variants: str = "") -> float:
    """The smallest median time in ms among the systems of one side whose names contain `variants`."""
    side = (system for name, system in systems.items() if name.startswith(PEER) == is_peer and variants in name)
    return min(median(system.times_ms[workload]) for system in side)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    parser.add_argument("model", help="of quantization.models")
    parser.add_argument("--rounds", type=int, default=15, help="batches of 32 rows")
    parser.add_argument("--rows", type=int, default=100, help="single rows, spread over the lengths of dev")
    options = parser.parse_args()
    params, task = load_params(), read_task(options.task)
    settings, limit = params.quantization, params.tasks[task.name].max_length_tokens
    threads, source = settings.latency.threads, paths.task_model(task.name, params.seed, options.model)
    tokenizer = load_tokenizer(source)
    train, dev = (read_rows(task, split) for split in ("train", task.dev_splits[0]))
    drawn = draw_rows(train, settings.calibration.examples, seed=params.seed)
    calibration, dev = (encode(rows, task, tokenizer, max_length_tokens=limit) for rows in (drawn, dev))
    # One row at a time: nncf would see the padding of a batch, which our calibration leaves out.
    batches = calibration_feeds(calibration, batch_size=1)
    longest_first = np.argsort(-dev.lengths, kind="stable")
    chosen = longest_first[np.linspace(0, len(dev) - 1, min(options.rows, len(dev))).astype(int)]
    tokens = min(LENGTH_TOKENS, load_task_model(source).config.max_position_embeddings)
    workloads = {
        f"{BATCH_ROWS} x {tokens}": [random_feeds(BATCH_ROWS, tokens, tokenizer.get_vocab_size())] * options.rounds,
        ROW: [feeds_of(dev.batch([row])) for row in chosen],
    }
    files = {variant: paths.onnx(task.name, options.model) / f"{variant}.onnx" for variant in paths.VARIANTS}
    systems = {
        variant: ServedFile(partial(timed, OnnxClassifier(file, threads)), file.stat().st_size / 1e6)
        for variant, file in files.items()
    }
    with openvino_systems(files["fp32"], batches, threads) as others:
        systems |= others
        predictions = {
            name: Predictions(task.headline, dev.gold, decide(system.logits_of(dev), task))
            for name, system in systems.items()
        }
        for workload, feeds in workloads.items():
            take_turns(systems, workload, feeds)
    packages = (HERE / "peers.txt").read_text().split("\n")[1:-1]
    print(f"{processor()}; onnxruntime {onnxruntime.__version__}, {', '.join(packages)}; {threads} threads each")
    print(f"{task.name} {options.model}, {len(dev)} dev rows")
    print(table(systems, variant_scores(predictions, task, seed=params.seed), task.headline))
    for workload in workloads:
        ours = fastest(systems, workload, is_peer=False, variants="int8")
        theirs, int8 = (fastest(systems, workload, is_peer=True, variants=variants) for variants in ("", "int8"))
        print(f"{workload}: OpenVINO's fastest {theirs:.2f} ms, its fastest INT8 {int8:.2f} ms, our INT8 {ours:.2f} ms")
    print(f"ratio {fastest(systems, ROW, is_peer=True) / fastest(systems, ROW, is_peer=False, variants='int8'):.2f}")


def table(systems: dict[str, ServedFile], scores: dict[str, dict], metric: str) -> str:
    """A line for each system."""
    rows = []
    for name, system in systems.items():
        found, ends = scores[name], scores[name]["difference_95"]
        same = "" if found["agreement"] is None else f"{found['agreement']:.1%}"
        difference = f"{ends['low']:+.4f} to {ends['high']:+.4f}"
        times = [f"{median(measured):.2f}" for measured in system.times_ms.values()]
        rows.append((name, f"{system.file_mb:.2f}", f"{found['dev'][metric]:.4f}", difference, same, *times))
    workloads = [f"ms, {workload}" for workload in systems["fp32"].times_ms]
    headings = ("system", "MB", metric, "minus FP32, 95 %", "as FP32", *workloads)
    return tabulate(rows, headings, colalign=("left", *["right"] * (len(headings) - 1)), disable_numparse=True)


if __name__ == "__main__":
    main()
