"""The check of third-party task teachers before a run: local ones are loaded, of others config.json is read."""

import json

import pytest

from tests.support.families import DECODERS, FAMILIES, save_family
from tests.support.hub_client import use_hub
from tests.support.hub_content import bert, classifier, write_model
from tests.support.hub_server import Repository, serve_hub
from tests.support.project import set_key
from tests.unit.config.test_prediction_teachers import HUB, SHA, tree
from tinybert.config.load import check_params
from tinybert.pipeline.errors import UserError
from tinybert.source_checks import check_sources

LABELS = ("unacceptable", "acceptable")
KEYS = ["tasks.cola.finetuned_teacher", "tasks.teacher_encoder", "tasks.cola.teacher.encoder"]


def check(source: dict, key: str = KEYS[0], **settings) -> None:
    check_sources(check_params(set_key(tree(**settings), key, source)))


def mistakes(*arguments, **settings) -> list[str]:
    with pytest.raises(UserError) as caught:
        check(*arguments, **settings)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("key", KEYS)
def test_another_family_teaches_rows_only(tmp_path, key):
    source = {"folder": str(save_family("roberta", tmp_path, LABELS))}
    check(source, key, losses=("prediction", "logit_mse", "hard", "pkd"))
    for loss in ("attention", "hidden", "embedding", "cosine"):
        assert mistakes(source, key, intermediate={"losses": {loss: 1.0}}) == [
            f"students.tinybert4.intermediate.losses: no targets for {loss}: {key} names a roberta with its own "
            f"vocabulary (got {loss}); allowed: hard, prediction, logit_mse, pkd; fix: use these, or set "
            "students.tinybert4.intermediate to null"
        ]


def test_a_student_cannot_be_cut_out_of_another_family(tmp_path):
    found = tree(finetuned_teacher={"folder": str(save_family("roberta", tmp_path, LABELS))})
    found["students"]["tinybert4"] |= {"init": {"teacher": "uniform", "per_task": True}, "general": None}
    with pytest.raises(UserError, match=r"^students.tinybert4.init.per_task: no layers to start from: tasks.cola.fine"):
        check_sources(check_params(found))


@pytest.mark.parametrize("family", ["xlm-roberta", "distilbert", "electra", "deberta-v2", "modernbert"])
def test_encoders_teach_by_states_of_first_tokens(tmp_path, family):
    assert family in FAMILIES
    check({"folder": str(save_family(family, tmp_path, LABELS))}, losses=("pkd", "prediction"))


@pytest.mark.parametrize("family", DECODERS)
def test_decoders_teach_by_logits_only(tmp_path, family):
    source = {"folder": str(save_family(family, tmp_path, LABELS))}
    check(source, losses=("prediction", "logit_mse", "hard"))
    assert mistakes(source, losses=("prediction", "pkd")) == [
        f"students.tinybert4.prediction.losses: no targets for pkd: tasks.cola.finetuned_teacher names a {family} with "
        "its own vocabulary (got pkd); allowed: hard, prediction, logit_mse; fix: use these"
    ]


def test_what_is_wrong_with_a_folder_is_found(tmp_path):
    folder = save_family("roberta", tmp_path / "model", ("yes", "no"))
    key, source = "tasks.cola.finetuned_teacher", {"folder": str(folder)}
    assert mistakes(source)[0].startswith(f"{key}: unknown classes (got yes, no); allowed: unacceptable, acceptable")
    save_family("roberta", folder, ("a", "b", "c"))
    assert mistakes(source)[0].startswith(f"{key}: wrong number of outputs (got 3); allowed: 2")
    (folder / "tokenizer.json").write_text("{}")
    assert mistakes(source)[0].startswith(f"{key}: {folder} cannot be loaded (")
    (folder / "model.safetensors").unlink()
    assert mistakes(source)[0].startswith(f"{key}: {folder} has no model.safetensors")


def test_layer_maps_are_compared_with_a_foreign_depth(tmp_path):
    found = tree(intermediate={"losses": {"pkd": 1.0}, "layer_map": [1, 3]})
    found["teacher"]["synthetic"]["architecture"]["layers"] = 3
    source = {"folder": str(save_family("roberta", tmp_path, LABELS))}  # two layers
    found["tasks"]["cola"] = found["tasks"]["cola"] | {"finetuned_teacher": source}
    with pytest.raises(UserError) as caught:
        check_sources(check_params(found))
    assert str(caught.value).startswith(
        "students.tinybert4.intermediate.layer_map: 3 is beyond the teacher's layers; allowed: 1 to 2"
    )


