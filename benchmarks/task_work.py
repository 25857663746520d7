"""What both contestants of a task benchmark do: the models' shapes, the examples, the batches."""

import argparse
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from tokenizers import Tokenizer

from benchmarks.reference import Shape
from tinybert.data.encoding import Encoded, encode
from tinybert.data.task_sources import read_splits
from tinybert.data.tasks import TASKS, Task
from tinybert.data.tokenizer import folder_tokenizer, train_tokenizer
from tinybert.pipeline.errors import UserError

SEED = 0
VOCABULARY_SIZE = 30522
# Training rows of the real task, and the length that the published code pads every one of them to.
PUBLISHED = {"cola": (8551, 64), "mrpc": (3668, 128)}


@dataclass(frozen=True)
class Sizes:
    """Of the models and a batch, and how many training rows there are (None: all, as many as the real task has)."""

    teacher: Shape
    student: Shape
    vocabulary: int
    batch_rows: int
    rows: int | None = None


SIZES = {
    "published": Sizes(Shape(12, 768, 3072, 12), Shape(4, 312, 1200, 12), VOCABULARY_SIZE, batch_rows=32),
    "small": Sizes(Shape(4, 24, 48, 3), Shape(2, 12, 24, 3), 1000, batch_rows=4, rows=40),
}


@dataclass(frozen=True)
class Work:
    """A task's training rows, with what learns from them and how.

    padded_length_tokens: of every row in the reference. described: one line on data and vocabulary, for people.
    """

    sizes: Sizes
    task: Task
    examples: Encoded
    vocabulary: int
    padded_length_tokens: int
    described: str

    @property
    def epoch_steps(self) -> int:
        """Steps of an epoch, the same for both."""
        return -(-len(self.examples) // self.sizes.batch_rows)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that choose the work."""
    parser.add_argument("--task", choices=PUBLISHED, default="cola")
    parser.add_argument("--data", metavar="FOLDER", help="GLUE in the official layout (default: synthetic examples)")
    parser.add_argument(
        "--vocabulary", metavar="FILE", help="vocab.txt of a BERT WordPiece tokenizer (default: learned from the texts)"
    )
    parser.add_argument("--rows", type=int, help="so many of the training rows, at random (default: all)")
    parser.add_argument("--sizes", choices=SIZES, default="published", help="small: a trial of the script itself")


def chosen_work(options: argparse.Namespace) -> Work:
    """The work that the options choose; UserError where data or vocabulary cannot be read."""
    sizes, task = SIZES[options.sizes], TASKS[options.task]
    rows = _rows(task, options.data, options.rows or sizes.rows)
    tokenizer = _tokenizer(options.vocabulary, [row[column] for row in rows for column in task.columns], sizes)
    _, padded_length_tokens = PUBLISHED[task.name]
    examples = encode(rows, task, tokenizer, max_length_tokens=padded_length_tokens)
    pieces = tokenizer.get_vocab_size()
    described = (
        f"{task.name}, {options.data or 'synthetic'}: {len(rows)} training rows of {examples.lengths.mean():.1f} "
        f"pieces in the mean; vocabulary of {pieces} pieces, {options.vocabulary or 'learned from the texts'}"
    )
    return Work(sizes, task, examples, max(pieces, sizes.vocabulary), padded_length_tokens, described)


def _rows(task: Task, folder: str | None, count: int | None) -> list[dict]:
    """Training rows, `count` of them at random where it is given."""
    published_rows, _ = PUBLISHED[task.name]
    settings = SimpleNamespace(
        local=SimpleNamespace(folder=folder),
        synthetic=SimpleNamespace(train_examples=count or published_rows, dev_examples=1),
    )
    rows = read_splits(task, "local" if folder else "synthetic", settings=settings, seed=SEED)["train"]
    return random.Random(SEED).sample(rows, min(count or len(rows), len(rows)))


def _tokenizer(vocabulary: str | None, texts: list[str], sizes: Sizes) -> Tokenizer:
    if vocabulary is None:
        return train_tokenizer(texts, vocabulary_size=sizes.vocabulary)
    if not Path(vocabulary).is_file():
        raise UserError(f"--vocabulary: {vocabulary} is no file; give the vocab.txt of a BERT, or leave it out")
    with tempfile.TemporaryDirectory() as name:
        # Alone in a folder: a tokenizer.json beside the file would be read instead of it.
        (Path(name) / "vocab.txt").symlink_to(Path(vocabulary).resolve())
        return folder_tokenizer(name)
