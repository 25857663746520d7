"""The gate, and the command `tinybert quantize` on a folder and a file of rows."""

import csv
import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.builders import STUDENT, classifier
from tests.support.families import save_family
from tinybert import cli
from tinybert.compress import variants
from tinybert.compress.onnx_files import OnnxClassifier, random_feeds, write_portable
from tinybert.compress.variants import passing_variant
from tinybert.config.tasks import TASKS
from tinybert.data.tokenizer import folder_tokenizer, save_tokenizer, train_tokenizer
from tinybert.models.model_folders import load_model, save_model
from tinybert.models.outputs import Batch
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_json, write_json, write_jsonl
from tinybert.pipeline.paths import VARIANTS
from tinybert.synthetic.examples import examples

KEY = "quantization.max_score_drop"
# score, MB
FOUND = {"fp32": (0.8, 40.0), "int8-dynamic": (0.77, 9.0), "int8-qdq": (0.79, 11.0), "int8-qoperator": (0.785, 10.0)}
FILES = {*(f"{variant}.onnx" for variant in VARIANTS), "model.onnx", "quantization.json"}


def found(scores=FOUND) -> dict:
    ends = {"low": -0.02, "high": 0.01}
    return {
        name: {"dev": {"accuracy": score}, "size_mb": {"raw": size}, "agreement": size / 40, "difference_95": ends}
        | {"collapsed": False}
        for name, (score, size) in scores.items()
    }


@pytest.mark.parametrize(
    ("allowed", "variant"),
    [
        (None, "int8-dynamic"),
        (0.5, "int8-dynamic"),
        (0.03, "int8-dynamic"),  # .8 - .77 is .030000000000000027
        (0.02, "int8-qoperator"),
        (0.01, "int8-qdq"),
    ],
)
def test_the_smallest_variant_that_passes_is_chosen(allowed, variant):
    assert passing_variant(found(), "accuracy", allowed, key=KEY) == variant


@pytest.mark.parametrize(
    ("sizes", "scores", "variant"),
    [
        ((9.0, 9.1, 9.18), (0.77, 0.78, 0.79), "int8-qoperator"),
        ((9.0, 9.1, 9.19), (0.77, 0.78, 0.79), "int8-qdq"),  # 2.1 % larger than the smallest
        ((9.1, 9.0, 9.05), (0.79, 0.79, 0.78), "int8-qdq"),  # of equal scores the smaller
    ],
)
def test_of_similar_sizes_the_highest_score_is_chosen(sizes, scores, variant):
    names = ("int8-dynamic", "int8-qdq", "int8-qoperator")
    similar = FOUND | dict(zip(names, zip(scores, sizes, strict=True), strict=True))
    assert passing_variant(found(similar), "accuracy", None, key=KEY) == variant


def test_without_a_variant_that_passes_there_is_one_line():
    with pytest.raises(UserError) as failed:
        passing_variant(found(), "accuracy", 0.005, key=KEY)
    line = str(failed.value)
    assert line.startswith(f"{KEY}: every INT8 variant loses more accuracy (got int8-dynamic 0.0300, int8-qdq 0.0100")
    assert "allowed: 0.005; fix: raise it, add rows, or keep nodes" in line and "\n" not in line


def test_a_variant_above_fp32_passes_a_gate_of_zero():
    assert passing_variant(found(FOUND | {"int8-qdq": (0.81, 11.0)}), "accuracy", 0.0, key=KEY) == "int8-qdq"


# --- the command ---


