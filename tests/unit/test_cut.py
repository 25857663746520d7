"""`tinybert cut`: what it writes and prints, with training and without, and wrong arguments."""

import pytest
import torch

from tests.support.hub_content import classifier
from tests.unit.test_api import write_model
from tinybert import cli
from tinybert.models.bert import SequenceClassifier
from tinybert.models.checkpoints import load_bert

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
    cli.main(["cut", "model", "rows.csv", "--output", "small"])
    parameters, same, written = capsys.readouterr().out.splitlines()
    assert parameters.startswith("parameters: ")
    assert same == "same answer as the teacher: 100.0% (8 rows that it has not read)"
    assert written.startswith("small: model and tokenizer, after ")
    small, given = (load_bert(SequenceClassifier, folder) for folder in ("small", "model"))
    assert small.labels == given.labels and small.config.hidden_size == 24
    assert {path.name for path in (work / "small").iterdir()} >= {"tokenizer.json", "config.json", "model.safetensors"}


def test_a_smaller_shape_may_learn(work):
    sizes = ["--layers", "1", "--width", "12", "--heads", "3", "--feed-forward", "20"]
    for output, epochs in (("cut", "0"), ("learned", "2")):
        cli.main(["cut", "model", "rows.csv", *sizes, "--epochs", epochs, "--output", output])
    cut, learned = (load_bert(SequenceClassifier, folder) for folder in ("cut", "learned"))
    assert (cut.config.num_hidden_layers, cut.config.hidden_size, cut.config.intermediate_size) == (1, 12, 20)
    assert not torch.equal(cut.classifier.weight, learned.classifier.weight)


def test_scores_are_compared_by_their_correlation(work, capsys):
    write_model(work / "scorer", classifier("a/b", "0", ("score",)))
    cli.main(["cut", "scorer", "rows.csv", "--output", "small"])
    assert "correlation with the teacher's scores: 1.0000 (8 rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["model", "none.csv"], "ROWS: none.csv does not exist"),
        (["model", "rows.csv", "--text", "body"], "ROWS: rows.csv: no column 'body'; allowed: text"),
        (["model", "few.csv"], "ROWS: too few (got 2); allowed: 5 or more"),
        (["model", "rows.csv", "--width", "48"], "init.teacher: architecture.width is 48, the teacher has 24"),
        (["model", "rows.csv", "--width", "10"], "heads must divide width (got 3 and 10)"),
        (["model", "rows.csv", "--layers", "9"], "init.teacher: uniform cannot map 9 student layers"),
        (["none", "rows.csv"], "none/config.json: absent"),
        (["model", "rows.csv", "--width", "0"], "width: "),
        (["model", "rows.csv", "--epochs", "-1"], "epochs: "),
        (["model", "gap.csv"], "ROWS: gap.csv: line 3, column text: no text (got nothing)"),
        (["model", "rows.csv", "--text", "text", "text", "text"], "--text: too many columns (got text text text)"),
        (["model", "rows.csv", "--output", "model"], "--output: exists (got model); fix: name a new folder"),
    ],
)
def test_wrong_input_is_one_line_and_writes_nothing(work, options, line):
    (work / "few.csv").write_text("text\na\nb")
    (work / "gap.csv").write_text('text\na\n""\nc\nd\ne\nf')
    with pytest.raises(SystemExit) as ended:
        cli.main(["cut", "--output", "small", *options])
    assert str(ended.value).startswith(line) and "\n" not in str(ended.value)
    assert not (work / "small").exists()
