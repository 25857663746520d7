"""The Python call: the example of docs/python.md, equality with the stages' core, and wrong arguments."""

import contextlib
import io
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.support.builders import classifier as small_classifier
from tests.support.builders import masked_lm, task_with
from tests.support.families import save_family
from tests.support.hub_content import bert, classifier, write_model
from tests.support.root import ROOT
from tinybert import Architecture, DistillSettings, distill_student
from tinybert.api import _gold, _load_student
from tinybert.config.fields import Training
from tinybert.config.schema import Optimizer
from tinybert.config.tasks import MULTILABEL
from tinybert.data.encoding import encode
from tinybert.data.tokenizer import folder_tokenizer
from tinybert.distill.batches import Batches
from tinybert.distill.loop import LiveTeacher, Settings, train
from tinybert.distill.metric_log import TrainRun
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.models.bert import SequenceClassifier
from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig
from tinybert.models.model_folders import class_names, load_bert, load_classifier, load_task_model, save_model
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_json, write_json

LABELS = ("unacceptable", "acceptable")
TASK = task_with(*LABELS)
PAGE = (ROOT / "docs/python.md").read_text(encoding="utf-8")
ROWS = [{"text": "the king of old rome", "label": 1}, {"text": "rome old the of king is", "label": 0}] * 8
PREDICTION = {"prediction": 1.0}
SHORT = DistillSettings(epochs=2, batch_size=8, learning_rate=1e-3, max_length_tokens=16)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a teacher and a general student of the same vocabulary."""
    monkeypatch.chdir(tmp_path)
    for name, repository in (("teacher", classifier("a/b", "0", LABELS)), ("student", bert("a/c", "0"))):
        write_model(tmp_path / name, repository)
    return tmp_path


def test_the_example_of_the_page_runs_and_prints_what_it_says(folder):
    code, output = re.search(r"```python\n(.*?)```.*?```\n(.*?)```", PAGE, re.DOTALL).groups()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "docs/python.md", "exec"), {})
    found, said = printed.getvalue().splitlines(), output.splitlines()
    assert [line.split(" loss ")[0] for line in found] == [line.split(" loss ")[0] for line in said]
    for ours, theirs in zip(found[:-1], said[:-1], strict=True):
        assert float(ours.split()[-1]) == pytest.approx(float(theirs.split()[-1]), abs=2e-3)
    assert {path.name for path in (folder / "distilled").iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"
    }  # fmt: skip


def test_the_call_is_the_loop_with_a_teacher_that_runs_once(folder):
    """Against the parts, with a live teacher; logits are cached in float32, so that nothing differs."""
    result = distill_student("teacher", "student", ROWS, PREDICTION | {"hard": 0.5}, SHORT)
    teacher = load_bert(SequenceClassifier, "teacher")
    torch.manual_seed(42)
    student = load_classifier("student", TASK)
    config = DistillationConfig({"prediction": 1.0, "hard": 0.5}, seed=42)
    loss = DistillationLoss(config, student.config, teacher.config)
    examples = encode(ROWS, TASK, folder_tokenizer("teacher"), max_length_tokens=16)
    training = Training(epochs=2, max_steps=None, batch_size=8, learning_rate=1e-3)
    optimizer = Optimizer(weight_decay=0.01, max_gradient_norm=1.0, warmup_fraction=0.1)
    batches = Batches(examples, batch_size=8, seed=42)
    live = LiveTeacher(teacher, loss)
    curve = train(student, loss, batches, Settings(training, optimizer, 42), teacher=live, run=TrainRun("live"))
    for name, weight in result.model.state_dict().items():
        torch.testing.assert_close(weight, student.state_dict()[name], rtol=1e-4, atol=1e-6)
    assert [entry["step"] for entry in result.curve] == [entry["step"] for entry in curve] == [1, 2, 3, 4]


def test_unlabeled_rows_frames_and_loaded_models_give_the_same(folder):
    entries = []
    first = distill_student("teacher", "student", ROWS, PREDICTION, SHORT, callback=entries.append)
    assert entries == first.curve and entries[-1]["total"] < entries[0]["total"]
    teacher = load_bert(SequenceClassifier, "teacher")
    torch.manual_seed(42)
    student = load_classifier("student", TASK)
    frame = pd.DataFrame({"sentence": [row["text"] for row in ROWS]})
    settings = DistillSettings(**vars(SHORT) | {"text": ("sentence",), "tokenizer": "teacher"})
    second = distill_student(teacher, student, frame, PREDICTION, settings)
    assert second.model is student
    for name, weight in first.model.state_dict().items():
        assert torch.equal(weight, student.state_dict()[name])


def test_a_shape_is_cut_out_of_the_teacher(folder):
    """Two of two layers, all of the width: without a step it answers as the teacher does; then it learns."""
    teacher = load_bert(SequenceClassifier, "teacher")
    shape = Architecture(layers=2, width=24, heads=3, feed_forward=48, dropout=0.0)
    none = DistillSettings(**vars(SHORT) | {"epochs": 0})
    cut = distill_student("teacher", shape, ROWS, PREDICTION, none).model
    examples = encode(ROWS, TASK, folder_tokenizer("teacher"), max_length_tokens=16)
    with torch.inference_mode():
        expected, found = (model.eval()(examples.batch(range(8))).logits for model in (teacher, cut))
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)
    narrow = Architecture(layers=1, width=12, heads=3, feed_forward=24, dropout=0.0)
    learned = distill_student("teacher", narrow, ROWS, {"hidden": 1.0}, SHORT)
    assert learned.model.config.hidden_size == 12 and learned.curve[-1]["hidden"] < learned.curve[0]["hidden"]
    save_family("roberta", folder / "roberta", LABELS)
    with pytest.raises(UserError, match=r"^student: no BERT teacher to cut it from \(got a shape\)"):
        distill_student("roberta", narrow, ROWS, PREDICTION, replace(SHORT, tokenizer="teacher"))


def test_a_second_call_continues_the_projections_of_the_first(folder):
    narrow = Architecture(layers=1, width=12, heads=3, feed_forward=24, dropout=0.0)
    first = distill_student("teacher", narrow, ROWS, {"hidden": 1.0}, replace(SHORT, epochs=20))
    again = replace(SHORT, epochs=1, tokenizer="teacher", learning_rate=1e-9)
    for student, goes_on in ((first, True), (first.model, False)):
        start = distill_student("teacher", student, ROWS, {"hidden": 1.0}, again).curve[0]["hidden"]
        assert (start < 1.1 * first.curve[-1]["hidden"]) == goes_on


def test_labels_may_be_names_and_numbers(folder):
    names = [row | {"label": LABELS[row["label"]]} for row in ROWS]
    numbers = pd.DataFrame(ROWS).astype({"label": np.int64})
    losses = MappingProxyType({"hard": 1.0})  # any mapping
    first, second = (distill_student("teacher", "student", rows, losses, SHORT).model for rows in (names, numbers))
    assert torch.equal(first.classifier.weight, second.classifier.weight)


def test_classes_may_be_named_by_numbers():
    stars = replace(task_with("1", "2"), name="stars")
    assert [_gold(value, stars, "rows[0].label") for value in (1, "2", 2.0)] == [0, 1, 1]  # pandas writes 2.0
    with pytest.raises(UserError, match=r"no label for the loss hard \(got 0\); allowed: 1, 2"):
        _gold(0, stars, "rows[0].label")  # names are numbers, so no number stands for a class
    assert _gold(1.0, task_with("bad", "good"), "rows[0].label") == 1


def test_a_list_of_classes_is_no_row_of_zeros_and_ones():
    tags = task_with("a", "b", "c", kind="multilabel")
    assert _gold(["c", 0], tags, "rows[0].label") == [2, 0]
    with pytest.raises(UserError, match=r"^rows\[0\]\.label: 0 and 1 for each class \(got \[1, 0, 1\]\)"):
        _gold([1, 0, 1], tags, "rows[0].label")
    two = task_with("a", "b", kind="multilabel")
    assert _gold(["b", "a"], two, "rows[0].label") == [1, 0] and _gold([1], two, "rows[0].label") == [1]
    for row in ([1, 0], [False, True]):
        with pytest.raises(UserError, match="0 and 1 for each class"):
            _gold(row, two, "rows[0].label")


def test_a_regression_keeps_its_head(folder):
    write_model(folder / "scorer", classifier("a/d", "0", ("LABEL_0",)))
    task = task_with(kind="regression")
    student = _load_student(folder / "scorer", task)
    assert torch.equal(student.classifier.weight, load_task_model(folder / "scorer").classifier.weight)


def test_a_classifier_goes_on_with_its_head(folder):
    first = distill_student("teacher", "student", ROWS, PREDICTION, SHORT)
    first.save("saved")
    none = DistillSettings(**vars(SHORT) | {"epochs": 0})
    again = distill_student("teacher", "saved", ROWS, PREDICTION, none).model
    assert torch.equal(again.classifier.weight, first.model.classifier.weight.cpu()) and again.labels == LABELS
    first.save("saved")  # in place of the earlier model
    (folder / "other").mkdir()
    (folder / "other/thesis.txt").write_text("")
    with pytest.raises(UserError, match=r"^folder: exists, and is no model \(got other\)"):
        first.save("other")
    assert (folder / "other/thesis.txt").is_file()


@pytest.mark.parametrize(
    ("labels", "problem_type", "gold", "loss"),
    [(("score",), None, 2.5, "logit_mse"), (("a", "b", "c"), "multi_label_classification", ["a", "c"], "prediction")],
)
def test_scores_and_several_labels(folder, labels, problem_type, gold, loss):
    config = load_bert(SequenceClassifier, "teacher").config
    config.__dict__["problem_type"] = problem_type
    save_model(SequenceClassifier(config, labels), folder / "teacher")
    rows = [{"one": "the king", "two": "old rome", "label": gold}] * 8
    settings = DistillSettings(**vars(SHORT) | {"text": ("one", "two")})
    result = distill_student("teacher", "student", rows, {loss: 1.0, "hard": 1.0}, settings)
    assert result.model.labels == labels and {"hard", loss} < set(result.curve[-1])


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"rows": []}, "rows: none; fix: give at least one"),
        ({"rows": [{"texts": "a"}]}, "rows[0].text: no text (got None); fix: settings.text"),
        ({"rows": [{"text": "\ud800"}]}, "rows[0].text: NUL or half a surrogate pair (got '\\ud800')"),
        ({"losses": {"hard": 1.0}, "rows": [{"text": "a"}]}, "rows[0].label: no label for the loss hard (got None)"),
        ({"losses": {"hard": 1.0}, "rows": [{"text": "a", "label": 2}]}, "rows[0].label: no label for the loss hard"),
        ({"losses": {"warmth": 1.0}}, "losses.warmth: is not a loss; allowed: hard, prediction"),
        (
            {"losses": {"attention": 1.0}, "layer_map": "upward"},
            "layer_map: must be uniform, top, bottom, mean",
        ),
        ({"losses": {"prediction": "x"}}, "losses.prediction: should be a valid number (got 'x')"),
        ({"losses": {"hidden": 1.0}, "layer_map": (1,)}, "layer_map: one layer for each of the student's (got 1)"),
        ({"losses": {"hidden": 1.0}, "layer_map": [1]}, "layer_map: one layer for each of the student's (got 1)"),
        ({"text": "text"}, "text: no columns (got 'text'); allowed: a tuple of one or two names"),
        ({"losses": ["prediction"]}, "losses: must be a mapping of keys to values (got"),
        ({"rows": ["a text"]}, "rows[0].text: no text (got None); fix: settings.text"),
        ({"optimizer": {"weight_decay": -1.0}}, "optimizer."),
        ({"tokenizer": 5}, "tokenizer: no folder and no object of this package (got int)"),
        (
            {"tokenizer": Tokenizer(WordPiece())},
            "tokenizer: no WordPiece tokenizer of a BERT (got a WordPiece after a NoneType)",
        ),
        (
            {
                "student": Architecture(layers=1, width=12, heads=3, feed_forward=24, dropout=0.0),
                "rows": [{"text": "the " * 150}],
                "max_length_tokens": 256,
            },
            "max_length_tokens: too long for the model (got 152 tokens); allowed: at most 128",
        ),
        ({"epochs": -1}, "epochs: should be greater than or equal to 0 (got -1)"),
        ({"max_length_tokens": 4}, "max_length_tokens: should be greater than or equal to 8 (got 4)"),
        ({"teacher": "absent"}, "absent/config.json: absent; fix: name a folder with config.json"),
    ],
)
def test_wrong_arguments_are_one_line(folder, changes, line):
    arguments = {"teacher": "teacher", "student": "student", "rows": ROWS, "losses": PREDICTION}
    own = {name: changes.pop(name) for name in list(changes) if name in arguments}
    with pytest.raises(UserError) as caught:
        distill_student(**arguments | own, settings=DistillSettings(**vars(SHORT) | changes))
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


def test_model_objects_need_a_tokenizer(folder):
    teacher = load_bert(SequenceClassifier, "teacher")
    with pytest.raises(UserError, match=r"^tokenizer: missing, an object has none; fix: name the tokenizer"):
        distill_student(teacher, "student", ROWS, PREDICTION)  # whose tokens may be others
    tokenizer = folder_tokenizer("teacher")
    settings = replace(SHORT, epochs=0, tokenizer=tokenizer)
    assert distill_student(teacher, "student", ROWS, PREDICTION, settings).tokenizer is tokenizer


def test_a_student_trained_for_another_task_is_refused(folder):
    config = load_bert(SequenceClassifier, "teacher").config
    names = [f"a class with a long name, number {number}" for number in range(8)]
    others = SequenceClassifier(config, (*names[:7], "other"))
    several = SequenceClassifier(replace(config, problem_type=MULTILABEL), LABELS)
    pairs = BiLstmClassifier(BiLstmConfig(config.vocab_size, 8, 4, 1, 4), LABELS, pair=True)
    for teacher, student, problem in (
        ("teacher", SequenceClassifier(config, LABELS[::-1]), r"class 0: acceptable\); allowed: unacceptable"),
        (SequenceClassifier(config, tuple(names)), others, r"class 7: other\); allowed: a class with a long name, num"),
        ("teacher", others, r"outputs: 8\); allowed: 2"),
        ("teacher", several, r"multilabel: True\); allowed: False"),
        ("teacher", pairs, r"texts of a row: 2\); allowed: 1"),
    ):
        with pytest.raises(UserError, match=rf"^student: it was made for another task than .*\(got {problem}"):
            distill_student(teacher, student, ROWS, PREDICTION, replace(SHORT, tokenizer="teacher"))


@pytest.mark.parametrize("loss", ["hidden", "pkd", "attention"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_layers_that_a_student_lacks_are_refused(folder, loss, family):
    save_family("roberta", folder / "roberta", LABELS)
    student = BiLstmClassifier(BiLstmConfig(83, 8, 4, 1, 4), LABELS, pair=False)
    line = f"^losses: {loss} compares layers that this student does not have; allowed: hard, prediction, logit_mse$"
    with pytest.raises(UserError, match=line):
        distill_student("teacher" if family == "bert" else family, student, ROWS, {loss: 1.0},
                        replace(SHORT, tokenizer="teacher"))  # fmt: skip


def test_classes_are_ordered_by_number_not_by_file():
    names = {str(number): f"c{number}" for number in sorted(range(12), key=str)}
    assert class_names({"id2label": names}, Path("config.json")) == tuple(f"c{number}" for number in range(12))
    with pytest.raises(UserError, match=r"^config.json: id2label: must name the classes 0, 1 and so on"):
        class_names({"id2label": ["c0"]}, Path("config.json"))
    with pytest.raises(UserError, match=r"^config.json: id2label: two classes have one name \(got 'b'\); fix: correct"):
        class_names({"id2label": {"0": "b", "1": "a", "2": "b"}}, Path("config.json"))


def test_a_model_of_transformers_is_refused_as_an_object(folder):
    with pytest.raises(UserError, match=r"^teacher: no folder and no object of this package \(got BertFor"):
        distill_student(AutoModelForSequenceClassification.from_pretrained("teacher"), "student", ROWS, PREDICTION)
    with pytest.raises(UserError, match=r"^student: no folder and no object of this package \(got MaskedLM"):
        distill_student("teacher", masked_lm(), ROWS, PREDICTION)


@pytest.mark.parametrize("family", ["roberta", "bert"])
def test_a_teacher_with_other_tokens_reads_its_own(folder, family):
    save_family(family, folder / family, LABELS)
    config = read_json(folder / "teacher/config.json")
    write_json(
        folder / "teacher/config.json", {key: 0.0 if "dropout" in key else value for key, value in config.items()}
    )
    texts, student = [row["text"] for row in ROWS], load_task_model("teacher")
    theirs, ours = (
        AutoModelForSequenceClassification.from_pretrained(name).eval()(
            **AutoTokenizer.from_pretrained(name)(texts, padding=True, return_tensors="pt")
        ).logits.double()
        for name in (family, "teacher")
    )  # fmt: skip
    expected = (theirs.softmax(1) * (theirs.log_softmax(1) - ours.log_softmax(1))).sum(1).mean()
    settings = replace(SHORT, epochs=1, batch_size=len(ROWS), tokenizer="teacher", max_length_tokens=64)
    (entry,) = distill_student(family, student, ROWS, PREDICTION, settings).curve
    assert entry["total"] == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(("family", "loss"), [("roberta", "hidden"), ("gpt2", "pkd")])
def test_a_teacher_of_another_family_lacks_targets(folder, family, loss):
    save_family(family, folder / family, LABELS)
    with pytest.raises(UserError, match=f"^losses: no targets for {loss} from this teacher; allowed: hard, prediction"):
        distill_student(family, "student", ROWS, {loss: 1.0}, SHORT)


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, tinybert; print([name for name in ('torch', 'pandas', 'pydantic') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "src", capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_a_student_with_fewer_tokens_is_refused(folder):
    line = r"^student: its vocabulary differs \(got 50 tokens\); allowed: "
    with pytest.raises(UserError, match=line):
        distill_student("teacher", small_classifier(labels=LABELS), ROWS, PREDICTION, SHORT)