def write_classifier(folder, task="cola", labels=("bad", "good")) -> list[dict]:
    """A folder of random weights with a tokenizer; returns rows of its task."""
    rows = examples(task, "dev", 40, seed=0)
    texts = [text for row in rows for name, text in row.items() if name not in ("label", "idx")]
    tokenizer = train_tokenizer(texts, vocabulary_size=300)
    vocabulary = tokenizer.get_vocab_size()
    folder.mkdir()
    save_model(classifier(replace(STUDENT, vocab_size=vocabulary, initializer_range=0.3), labels), folder)
    save_tokenizer(tokenizer, folder)
    return rows


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with a classifier `model`, and its rows as `rows.csv` with class names."""
    monkeypatch.chdir(tmp_path)
    rows = write_classifier(tmp_path / "model")
    write_csv("rows.csv", [(f'{row["sentence"]}, "it" is', ("bad", "good")[row["label"]]) for row in rows])
    return tmp_path


def write_csv(path, rows, header=("text", "label"), **format):
    with open(path, "w", encoding="utf-8", newline="") as handle:
        csv.writer(handle, **format).writerows([header, *rows])


def subject(*options: str) -> variants.Subject:
    """What the command measures."""
    return variants._subject(variants._options(["model", *options]))


def run(*options: str) -> dict:
    cli.main(["quantize", "model", *options])
    return read_json("model/onnx/quantization.json")


def test_the_command_writes_measures_and_chooses(work, capsys):
    results = run("rows.csv", "--max-score-drop", "1", "--exclude", "")
    printed = capsys.readouterr().out.splitlines()
    assert {path.name for path in (work / "model/onnx").iterdir()} == FILES | {"model_quantized.onnx"}
    assert " ".join(printed[0].split()) == "variant MB accuracy minus FP32 95 % as FP32 ms a row"
    assert [line.split()[0] for line in printed[2:6]] == [*VARIANTS]
    assert "30 rows scored, 10 others calibrated INT8" in printed
    assert printed[-1].startswith(f"chosen: {results['chosen']}; model/onnx has all files")
    assert (results["calibration_rows"], results["scored_rows"]) == (10, 30)
    assert list(results["variants"]) == [*VARIANTS] and results["variants"]["fp32"]["agreement"] == 1.0
    assert all(found["row_ms"] > 0 for found in results["variants"].values())
    feeds = random_feeds(4, 9, 100)
    ids, mask, types = (torch.from_numpy(feeds[name]) for name in ("input_ids", "attention_mask", "token_type_ids"))
    with torch.inference_mode():
        expected = load_model("model")(Batch(ids, mask.bool(), types)).logits.numpy()
    np.testing.assert_allclose(OnnxClassifier("model/onnx/model.onnx", 1).logits(feeds), expected, atol=1e-5)
    write_portable(f"model/onnx/{results['chosen']}.onnx", "expected.onnx")
    assert (work / "model/onnx/model_quantized.onnx").read_bytes() == (work / "expected.onnx").read_bytes()


def test_rows_are_cut_to_the_tokenizers_limit(work):
    def longest(*options: str) -> int:
        return max(subject("rows.csv", *options).scored.lengths)

    assert longest() > 9
    save_tokenizer(folder_tokenizer(work / "model"), work / "model", max_length_tokens=9)
    assert (longest(), longest("--max-length", "8")) == (9, 8)
    for unlimited in (None, 10**30, 1e30):  # transformers writes this number
        config = read_json(work / "model/tokenizer_config.json") | {"model_max_length": unlimited}
        write_json(work / "model/tokenizer_config.json", config)
        assert longest() > 9
    (work / "model/tokenizer_config.json").unlink()
    assert longest() > 9


def test_of_a_few_rows_two_are_for_calibration(work):
    lines = (work / "rows.csv").read_text().splitlines(keepends=True)
    (work / "few.csv").write_text("".join(lines[:6]))
    few = subject("few.csv")
    assert (len(few.calibration), len(few.scored)) == (2, 3)


def test_formats_and_label_numbers_give_the_same_rows(work):
    expected = subject("rows.csv").scored
    with open("rows.csv", encoding="utf-8", newline="") as handle:
        rows = [(row["text"], ("bad", "good").index(row["label"])) for row in csv.DictReader(handle)]
    write_jsonl("rows.jsonl", ({"text": text, "label": label} for text, label in rows))
    (work / "rows.tsv").write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for text, label in rows))
    (work / "rows.csv.gz").write_bytes(gzip.compress((work / "rows.csv").read_bytes()))
    (work / "case.csv").write_text((work / "rows.csv").read_text().replace("bad", "BAD").replace("good", "Good"))
    for name in ("rows.jsonl", "rows.tsv", "rows.csv.gz", "case.csv"):
        found = subject(name).scored
        assert [*map(list, found.input_ids)] == [*map(list, expected.input_ids)], name
        assert found.labels.tolist() == expected.labels.tolist(), name


def test_a_gate_that_nothing_passes_leaves_the_measured_files(work, monkeypatch, capsys):
    worse = {name: (score - (name != "fp32"), size) for name, (score, size) in FOUND.items()}
    monkeypatch.setattr("tinybert.compress.variants.variant_scores", lambda *given, **named: found(worse))
    with pytest.raises(SystemExit, match=r"^--max-score-drop: every INT8 variant loses more accuracy"):
        run("rows.csv")
    assert {path.name for path in (work / "model/onnx").iterdir()} == FILES
    assert "int8-dynamic" in capsys.readouterr().out


def test_pairs_and_scores_are_taken_too(work):
    rows = write_classifier(work / "pairs", "mrpc", TASKS["stsb"].outputs)
    write_jsonl("pairs.jsonl", rows)
    columns = [name for name in rows[0] if name.startswith("sentence")]
    options = ["pairs.jsonl", "--text", *columns, "--metric", "spearman", "--max-score-drop", "1"]
    cli.main(["quantize", "pairs", *options, "--calibration-rows", "12", "--output", "out"])
    results = json.loads((work / "out/quantization.json").read_text())
    assert results["chosen"].startswith("int8") and results["scored_rows"] == 28
    assert list(results["variants"]["fp32"]["dev"]) == ["spearman"]


def test_several_labels_a_row_are_taken_too(work):
    rows = write_classifier(work / "tags", labels=("bad", "good"))
    config = read_json(work / "tags/config.json") | {"problem_type": "multi_label_classification"}
    (work / "tags/config.json").write_text(json.dumps(config))
    write_csv("tags.csv", [(row["sentence"], ("", "bad", "good|bad")[n % 3]) for n, row in enumerate(rows)])
    cli.main(["quantize", "tags", "tags.csv", "--separator", "|", "--max-score-drop", "1", "--output", "out"])
    assert list(read_json("out/quantization.json")["variants"]["fp32"]["dev"]) == ["micro_f1"]

    write_jsonl("zeros.jsonl", [{"text": "a", "label": [1, 0]}, {"text": "b", "label": [0, 1]}])
    with pytest.raises(
        SystemExit, match=r"zeros\.jsonl: line 1, column label: 0 and 1 for each class \(got \[1, 0\]\)"
    ):
        cli.main(["quantize", "tags", "zeros.jsonl"])


def test_one_answer_for_all_rows_is_a_warning(work, capsys):
    model = load_model(work / "model")
    with torch.no_grad():
        model.classifier.bias.copy_(torch.tensor([9.0, -9.0]))
    save_model(model, work / "model")
    run("rows.csv")
    assert "warning: FP32 has one answer for all rows; fix: check the column" in capsys.readouterr().out


def test_macro_f1_is_a_metric_of_classes(work):
    assert subject("rows.csv", "--metric", "macro_f1").task.metrics == ("macro_f1",)


def test_numbers_do_not_stand_for_classes_that_are_numbers(work):
    write_classifier(work / "stars", labels=("1", "2"))
    write_csv("stars.csv", [("a", "0"), ("b", "1")])
    with pytest.raises(
        SystemExit, match=r"^ROWS: stars.csv: line 2, column label: unknown class \(got '0'\); allowed: 1, 2"
    ):
        cli.main(["quantize", "stars", "stars.csv"])


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["none.csv"], "ROWS: none.csv does not exist"),
        (["rows.txt"], "ROWS: rows.txt: unknown format; allowed: .csv, .tsv, .jsonl, .parquet, each also .gz;"),
        (["rows.csv", "--text", "body"], "ROWS: rows.csv: no column 'body'; allowed: text, label; fix: "),
        (["rows.csv", "--label", "class"], "ROWS: rows.csv: no column 'class'; allowed: text, label; fix: "),
        (
            ["wrong.csv"],
            "ROWS: wrong.csv: line 3, column label: unknown class (got 'fine'); allowed: bad, good",
        ),
        (["rows.jsonl"], "ROWS: rows.jsonl: line 1: must be a JSON object (got '[]')"),
        (["rows.csv", "--metric", "pearson"], "--metric: does not fit the model's labels (got pearson); allowed: acc"),
        (["rows.csv", "--calibration-rows", "40"], "--calibration-rows: no row is left (got 40 of 40)"),
        (["one.csv"], "--calibration-rows: no row is left (got 2 of 1)"),
        (["rows.csv", "--output", "mine"], "--output: exists, but not from this command (got mine); fix: --output NEW"),
        (
            ["rows.csv", "--text", "text", "text", "text"],
            "--text: must be one column, or two different ones (got ['text', 'text', 'text'])",
        ),
        (["rows.csv", "--exclude", "*"], "quantization.exclude (--exclude): "),
        (["quotes.csv"], "ROWS: quotes.csv: line "),
        (["rows.csv", "--separator", "|"], "--separator: rows of kind classification have one label"),
        (["rows.csv", "--text", "label"], "--label: is a text too (got label)"),
    ],
)
def test_wrong_input_is_one_line_and_writes_nothing(work, options, line):
    write_csv("wrong.csv", [("a", "bad"), ("b", "fine")])
    write_csv("one.csv", [("a", "bad")])
    (work / "rows.txt").write_text("")
    (work / "rows.jsonl").write_text("[]\n")
    (work / "quotes.csv").write_text('text,label\n"never closed' + 20_000 * "a word\n")
    (work / "mine").mkdir()
    with pytest.raises(SystemExit) as ended:
        run(*options)
    assert str(ended.value).startswith(line) and "\n" not in str(ended.value)
    assert not (work / "model/onnx").exists() and list((work / "mine").iterdir()) == []


def test_a_folder_that_is_no_classifier_is_one_line(work):
    with pytest.raises(SystemExit, match=r"^mine/config.json: absent; fix"):
        cli.main(["quantize", "mine", "rows.csv"])


@pytest.mark.parametrize("family", ["distilbert", "roberta"])
def test_relatives_of_bert_are_taken_too(work, family):
    save_family(family, work / family, ("bad", "good"))
    cli.main(["quantize", family, "rows.csv", "--max-score-drop", "1"])
    assert {path.name for path in (work / family / "onnx").iterdir()} == FILES | {"model_quantized.onnx"}


def test_mistakes_in_a_folder_are_one_line(work):
    save_family("modernbert", work / "modern", ("bad", "good"))
    line = r"^modern/config.json: model_type: not supported \(got 'modernbert'\); allowed: bert or roberta or"
    with pytest.raises(SystemExit, match=line):
        cli.main(["quantize", "modern", "rows.csv"])
    (save_family("roberta", work / "roberta", ("bad", "good")) / "tokenizer.json").unlink()
    with pytest.raises(SystemExit, match=r"^roberta/tokenizer.json: absent; fix: tokenizer.save_pretrained\(FOLDER\)"):
        cli.main(["quantize", "roberta", "rows.csv"])


@pytest.mark.parametrize(
    ("option", "value", "line"),
    [
        ("--max-score-drop", "2", "out of range (got 2); allowed: 0 to 1"),
        ("--max-score-drop", "nan", "out of range (got nan); allowed: 0 to 1"),
        ("--max-length", "7", "out of range (got 7); allowed: 8 to 512"),
        ("--calibration-rows", "0", "out of range (got 0); allowed: 1 to 1000000000"),
        ("--calibration-rows", "few", "invalid int value: 'few'"),
    ],
)
def test_numbers_out_of_bounds_are_refused(work, capsys, option, value, line):
    with pytest.raises(SystemExit):
        run("rows.csv", option, value)
    assert line in capsys.readouterr().err


def test_a_damaged_tokenizer_config_is_one_line(work):
    (work / "model/tokenizer_config.json").write_text("[]")
    with pytest.raises(SystemExit, match=r"^model/tokenizer_config\.json: not a JSON object; fix: get the file again$"):
        run("rows.csv")


@pytest.mark.parametrize("limit", ["512", True, -1, 1])
def test_an_unusable_length_of_the_tokenizer_is_one_line(work, limit):
    config = read_json(work / "model/tokenizer_config.json") | {"model_max_length": limit}
    write_json(work / "model/tokenizer_config.json", config)
    with pytest.raises(
        SystemExit, match=r"^model/tokenizer_config\.json: model_max_length: no number of tokens \(got "
    ):
        run("rows.csv")


def test_scores_must_be_finite(work):
    write_classifier(work / "pairs", "mrpc", TASKS["stsb"].outputs)
    write_csv("scores.csv", [("a", "1.5"), ("b", "nan")])
    with pytest.raises(
        SystemExit, match=r"^ROWS: scores.csv: line 3, column label: no score \(got 'nan'\); allowed: a number"
    ):
        cli.main(["quantize", "pairs", "scores.csv"])


def test_a_tokenizer_of_another_model_is_one_line(work):
    other = train_tokenizer([f"{number} word" for number in range(2000)], vocabulary_size=1000)
    save_tokenizer(other, work / "model")
    with pytest.raises(SystemExit, match=r"^FOLDER: its tokenizer is too large \(got "):
        run("rows.csv")
