"""A stage instance without DVC and MLflow, and its project, for tests that call a stage script's main."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from tokenizers import Tokenizer

from tinybert.config.tasks import TASKS, write_task
from tinybert.data.tokenizer import save_tokenizer, train_tokenizer
from tinybert.pipeline import paths
from tinybert.pipeline.files import write_jsonl
from tinybert.pipeline.tracking import Run
from tinybert.stage import Stage


def enter_project(folder: Path, monkeypatch, texts: Sequence[str] = ("fish swim",), vocabulary_size=40) -> Tokenizer:
    """Makes `folder` the current project, which has nothing but a tokenizer of these texts; returns that."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    tokenizer = train_tokenizer(texts, vocabulary_size=vocabulary_size)
    paths.TOKENIZER.mkdir(parents=True)
    save_tokenizer(tokenizer, paths.TOKENIZER)
    return tokenizer


def write_cola(train: list[dict], dev: list[dict]) -> None:
    """Writes the rows of CoLA in the current project."""
    folder = paths.task_rows("cola")
    write_jsonl(folder / "train.jsonl", train)
    write_jsonl(folder / "dev.jsonl", dev)
    write_task(TASKS["cola"], folder)


class FakeStage(Stage):
    """A stage without DVC and MLflow; its metrics and curve end up in `metrics`."""

    def __init__(self, name: str, items: dict[str, str], params: SimpleNamespace, digest: str = "same") -> None:
        super().__init__(name, items, params, {}, {"seed": str(params.seed)}, Run())
        self.digest = digest
        self.metrics: dict = {}

    def fingerprint(self):
        return lambda: self.digest

    def write_metrics(self, metrics, part=""):
        self.metrics |= {part: metrics} if part else metrics

    def write_curve(self, entries):
        self.metrics["curve"] = entries
