"""`tinybert cut`: what it writes and prints, with training and without, and wrong arguments."""

import shutil

import numpy as np
import pytest
import torch

from tests.support.hub_content import classifier, write_model
from tinybert import cli, cut
from tinybert.data.encoding import Encoded
from tinybert.data.tokenizer import save_tokenizer, train_tokenizer
from tinybert.models.bert import BertConfig, SequenceClassifier
from tinybert.models.model_folders import load_bert
from tinybert.pipeline.errors import UserError

WORDS = ("king", "old", "rome", "river", "film", "city")


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with a fine-tuned BERT of two layers, width 24 and three heads, and a table of 40 texts."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model", classifier("a/b", "0", ("bad", "good")))
    texts = [" ".join(WORDS[(n * step) % 6] for step in range(1, 4 + n % 3)) for n in range(40)]
    (tmp_path / "rows.csv").write_text("text\n" + "\n".join(texts))
    return tmp_path


def test_of_the_teachers_shape_the_cut_gives_its_answers(work, capsys):
    cli.main(["cut", "model", "rows.csv", "--output", "small", "--layers", "2"])
    parameters, same, written = capsys.readouterr().out.splitlines()
    assert parameters.startswith("parameters: ")
    assert same == "same prediction as the teacher: 100.0% (8 held-out rows)"
    assert written.startswith("small: model and tokenizer, after ")
    small, given = (load_bert(SequenceClassifier, folder) for folder in ("small", "model"))
    assert small.labels == given.labels and small.config.hidden_size == 24
    assert {path.name for path in (work / "small").iterdir()} >= {"tokenizer.json", "config.json", "model.safetensors"}


def test_a_smaller_shape_may_learn(work):
    sizes = ["--layers", "1", "--width", "12", "--heads", "3", "--feed-forward", "20"]
    for output, epochs in (("cut", "0"), ("learned", "2")):
        cli.main(["cut", "model", "rows.csv", *sizes, "--epochs", epochs, "--output", output])
    plain, learned = (load_bert(SequenceClassifier, folder) for folder in ("cut", "learned"))
    assert (plain.config.num_hidden_layers, plain.config.hidden_size, plain.config.intermediate_size) == (1, 12, 20)
    assert not torch.equal(plain.classifier.weight, learned.classifier.weight)


def test_a_speedup_chooses_the_shape_nearest_to_the_teacher(work, capsys, monkeypatch):
    # A layer takes the width's square, everything else nothing: half the time is one layer, or width 12 at most.
    monkeypatch.setattr(cut, "_batch_ms", lambda teacher, width, rows: width**2 * np.arange(1.0, 3.0))
    cli.main(["cut", "model", "rows.csv", "--speedup", "2", "--output", "small"])
    deep, wide, *_ = capsys.readouterr().out.splitlines()
    assert deep.startswith("--layers 2 --width 12 --feed-forward 24: 4.0 times as fast, squared error of logits ")
    assert wide.startswith("--layers 1 --width 24 --feed-forward 48: 2.0 times as fast, squared error of logits ")
    errors = [float(line.rsplit(maxsplit=1)[1]) for line in (deep, wide)]
    chosen = load_bert(SequenceClassifier, "small").config
    assert (chosen.num_hidden_layers, chosen.hidden_size) == ((2, 12), (1, 24))[int(np.argmin(errors))]


def some_rows():
    tokens = [np.arange(2, 9)] * 40
    return Encoded(tokens, [np.zeros_like(ids) for ids in tokens], None)


def test_a_shape_no_deeper_and_no_wider_is_left_out(work):
    teacher = load_bert(SequenceClassifier, "model")
    found = cut.shapes_at(teacher, some_rows(), 1.0)  # the teacher's own shape is the deepest and widest
    assert [(shape.layers, shape.width, speedup) for shape, speedup in found.items()] == [(2, 24, 1.0)]
    with pytest.raises(UserError, match=r"--speedup: too high \(got 1e\+06\); allowed: up to "):
        cut.shapes_at(teacher, some_rows(), 1e6)


