"""Task teachers of third parties: what params allow with them, by config.json alone."""

import copy
import json
from pathlib import Path

import pytest

from tests.support.hub_client import use_hub
from tests.support.hub_server import Repository, serve_hub
from tests.support.project import tiny_params
from tinybert.config.load import check_params
from tinybert.config.sources import check_teachers
from tinybert.pipeline.errors import UserError

SHA = "a" * 40
HUB = {"hub": {"model": "a/b", "revision": SHA}}
FILES = {"train": "t.csv", "dev": "d.csv", "id": "id", "probabilities": ["p0", "p1"], "missing": "drop"}


def tree(*, losses=("prediction",), intermediate=None, **task) -> dict:
    """Tiny params of one student with these losses, and `task`'s keys in place of the task's own."""
    found = copy.deepcopy(tiny_params())
    phase = {"losses": dict.fromkeys(losses, 1.0), "temperature": 2.0, "relation_heads": 2}
    found["students"]["tinybert4"] |= {"prediction": phase, "intermediate": intermediate}
    found["tasks"]["students"] = found["quantization"]["models"] = ["tinybert4"]
    found["tasks"]["cola"] = found["tasks"]["cola"] | task
    return found


def predicted(**files) -> dict:
    predictions = {key: value for key, value in (FILES | files).items() if value is not None}
    return {"finetuned_teacher": {"predictions": predictions}, "augmented_copies": 0}


def folder_of(path: Path, family: str) -> dict:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": family}))
    return {"folder": str(path)}


@pytest.mark.parametrize("losses", [("hard",), ("prediction", "logit_mse", "hard")])
def test_predictions_teach_by_logits(losses):
    check_params(tree(losses=losses, **predicted()))


@pytest.mark.parametrize(
    ("params", "line"),
    [
        (
            tree(**predicted() | {"augmented_copies": 2}),
            "tasks.cola.augmented_copies: finetuned_teacher has no predict",
        ),
        (tree(**predicted(label="l")), "predictions: must name one of probabilities, logits and label (got probab"),
        (
            tree(**predicted(probabilities=None)),
            "predictions: must name one of probabilities, logits and label (got none)",
        ),
        (tree(**predicted(missing="guess")), "cola.finetuned_teacher.predictions.missing: should be 'gold' or 'drop'"),
        (tree(**predicted(id=None)), "tasks.cola.finetuned_teacher.predictions.id: missing"),
        (tree(**{"finetuned_teacher": HUB | {"predictions": FILES}}), "or {predictions: {train, dev, id, ...}}"),
        (
            tree(losses=("pkd",), **predicted()),
            "students.tinybert4.prediction.losses: no targets for pkd: tasks.cola.finetuned_teacher.predictions names"
            " files of predictions (got pkd); allowed: hard, prediction, logit_mse; fix: use these",
        ),
        (
            tree(losses=("logit_mse",), **predicted(missing="gold")),
            "(got logit_mse); allowed: hard, prediction; fix: use these",
        ),
        (
            tree(losses=("logit_mse",), **predicted(probabilities=None, label="l")),
            "(got logit_mse); allowed: hard, prediction; fix: use these",
        ),
        (
            tree(intermediate={"losses": {"attention": 1.0}}, **predicted()),
            "students.tinybert4.intermediate.losses: no targets for attention: tasks.cola.finetuned_teacher",
        ),
    ],
)
def test_what_predictions_cannot_give_is_refused(params, line):
    with pytest.raises(UserError) as caught:
        check_params(params)
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_a_teacher_without_a_model_of_ours_is_not_exported():
    params = tree(**predicted())
    params["quantization"]["models"] = ["teacher", "tinybert4"]
    with pytest.raises(UserError, match=r"quantization\.models: teacher cannot be exported: .*; fix: remove teacher"):
        check_params(params)


def test_the_dev_file_follows_the_tables():
    data = {"train": "t.csv", "texts": ["text"], "label": "label"}
    params = tree(**predicted(dev=None) | {"data": data})
    params["tasks"]["mine"] = params["tasks"].pop("cola")
    params["tasks"]["run"] = ["mine"]
    check_params(params)
    params["tasks"]["mine"]["data"]["dev"] = "d.csv"
    with pytest.raises(UserError, match=r"finetuned_teacher\.predictions\.dev: data\.dev and this are files both"):
        check_params(params)


@pytest.mark.parametrize("key", ["finetuned_teacher", "teacher_encoder"])
def test_another_family_teaches_rows_only(tmp_path, key):
    source = folder_of(tmp_path / "model", "roberta")

    def params(**settings):
        found = tree(**settings)
        (found["tasks"]["cola"] if key == "finetuned_teacher" else found["tasks"])[key] = source
        return check_params(found)

    name = "tasks.cola.finetuned_teacher" if key == "finetuned_teacher" else "tasks.teacher_encoder"
    check_teachers(params(losses=("prediction", "logit_mse", "hard", "pkd")))
    for loss in ("attention", "hidden", "embedding", "cosine", "value_relation"):
        with pytest.raises(UserError) as caught:
            check_teachers(params(intermediate={"losses": {loss: 1.0}, "relation_heads": 2}))
        assert str(caught.value) == (
            f"students.tinybert4.intermediate.losses: no targets for {loss}: {name} names a roberta with its own "
            f"vocabulary (got {loss}); allowed: hard, prediction, logit_mse, pkd; fix: use these, or set "
            "students.tinybert4.intermediate to null"
        )


def test_a_bert_may_teach_all(tmp_path):
    source = folder_of(tmp_path / "model", "bert")
    check_teachers(check_params(tree(intermediate={"losses": {"attention": 1.0}}, finetuned_teacher=source)))


def test_a_folder_without_config_is_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    for folder, line in (("empty", "config.json: absent"), ("nowhere", "finetuned_teacher.folder: not a folder")):
        with pytest.raises(UserError, match=line):
            check_teachers(check_params(tree(finetuned_teacher={"folder": str(tmp_path / folder)})))


def test_only_config_json_is_fetched_from_the_hub(tmp_path, monkeypatch):
    config = json.dumps({"model_type": "electra"}).encode()
    files = {"config.json": config, "model.safetensors": b"large", "tokenizer.json": b"{}"}
    with serve_hub(Repository("models", "a/b", SHA, files)) as hub:
        use_hub(monkeypatch, hub.endpoint, tmp_path)
        check_teachers(check_params(tree(finetuned_teacher=HUB)))
        with pytest.raises(UserError, match=r"cola\.finetuned_teacher names a electra with its own vocabulary"):
            check_teachers(check_params(tree(losses=("hidden",), finetuned_teacher=HUB)))
        assert {line.rsplit("/", 1)[1] for line in hub.requests if "/resolve/" in line} == {"config.json"}
