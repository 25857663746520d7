"""Model folders: what is written, what is read, and what is rejected with one line."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.builders import TEACHER, classifier, masked_lm, task_with
from tests.support.root import ROOT
from tinybert import cli
from tinybert.models.bert import MaskedLM, SequenceClassifier
from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig
from tinybert.models.model_folders import (
    load_bert,
    load_classifier,
    load_model,
    load_pretrained,
    load_task_model,
    read_provenance,
    save_model,
)
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import write_json


def test_a_classifier_takes_the_encoder_and_draws_a_new_head(tmp_path):
    save_model(masked_lm(), tmp_path)
    torch.manual_seed(1)
    model = load_classifier(tmp_path, task_with("a", "b", "c"))
    ours, theirs = model.state_dict(), masked_lm().state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours if name.startswith("bert."))
    assert ours["classifier.weight"].shape == (3, 12)
    assert ours["classifier.weight"].std() > 0.005


def test_unusable_folders_have_their_own_errors(tmp_path):
    with pytest.raises(UserError, match=r"config\.json: absent"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}')
    with pytest.raises(UserError, match=r"model_type: not supported \(got 'gpt2'\)"):
        load_model(tmp_path)
    save_model(masked_lm(), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors: absent"):
        load_model(tmp_path)


def test_a_model_of_another_kind_is_rejected(tmp_path):
    for kind, model in (("lm", masked_lm()), ("classifier", classifier())):
        (tmp_path / kind).mkdir()
        save_model(model, tmp_path / kind)
    assert isinstance(load_bert(MaskedLM, tmp_path / "lm"), MaskedLM)
    assert isinstance(load_task_model(tmp_path / "classifier"), SequenceClassifier)
    with pytest.raises(
        UserError, match=r"not supported here \(got \['BertForSequ.*\]\); allowed: BertForMaskedLM; fix"
    ):
        load_bert(MaskedLM, tmp_path / "classifier")
    with pytest.raises(UserError, match=r"\(got \['BertForMaskedLM'\]\); allowed: BertForSequ.*, BiLstmForSequ"):
        load_task_model(tmp_path / "lm")


def test_a_folder_without_all_weights_is_rejected(tmp_path):
    save_model(classifier(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file(
        {name: part for name, part in weights.items() if "classifier" not in name}, tmp_path / "model.safetensors"
    )
    with pytest.raises(UserError, match=r"lacks classifier\.bias and 1 more weights"):
        load_model(tmp_path)
    model = load_classifier(tmp_path, task_with("a", "b"))  # which gets a new head
    assert torch.equal(model.bert.pooler.dense.weight, weights["bert.pooler.dense.weight"])


def test_damaged_folders_have_one_line(tmp_path):
    save_model(masked_lm(), tmp_path)
    config = (tmp_path / "config.json").read_text()
    for text, named in (
        (config[:40], "not JSON"),
        (
            config.replace('"hidden_size": 12', '"hidden_size": "x"'),
            r"hidden_size: Input should be a valid integer \(got 'x'\)",
        ),
        (config.replace('"hidden_size": 12', '"hidden_size": 24'), "wrong shape"),
        (config.replace('"BertForMaskedLM"', ""), r"architectures: not supported here \(got \[\]\)"),
    ):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match=named) as error:
            load_model(tmp_path)
        assert "\n" not in str(error.value)
    (tmp_path / "config.json").write_text(config)
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[:100])
    with pytest.raises(UserError, match="damaged"):
        load_model(tmp_path)


def test_a_third_party_encoder_loads_under_old_names(tmp_path):
    save_model(masked_lm(TEACHER), tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    encoder = [name for name in stored if name.startswith("bert.") and "pooler" not in name]
    old_names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    foreign = {}
    for name in encoder:
        ending = ".".join(name.split(".")[-2:])
        foreign[name.removeprefix("bert.").replace(ending, old_names.get(ending, ending))] = stored[name]
    save_file(foreign, tmp_path / "model.safetensors")
    model, has_head = load_pretrained(tmp_path)
    assert not has_head
    assert len(encoder) > 50
    assert all(torch.equal(model.state_dict()[name], stored[name]) for name in encoder)
    fresh = load_classifier(tmp_path, task_with("a", "b"))  # with a new pooler
    assert all(torch.equal(fresh.state_dict()[name], stored[name]) for name in encoder)


def test_checkpoints_without_an_encoder_are_rejected(tmp_path):
    save_model(masked_lm(TEACHER), tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    short = {name: value for name, value in stored.items() if "layer.3.output.dense" not in name}
    save_file(short, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"lacks bert\.encoder\.layer\.3\.output\.dense\.bias and 1 more"):
        load_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="allowed: safetensors, no pickles"):
        load_pretrained(tmp_path)


class Payload:
    """Unpickling it makes the file `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_a_pickle_is_rejected_and_never_opened(tmp_path, name):
    save_model(masked_lm(TEACHER), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).write_bytes(pickle.dumps(Payload(tmp_path / "run")))
    fix = "run tinybert convert" if name.endswith("bin") else "damaged"
    with pytest.raises(UserError, match=fix) as error:
        load_pretrained(tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()
    pickle.loads((tmp_path / name).read_bytes())
    assert (tmp_path / "run").exists(), "the payload would have run"


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_of_weights_is_converted_once(tmp_path, legacy):
    save_model(masked_lm(TEACHER), tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    tied = stored | {"cls.predictions.decoder.weight": stored["bert.embeddings.word_embeddings.weight"]}
    torch.save(tied, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    cli.main(["convert", str(tmp_path)])
    assert load_file(tmp_path / "model.safetensors").keys() == tied.keys()
    model, has_head = load_pretrained(tmp_path)
    assert has_head and all(torch.equal(part, stored[name]) for name, part in model.state_dict().items())
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(SystemExit, match=r"model\.safetensors: exists; fix: nothing is left to do"):
        cli.main(["convert", str(tmp_path)])
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_a_pickle_of_anything_else_is_refused(tmp_path):
    path, target = tmp_path / "pytorch_model.bin", tmp_path / "model.safetensors"

    def refused(line: str) -> None:
        with pytest.raises(SystemExit) as ended:
            cli.main(["convert", str(tmp_path)])
        assert line in str(ended.value) and "\n" not in str(ended.value)
        assert not target.exists() and not (tmp_path / "run").exists()

    refused("absent; fix: name a folder with pytorch_model.bin")
    weights = torch.zeros(2)
    for hostile in (Payload(tmp_path / "run"), {"weight": weights, "other": Payload(tmp_path / "run")}):
        torch.save(hostile, path)
        refused("no file of weights")
        path.write_bytes(pickle.dumps(hostile))
        refused("no file of weights")
    for other in ({"state_dict": {"weight": weights}}, [weights], {}, {"epoch": 3}):
        torch.save(other, path)
        refused("holds more than weights by name")
    torch.save({"weight": weights}, path)
    path.write_bytes(path.read_bytes()[:100])
    refused("no file of weights")
    torch.save({"weight": torch.eye(3).to_sparse()}, path)
    refused("no file of weights")
    for content in (b"", b"\x80\x02."):  # nothing, and a pickle of nothing
        path.write_bytes(content)
        refused("no file of weights")


def test_code_that_a_checkpoint_brings_never_runs(tmp_path):
    save_model(masked_lm(TEACHER), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "remote.Config", "AutoModelForMaskedLM": "remote.Model"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "remote.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')\n")
    model, _ = load_pretrained(tmp_path)
    assert type(model) is MaskedLM
    assert not (tmp_path / "run").exists()
    assert "remote" not in sys.modules


def test_loading_a_folder_does_not_import_the_compiler(tmp_path):
    """Weights drawn on the meta device, where shapes are checked, would import it: more than a second."""
    for number, model in enumerate((masked_lm(), BiLstmClassifier(BiLstmConfig(20, 4, 4, 1, 4), ("a",), pair=False))):
        (tmp_path / str(number)).mkdir()
        save_model(model, tmp_path / str(number))
    script = """import sys
from tinybert.models.model_folders import load_model
for folder in sys.argv[1:]:
    load_model(folder)
print([name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules])"""
    command, environment = [sys.executable, "-c", script, tmp_path / "0", tmp_path / "1"], {"PYTHONPATH": "src"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=os.environ | environment)
    assert done.stdout.strip() == "[]"


def test_a_folder_without_history_has_none(tmp_path):
    assert read_provenance(tmp_path) == []


def test_provenance_is_read_in_order(tmp_path):
    entries = [{"stage": "general_distill", "steps": 7}, {"stage": "prune", "steps": 0}]
    write_json(tmp_path / "training.json", entries)
    assert read_provenance(tmp_path) == entries


def test_a_bilstm_config_that_does_not_fit_itself_is_rejected(tmp_path):
    save_model(BiLstmClassifier(BiLstmConfig(20, 4, 4, 1, 4), ("no", "yes"), pair=False), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"pad_token_id": 20}))
    with pytest.raises(UserError, match=r"config\.json: pad_token_id: must be below vocab_size \(got 20\)"):
        load_model(tmp_path)


@pytest.mark.parametrize("kind", ["classification", "multilabel"])
def test_config_says_whether_rows_may_have_several_labels(tmp_path, kind):
    save_model(masked_lm(), tmp_path)
    assert "problem_type" not in json.loads((tmp_path / "config.json").read_text())
    save_model(load_classifier(tmp_path, task_with("a", "b", kind=kind)), tmp_path)
    expected = "multi_label_classification" if kind == "multilabel" else "single_label_classification"
    assert json.loads((tmp_path / "config.json").read_text())["problem_type"] == expected
    again = load_task_model(tmp_path)
    assert again.config.problem_type == expected and again.labels == ("a", "b")
    # The head of another task says what that is.
    assert load_classifier(tmp_path, task_with("a", "b", "c")).config.problem_type is None