def test_a_bert_may_teach_all(tmp_path):
    write_model(tmp_path / "model", classifier("a/c", "0", LABELS))
    settings = {"intermediate": {"losses": {"hidden": 1.0}}}
    check({"folder": str(tmp_path / "model")}, **settings)


def test_a_bert_has_other_tokens_than_a_smaller_vocabulary(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert", "vocab_size": 30522}')
    (line,) = mistakes({"folder": str(tmp_path)}, losses=("hidden",))
    assert "no targets for hidden: tasks.cola.finetuned_teacher names a bert with its own vocabulary" in line


def test_a_bert_with_another_vocabulary_than_the_local_teacher(tmp_path):
    write_model(tmp_path / "teacher", bert("a/b", "0"))
    found = tree(intermediate={"losses": {"hidden": 1.0}})
    found["teacher"] |= {"source": "local", "local": {"folder": str(tmp_path / "teacher")}}
    found["students"]["tinybert4"]["init"] = "random"
    for student in found["students"].values():
        student["init"] = "random"
    source = {"folder": str(save_family("bert", tmp_path / "model", LABELS))}
    found["tasks"]["cola"] = found["tasks"]["cola"] | {"finetuned_teacher": source}
    with pytest.raises(UserError, match=r"no targets for hidden: .* names a bert with its own vocabulary"):
        check_sources(check_params(found))


def test_a_folder_without_config_is_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    for folder, line in (("empty", "config.json: absent"), ("nowhere", "finetuned_teacher.folder: not a folder")):
        (found,) = mistakes({"folder": str(tmp_path / folder)})
        assert line in found


def test_only_config_json_is_fetched_from_the_hub(tmp_path, monkeypatch):
    config = json.dumps({"model_type": "electra"}).encode()
    files = {"config.json": config, "model.safetensors": b"large", "tokenizer.json": b"{}"}
    with serve_hub(Repository("models", "a/b", SHA, files)) as hub:
        use_hub(monkeypatch, hub.endpoint, tmp_path)
        check(HUB)
        (line,) = mistakes(HUB, losses=("hidden",))
        assert "cola.finetuned_teacher names a electra with its own vocabulary" in line
        assert {line.rsplit("/", 1)[1] for line in hub.requests if "/resolve/" in line} == {"config.json"}


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            {"model_type": "electra", "id2label": {"0": "a", "1": "b", "2": "c"}},
            "tasks.cola.finetuned_teacher: wrong number of outputs (got 3); allowed: 2; fix: choose a model",
        ),
        (
            {"model_type": "distilbert", "n_layers": 2},
            "students.tinybert4.intermediate.layer_map: 3 is beyond the teacher's layers; allowed: 1 to 2",
        ),
        ({"model_type": "future"}, "tasks.cola.finetuned_teacher: config.json cannot be read (The checkpoint"),
    ],
)
def test_classes_and_layers_of_a_hub_model_are_compared(tmp_path, monkeypatch, config, line):
    found = tree(intermediate={"losses": {"pkd" if "n_layers" in config else "hard": 1.0}, "layer_map": [1, 3]})
    if "n_layers" not in config:
        del found["students"]["tinybert4"]["intermediate"]["layer_map"]
    found["teacher"]["synthetic"]["architecture"]["layers"] = 3
    found["tasks"]["cola"] = found["tasks"]["cola"] | {"finetuned_teacher": HUB}
    with serve_hub(Repository("models", "a/b", SHA, {"config.json": json.dumps(config).encode()})) as hub:
        use_hub(monkeypatch, hub.endpoint, tmp_path)
        with pytest.raises(UserError) as caught:
            check_sources(check_params(found))
    assert str(caught.value).startswith(line)


def test_an_encoder_that_tasks_share_is_opened_once(tmp_path, monkeypatch):
    from tinybert.distill import task_teacher

    loaded = []
    load = task_teacher.load_foreign
    monkeypatch.setattr(
        task_teacher, "load_foreign", lambda *args, **options: loaded.append(args) or load(*args, **options)
    )
    found = tree()
    found["tasks"] |= {"run": ["cola", "sst2"], "sst2": found["tasks"]["cola"]}
    found["tasks"]["teacher_encoder"] = {"folder": str(save_family("electra", tmp_path, head=False))}
    check_sources(check_params(found))
    assert len(loaded) == 1
    found["tasks"]["sst2"] = found["tasks"]["sst2"] | {"max_length_tokens": 64}
    with pytest.raises(UserError, match=r"^tasks\.sst2\.max_length_tokens: too long for the model \(got 64 tokens\)"):
        check_sources(check_params(found))
