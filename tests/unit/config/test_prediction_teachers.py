"""Task teachers of which only predictions are known: what params allow with them."""

import pytest

from tests.support.project import tiny_params
from tinybert.config.load import check_params
from tinybert.pipeline.errors import UserError

SHA = "a" * 40
HUB = {"hub": {"model": "a/b", "revision": SHA}}
FILES = {"train": "t.csv", "dev": "d.csv", "id": "id", "probabilities": ["p0", "p1"], "missing": "drop"}


def tree(*, losses=("prediction",), intermediate=None, **task) -> dict:
    """Tiny params of one student with these losses, and `task`'s keys in place of the task's own."""
    found = tiny_params()
    phase = {"losses": dict.fromkeys(losses, 1.0), "temperature": 2.0}
    found["students"]["tinybert4"] |= {"prediction": phase, "intermediate": intermediate}
    found["tasks"]["students"] = found["quantization"]["models"] = ["tinybert4"]
    found["tasks"]["cola"] = found["tasks"]["cola"] | task
    return found


def predicted(**files) -> dict:
    predictions = {key: value for key, value in (FILES | files).items() if value is not None}
    return {"finetuned_teacher": {"predictions": predictions}, "augmented_copies": 0}


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
    params["tasks"]["mine"]["data"] |= {"dev": None, "unlabeled": "u.csv"}
    with pytest.raises(UserError, match=r"tasks\.mine\.data\.unlabeled: finetuned_teacher has no predictions for"):
        check_params(params)
