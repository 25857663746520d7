"""Any text file gives rows that fit the task or documents that can be written, or one line that names the file."""

import gzip
import io
import json
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.properties import REFUSED, as_json, damaged_bytes, damaged_trees, is_finite, outcome
from tests.unit.data.test_task_sources import DEV_FILES, LAYOUTS, write_task
from tinybert.augment.word_vectors import from_file
from tinybert.config.schema import Tokenize
from tinybert.config.tasks import TASKS
from tinybert.data.corpus import documents, wikitext_articles, write_splits
from tinybert.data.domain_filter import filter_file
from tinybert.data.sequences import write_sequences
from tinybert.data.task_sources import read_splits
from tinybert.data.tokenizer import train_tokenizer
from tinybert.evaluate.language_model import load_questions, quiz_batches
from tinybert.pipeline.files import read_jsonl, write_jsonl

pytestmark = pytest.mark.properties
SECONDS = 10
TOKENIZER = train_tokenizer(["the king of france fought a war", "paris is the capital , he said"], vocabulary_size=200)


def timed(read, *, names: str):
    """The outcome of a read that takes no longer than it may."""
    started = time.monotonic()
    found = outcome(read, names=names)
    assert time.monotonic() - started < SECONDS
    return found


def is_writable(text: str) -> bool:
    return "\0" not in text and text.encode("utf-8").decode("utf-8") == text


# --- GLUE's official files -------------------------------------------------------------------------------------------

FIELDS = ["", " ", "nan", "NaN", "inf", "-inf", "1e999", "-0.1", "5.0000001", "5", "0", "1", "2", "-1", "0.5", "١",
          "1_0", "0x1", '"', '"a\tb"', "neutral", "entailment", "hidden", "-", "é", "x" * 2**20, "\x85", "\u2028",
          "\x0c", "sentence", "label", "score", "sentence1"]  # fmt: skip


def tables(name: str) -> list[list[str]]:
    _, header, row, _, _ = LAYOUTS[name]
    return [line.split("\t") for line in ([header] if header else []) + [row] * 3]


@st.composite
def damaged_tables(draw, name: str) -> bytes:
    """The official file with changed cells, and columns that are missing, doubled or exchanged."""
    rows = tables(name)
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["cell", "cell", "drop", "double", "swap", "drop column", "double column"]))
        chosen = rows if "column" in kind else [draw(st.sampled_from(rows))]
        place = draw(st.integers(0, max(0, len(rows[0]) - 1)))
        cell = draw(st.one_of(st.sampled_from(FIELDS), st.floats().map(str), st.text(max_size=5)))
        for row in (row for row in chosen if place < len(row)):
            if kind == "cell":
                row[place] = cell
            elif "drop" in kind:
                del row[place]
            elif "double" in kind:
                row.insert(place, row[place])
            else:
                row[place], row[-1] = row[-1], row[place]
    return draw(st.sampled_from(["\n", "\r\n"])).join("\t".join(row) for row in rows).encode("utf-8", "replace")


@st.composite
def glue_files(draw) -> tuple[str, str, bytes]:
    """A task, the file of it that is damaged, and what is in it."""
    name = draw(st.sampled_from([*LAYOUTS]))
    file = draw(st.sampled_from(["train", *DEV_FILES.get(name, ("dev",))]))
    whole = "\n".join("\t".join(row) for row in tables(name)).encode()
    return name, file, draw(st.one_of(damaged_tables(name), damaged_bytes(whole)))


@given(glue_files())
@example(("rte", "train", b"index\tsentence1\tsentence1\tsentence2\tlabel\n0\ta\tb\tc\tentailment\n"))
def test_glue_files(tmp_path, drawn):
    name, file, content = drawn
    task = TASKS[name]
    path = write_task(tmp_path, name, LAYOUTS[name][2]).with_name(f"{file}.tsv")
    path.write_bytes(content)
    settings = SimpleNamespace(local=SimpleNamespace(folder=str(tmp_path)))
    splits = timed(lambda: read_splits(task, "local", settings=settings, seed=0), names=f"tasks.local.folder: {path}")
    for rows in () if splits is REFUSED else splits.values():
        assert rows
        assert [row["idx"] for row in rows] == list(range(len(rows)))
        for row in rows:
            assert {*row} == {*task.columns, "label", "idx"}
            assert all(row[column].strip() and is_writable(row[column]) for column in task.columns)
            assert fits(name, row["label"])
    if splits is not REFUSED:
        assert_read_again(tmp_path, splits["train"])


