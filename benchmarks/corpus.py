"""Peak memory and speed of filtering and tokenizing, on a small and on a large text.

`python -m benchmarks.corpus`: 100 MB and 1 GB of the synthetic articles (repeated, with numbered titles) in a
temporary folder, which needs three times the larger size; each step works on the entire text in a fresh process, with
the published terms and sequences of 128 tokens; the tokenizer has a thread for each usable CPU. Peak memory is
the maximum that the process holds resident (VmHWM). The last line is the ratio of the peaks, large to small. The
tokenizer step keeps the lengths of all sequences, so its memory grows with the corpus; 2 GiB are allowed.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import count, cycle
from multiprocessing import get_context
from pathlib import Path

from tinybert.config.schema import Filter, Tokenize
from tinybert.data.domain_filter import filter_file
from tinybert.data.sequences import write_sequences
from tinybert.data.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer
from tinybert.pipeline.files import write_jsonl
from tinybert.pipeline.process import peak_resident_mib
from tinybert.synthetic.articles import articles

TEXT = "text.jsonl"
MB = 10**6
LIMIT_MIB = 2048
DISTINCT_BYTES = 20 * MB
VOCABULARY_SIZE = 4000


FILTER = Filter(
    subjects={"history": ("history", "empire", "war", "ancient", "king", "queen"),
              "geography": ("geography", "river", "mountain", "capital", "population")},
    matching="whole_word", ignore_case=True, min_hits=1, min_hits_per_1000_words=0.0,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures both steps on both texts; ends with 1 if a peak is above 2 GiB."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--small-mb", type=int, default=100, help="size of the small text (default: %(default)s)")
    parser.add_argument("--large-mb", type=int, default=1000, help="size of the large text (default: %(default)s)")
    sizes_mb = parser.parse_args(arguments)
    print(f"{len(os.sched_getaffinity(0))} usable CPUs; peak memory includes the libraries", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = (article["text"] for article in articles(seed=0))
        save_tokenizer(train_tokenizer(texts, vocabulary_size=VOCABULARY_SIZE), folder)
        peaks = [measure_text(folder, size_mb) for size_mb in (sizes_mb.small_mb, sizes_mb.large_mb)]
    if max(peaks) > LIMIT_MIB:
        sys.exit(f"peak memory: {max(peaks):.0f} MiB; at most {LIMIT_MIB} MiB are allowed")
    print(f"ratio {peaks[1] / peaks[0]:.3f}")


def measure_text(folder: Path, size_mb: int) -> float:
    """Prints what each step takes on so much text; returns the higher peak in MiB."""
    write_jsonl(folder / TEXT, generated_text(size_mb * MB))
    measurements = []
    for name, step in STEPS.items():
        seconds, peak_mib = measure(step, folder)
        rate = size_mb / seconds
        print(f"{name:<10}{size_mb:>6} MB{seconds:>8.1f} s{rate:>8.1f} MB/s{peak_mib:>8.0f} MiB", flush=True)
        measurements.append(peak_mib)
    return max(measurements)


def generated_text(size_bytes: int) -> Iterator[dict[str, str]]:
    """Articles with texts of this size together; the first 20 MB of them are repeated under numbered titles."""
    endless = (article for seed in count() for article in articles(seed))
    distinct = list(up_to(min(size_bytes, DISTINCT_BYTES), endless))
    repeated = ({"title": f"{it['title']} {number}", "text": it["text"]} for number, it in enumerate(cycle(distinct)))
    return up_to(size_bytes, repeated)


def up_to(size_bytes: int, found: Iterable[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Yields articles until their texts reach this size."""
    for article in found:
        yield article
        size_bytes -= len(article["text"].encode())
        if size_bytes <= 0:
            return


def filter_text(folder: Path) -> None:
    """The step `filter`, with the published terms."""
    filter_file(folder / TEXT, folder / "kept.jsonl", FILTER)


def tokenize_text(folder: Path) -> None:
    """The step `tokenize`, on the entire text."""
    settings = Tokenize(sequence_tokens=128, packing="pack")
    write_sequences(folder / TEXT, load_tokenizer(folder), folder / "sequences", settings)


STEPS = {"filter": filter_text, "tokenize": tokenize_text}


def measure(step: Callable[[Path], None], folder: Path) -> tuple[float, float]:
    """Seconds and peak memory (MiB) of step(folder) in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure_here, step, folder).result()


def measure_here(step: Callable[[Path], None], folder: Path) -> tuple[float, float]:
    """The same in this process, with the peak of its entire life."""
    started = time.monotonic()
    step(folder)
    return time.monotonic() - started, peak_resident_mib()


if __name__ == "__main__":
    main()