def test_times_of_other_depths_are_on_a_line(monkeypatch):
    teacher = SequenceClassifier(
        BertConfig(vocab_size=99, hidden_size=24, num_hidden_layers=4, num_attention_heads=3, intermediate_size=48),
        ("bad", "good"),
    )
    monkeypatch.setattr(cut, "export_onnx", lambda model, path: None)
    found = {layers: {"dev_batch_32": {"median": float(ms)}} for layers, ms in (("1", 10), ("4", 40))}
    monkeypatch.setattr(cut, "latencies", lambda files, *_: {layers: found[layers] for layers in files})
    assert cut._batch_ms(teacher, 12, some_rows()).tolist() == [10.0, 20.0, 30.0, 40.0]


def test_scores_are_compared_by_their_correlation(work, capsys):
    write_model(work / "scorer", classifier("a/b", "0", ("score",)))
    cli.main(["cut", "scorer", "rows.csv", "--output", "small", "--layers", "2"])
    assert "correlation with the teacher's scores: 1.0000 (8 held-out rows)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["model", "none.csv"], "ROWS: none.csv does not exist"),
        (["model", "rows.csv", "--text", "body"], "ROWS: rows.csv: no column 'body'; allowed: text"),
        (["model", "few.csv"], "ROWS: too few (got 2); allowed: 10 or more"),
        (
            ["model", "rows.csv", "--width", "48"],
            "--width: larger than the teacher's, from which it is cut (got 48); allowed: 24",
        ),
        (["model", "rows.csv", "--width", "10"], "--heads: must divide width (got 3 and 10)"),
        (
            ["model", "rows.csv", "--width", "24", "--heads", "2"],
            "--heads: width 24 does not fit 3 heads of 8 (got 2 heads); allowed: 3; fix: change heads or width",
        ),
        (["model", "rows.csv", "--layers", "9"], "--layers: uniform cannot map 9 student layers"),
        (["none", "rows.csv"], "none/config.json: absent"),
        (["model", "rows.csv", "--width", "0"], "--width: "),
        (["model", "rows.csv", "--text", ""], "--text: must be one column, or two different ones (got [''])"),
        (
            ["model", "rows.csv", "--speedup", "2", "--layers", "1"],
            "--speedup: it chooses the sizes",
        ),
        (["others", "rows.csv"], "FOLDER: its tokenizer is too large (got "),
        (["model", "gap.csv"], "ROWS: gap.csv: line 3, column text: no text (got nothing)"),
        (
            ["model", "rows.csv", "--text", "text", "text", "text"],
            "--text: must be one column, or two different ones (got ['text', 'text', 'text'])",
        ),
        (
            ["model", "rows.csv", "--text", "text", "text"],
            "--text: must be one column, or two different ones (got ['text', 'text'])",
        ),
        (["model", "rows.csv", "--output", "model"], "--output: exists (got model); fix: name a new folder"),
    ],
)
def test_wrong_input_is_one_line_and_writes_nothing(work, options, line):
    (work / "few.csv").write_text("text\na\nb")
    shutil.copytree("model", "others")
    words = [f"{number} word" for number in range(2000)]
    save_tokenizer(train_tokenizer(words, vocabulary_size=1000), work / "others")
    (work / "gap.csv").write_text('text\na\n""\nc\nd\ne\nf')
    sizes = [] if {"--layers", "--width", "--speedup"} & set(options) else ["--layers", "1"]
    with pytest.raises(SystemExit) as ended:
        cli.main(["cut", "--output", "small", *options, *sizes])
    assert str(ended.value).startswith(line) and "\n" not in str(ended.value)
    assert not (work / "small").exists()


def test_a_size_is_needed(work):
    with pytest.raises(SystemExit, match=r"^--speedup: no size given; allowed: --layers"):
        cli.main(["cut", "model", "rows.csv", "--output", "small"])


@pytest.mark.parametrize(
    ("option", "value", "line"),
    [
        ("--epochs", "-1", "--epochs: out of range (got -1); allowed: 0 to 1000000000"),
        ("--max-length", "600", "--max-length: out of range (got 600); allowed: 8 to 512"),
        ("--speedup", "0.5", "--speedup: out of range (got 0.5); allowed: 1 to 1000000000"),
    ],
)
def test_numbers_out_of_bounds_are_refused(work, capsys, option, value, line):
    with pytest.raises(SystemExit):
        cli.main(["cut", "model", "rows.csv", "--output", "small", option, value])
    assert line in capsys.readouterr().err