def fits(name: str, label) -> bool:
    classes = {"mnli": 3, "stsb": None}.get(name, 2)
    return type(label) is float and 0 <= label <= 5 if classes is None else type(label) is int and 0 <= label < classes


def assert_read_again(folder: Path, rows: list[dict]) -> None:
    """What the stage writes is what the next one reads."""
    write_jsonl(folder / "train.jsonl", rows)
    assert [*read_jsonl(folder / "train.jsonl")] == rows


# --- quiz files and documents -----------------------------------------------------------------------------------------


@st.composite
def damaged_rows(draw, *rows: dict) -> bytes:
    """JSON lines, one of them changed, or the bytes damaged."""
    whole = [json.dumps(row).encode() for row in rows]
    if draw(st.booleans()):
        return draw(damaged_bytes(b"\n".join(whole)))
    changed = draw(damaged_trees(*rows))
    lines = [*whole, as_json(changed)]
    return b"\n".join(draw(st.permutations(lines)))


QUESTION = {"subject": "geography", "prompt": "The capital of France is [MASK].", "answer": "paris"}


@given(damaged_rows(QUESTION, QUESTION | {"subject": "history"}))
@example(json.dumps(QUESTION | {"subject": "all"}).encode())
@example(json.dumps(QUESTION | {"answer": "\ud800"}).encode())
def test_quiz_files(tmp_path, content):
    path = tmp_path / "quiz.jsonl"
    path.write_bytes(content)
    quiz = SimpleNamespace(source="local", local=SimpleNamespace(file=str(path)))
    found = timed(lambda: load_questions(quiz, TOKENIZER), names=str(path))
    if found is not REFUSED:
        questions, _ = found
        assert questions
        for question, batch in zip(questions, quiz_batches(questions[:1], TOKENIZER), strict=False):
            assert batch.positions.shape == (1,)
            assert question["subject"] != "all"


# --- documents -------------------------------------------------------------------------------------------------------

WIKITEXT = b"= Title =\n\nThe king fought a war .\n\n= = Section = =\n\nParis is the capital , he said .\n\n= Other =\n\nText .\n"  # noqa: E501
DOCUMENTS = [{"title": "Title", "text": "The king fought a war."}, {"text": "Paris is the capital."}, {"text": "x"}]


def packed(content: bytes) -> bytes:
    found = io.BytesIO()
    with gzip.GzipFile(fileobj=found, mode="wb", compresslevel=1, mtime=0) as file:
        file.write(content)
    return found.getvalue()


@st.composite
def corpus_files(draw) -> tuple[str, bytes]:
    """A file name and its content; where it is packed, what is damaged is the text or the packed bytes."""
    name = draw(st.sampled_from(["a.txt", "a.tokens", "a.jsonl", "A.TXT.GZ", "a.jsonl.gz"]))
    text = b"\n".join(json.dumps(document).encode() for document in DOCUMENTS) if "jsonl" in name else WIKITEXT
    damaged = draw(damaged_rows(*DOCUMENTS) if "jsonl" in name else damaged_bytes(text))
    if not name.lower().endswith("gz"):
        return name, damaged
    return name, draw(st.one_of(st.just(packed(damaged)), damaged_bytes(packed(text))))


