"""Runs every benchmark, one after the other, and writes what they print into reports/benchmarks.md.

`python -m benchmarks [--data FOLDER] [--vocabulary FILE]`: GLUE in the official layout and BERT's vocab.txt, for the
benchmarks of the task track; without them these use the synthetic examples. The report says which benchmark failed, and
the exit code is then 1.
"""

import argparse
import datetime
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.timing import hardware
from tinybert.pipeline.files import write_file
from tinybert.pipeline.process import code_revision

REPORT = Path(__file__).resolve().parents[1] / "reports/benchmarks.md"
BENCHMARKS = (
    ("general_distill",),
    ("task_distill", "--task", "cola"),
    ("task_distill", "--task", "cola", "--precision", "float32"),
    ("task_distill", "--task", "mrpc"),
    ("task_distill", "--phase", "prediction", "--task", "cola"),
    ("task_distill", "--phase", "prediction", "--task", "mrpc"),
    ("augment",),
    ("corpus",),
    ("inference",),
)


class Outcome(NamedTuple):
    """A benchmark that has ended: what it printed, and what went wrong if it failed."""

    command: str
    lines: list[str]
    minutes: float
    error: str | None

    @property
    def name(self) -> str:
        """The command without its common beginning."""
        return self.command.removeprefix("python -m benchmarks.")

    @property
    def ratio(self) -> str:
        """What its last line says; a dash if it failed."""
        return "–" if self.error else self.lines[-1].removeprefix("ratio ")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs all; ends with 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", metavar="FOLDER", help="GLUE in the official layout (default: synthetic examples)")
    parser.add_argument("--vocabulary", metavar="FILE", help="vocab.txt of a BERT (default: learned from the texts)")
    given = parser.parse_args(arguments)
    outcomes = [run([f"benchmarks.{name}", *chosen, *texts(name, **vars(given))]) for name, *chosen in BENCHMARKS]
    write_file(REPORT, report(outcomes))
    print(f"Report: {REPORT}")
    sys.exit(int(any(outcome.error for outcome in outcomes)))


def texts(name: str, *, data: str | None, vocabulary: str | None) -> list[str]:
    """The options by which benchmark `name` gets its texts and vocabulary."""
    sentences, folder = data and str(Path(data, "CoLA/train.tsv")), vocabulary and str(Path(vocabulary).parent)
    options = {
        "task_distill": {"--data": data, "--vocabulary": vocabulary},
        "augment": {"--sentences": sentences, "--tokenizer": folder},
    }
    return [part for option, value in options.get(name, {}).items() if value for part in (option, value)]


def run(module: list[str]) -> Outcome:
    """Runs a module in a process of its own and shows what it prints."""
    command = shlex.join(["python", "-m", *module])
    print(f"\n{command}", flush=True)
    started = time.monotonic()
    lines = []
    process = subprocess.Popen([sys.executable, "-m", *module], stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line.rstrip())
    code = process.wait()
    minutes = (time.monotonic() - started) / 60
    if code == 0 and not (lines and lines[-1].startswith("ratio ")):
        return Outcome(command, lines, minutes, "its last line is no ratio")
    return Outcome(command, lines, minutes, f"ended with {code}" if code else None)


def report(outcomes: list[Outcome]) -> str:
    """The page: a table of the ratios, then what each printed."""
    rows = [f"| `{each.name}` | {each.ratio} | {each.minutes:.1f} |" for each in outcomes]
    sections = []
    for each in outcomes:
        failure = [f"FAILED: {each.error}"] if each.error else []
        sections.append("\n".join([f"## `{each.name}`", "", "```", *each.lines, *failure, "```"]))
    head = f"""# Benchmarks

{datetime.date.today().isoformat()}; {hardware()}. Written by `make bench` at
{code_revision()}. Commands begin with `python -m benchmarks.`. A ratio is the time of a
plain reference of the published procedure to ours, both measured in one run; that of `inference` is our FP32
BERT-base to our fastest INT8 TinyBERT4, that of `corpus` the peak memory on a large text to that on a small one.

| command | ratio | minutes |
|---|---|---|
"""
    return "\n\n".join([head + "\n".join(rows), *sections]) + "\n"


if __name__ == "__main__":
    main()