@given(
    corpus_files(), st.sampled_from(["article", "paragraph"]), st.sampled_from([None, 1, 2]), st.sampled_from([2, 3])
)
@example(("a.jsonl", b'{"text": "a"}\n{"text": "b\\u0000"}\n'), "article", None, 2)
@example(("a.jsonl.gz", packed(b'{"text": "a"}\n{"text": "b"}\n')[:-3]), "article", None, 2)
def test_corpus_files(tmp_path, drawn, unit, most, every):
    name, content = drawn
    out = tmp_path / "out"
    for old in (*out.glob("*"), *tmp_path.glob("[aA].*")):
        old.unlink()
    (tmp_path / name).write_bytes(content)
    local = SimpleNamespace(files=[str(tmp_path / name)])
    settings = SimpleNamespace(source="local", unit=unit, max_documents=most, local=local)
    files = {split: out / f"{split}.jsonl" for split in ("train", "heldout")}
    counts = timed(lambda: write_splits(documents(settings, seed=0), **files, every=every), names="corpus.")
    assert sorted(out.glob("*")) == ([] if counts is REFUSED else sorted(files.values()))
    for split, path in files.items() if counts is not REFUSED else ():
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        assert len(found) == counts["documents"][split] > 0
        assert all(document["text"] and is_writable(document["title"] + document["text"]) for document in found)


FILTER = SimpleNamespace(
    subjects={"history": ["king", "war"]},
    matching="whole_word",
    ignore_case=True,
    min_hits=1,
    min_hits_per_1000_words=0,
)


@given(damaged_rows(*DOCUMENTS), st.sampled_from(["pack", "paragraphs", "truncate"]))
@example(b'{"text": ""}\n{"text": "war"}', "pack")
@example(b'{"title": "x"}', "pack")
def test_documents_that_stages_read(tmp_path, content, packing):
    source, kept, blocks = tmp_path / "in.jsonl", tmp_path / "kept" / "out.jsonl", tmp_path / "blocks" / "train"
    source.write_bytes(content)
    kept.unlink(missing_ok=True)
    found = timed(lambda: filter_file(source, kept, FILTER), names="")
    assert [*kept.parent.glob("*")] == ([] if found is REFUSED else [kept])
    for old in blocks.glob("*"):
        old.unlink()
    settings = Tokenize(sequence_tokens=8, packing=packing)
    cut = timed(lambda: write_sequences(source, TOKENIZER, blocks, settings), names="")
    assert len([*blocks.parent.glob("*")]) <= 1
    assert cut is REFUSED or (cut["sequences"] > 0 and is_finite(cut))


LINES = st.text(alphabet="= xé\t\x85\u2028", max_size=60)


@given(st.lists(LINES, max_size=9))
def test_articles_hold_every_line_that_is_no_heading(lines):
    articles = [*wikitext_articles(lines)]
    text = "\n".join(article["text"] for article in articles)
    assert all(article["text"].strip() for article in articles)
    for line in lines:
        assert line.strip() in text or "=" in line


# --- word vectors ----------------------------------------------------------------------------------------------------

VECTORS = b"the 0.1 0.2 -0.3\nking 1 2 3\nqueen 1 2 2.9\n. . 0 0 1\nwar 1e-3 5 -2\n"
NUMBERS = st.one_of(
    st.floats().map(repr), st.sampled_from(["1e38", "3.4e38", "1e-46", "nan", "1e39", "0", "x", "1_0", ""])
)


@st.composite
def vector_files(draw) -> bytes:
    """The lines of a GloVe file with other numbers, or its bytes damaged."""
    if draw(st.booleans()):
        return draw(damaged_bytes(VECTORS))
    words = draw(st.lists(st.sampled_from(["king", "queen", "King", "war", ".", "a b"]), min_size=1, max_size=4))
    return "\n".join(" ".join([word, *(draw(NUMBERS) for _ in range(2))]) for word in words).encode()


@given(vector_files())
@example(b"king 3e38 1e38\nqueen 1 2\n")
@example(b"king 1e39 1\n")
def test_word_vector_files(tmp_path, content):
    path = tmp_path / "glove.txt"
    path.write_bytes(content)
    found = timed(lambda: from_file(path), names=str(path))
    if found is not REFUSED:
        assert np.allclose(np.linalg.norm(found.vectors, axis=1), 1, atol=1e-3)
        near = found.nearest(["king", "queen", "nobody"], 2)
        assert all(len(others) <= 2 and word not in others for word, others in near.items())
