"""Any model folder, tokenizer folder, checkpoint or teacher cache is whole, or noticed."""

import copy
import json
import pickle
from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import save

from tests.faults.test_properties_text import TOKENIZER
from tests.support.builders import classifier, masked_lm
from tests.support.properties import REFUSED, as_json, damaged_bytes, damaged_trees, outcome
from tests.unit.distill.test_teacher_cache import cached_teacher
from tinybert.config.tasks import TASKS
from tinybert.data.sequences import Sequences, sequences_writer
from tinybert.data.tokenizer import folder_tokenizer, load_tokenizer, save_tokenizer
from tinybert.distill.resume import Checkpoint
from tinybert.models.bert import BertConfig, SequenceClassifier
from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig
from tinybert.models.model_folders import load_bert, load_classifier, load_model, load_pretrained, save_model

pytestmark = pytest.mark.properties
SMALL = BertConfig(20, 4, 1, 2, 4, max_position_embeddings=8)
MODELS = {
    "masked_lm": masked_lm(SMALL),
    "classifier": classifier(SMALL),
    "bilstm": BiLstmClassifier(BiLstmConfig(20, 4, 4, 1, 4), ("no", "yes"), pair=False),
}


def load_finetuned(folder):
    return load_bert(SequenceClassifier, folder)


READERS = [load_model, load_pretrained, load_finetuned, lambda folder: load_classifier(folder, TASKS["mrpc"])]


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> dict[str, Path]:
    """A folder of each model, not to be changed."""
    folders = {}
    for name, model in MODELS.items():
        folders[name] = tmp_path_factory.mktemp(name)
        save_model(model, folders[name])
    return folders


@cache
def config_of(name: str) -> dict:
    model = MODELS[name]
    shared = {"architectures": [model.architecture], "model_type": model.model_type}
    shared |= {} if name == "masked_lm" else {"id2label": {"0": "no", "1": "yes"}}
    return shared | ({"pair": False} if name == "bilstm" else {}) | asdict(model.config)


def config_files(name: str) -> st.SearchStrategy[bytes]:
    whole = json.dumps(config_of(name)).encode()
    return st.one_of(damaged_bytes(whole), damaged_trees(config_of(name)).map(as_json))


@st.composite
def weight_files(draw, name: str) -> bytes:
    """A safetensors file with other tensors, with damaged bytes, or a pickle in its place."""
    tensors = {key: value.clone() for key, value in MODELS[name].state_dict().items()}
    chosen = draw(st.sampled_from(sorted(tensors)))
    kind = draw(st.sampled_from(["bytes", "bytes", "dtype", "shape", "missing", "surplus", "value", "pickle"]))
    if kind == "dtype":
        kinds = [torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.float8_e5m2]
        tensors[chosen] = tensors[chosen].to(draw(st.sampled_from(kinds)))
    elif kind == "shape":
        tensors[chosen] = torch.zeros(draw(st.lists(st.integers(0, 5), max_size=3)))
    elif kind == "missing":
        del tensors[chosen]
    elif kind == "surplus":
        tensors[draw(st.text(max_size=5))] = torch.zeros(2)
    elif kind == "value":
        tensors[chosen].view(-1)[0] = draw(st.sampled_from([float("nan"), float("inf"), 1e38]))
    elif kind == "pickle":
        return pickle.dumps({key: value.numpy() for key, value in tensors.items()})
    content = save(tensors)
    return draw(damaged_bytes(content)) if kind == "bytes" else content


@st.composite
def model_folders(draw) -> tuple[str, str, bytes]:
    """A model, one of its files, and what is in it."""
    name = draw(st.sampled_from([*MODELS]))
    file = draw(st.sampled_from(["config.json", "model.safetensors"]))
    return name, file, draw(config_files(name) if file == "config.json" else weight_files(name))


@given(model_folders(), st.sampled_from(READERS))
@example(("masked_lm", "config.json", as_json(config_of("masked_lm") | {"vocab_size": 10**12})), load_model)
@example(("masked_lm", "config.json", as_json(config_of("masked_lm") | {"num_attention_heads": 0})), load_model)
@example(("masked_lm", "config.json", as_json(config_of("masked_lm") | {"vocab_size": 9 * 10**6})), load_pretrained)
@example(("classifier", "config.json", b"[1]"), load_model)
@example(("classifier", "config.json", b"[" * 100_000), load_finetuned)
@example(("classifier", "config.json", as_json(config_of("classifier") | {"architectures": 5})), load_model)
@example(("classifier", "config.json", as_json(config_of("classifier") | {"id2label": {}})), load_model)
def test_model_folders(saved, tmp_path, drawn, load):
    name, file, content = drawn
    for other in saved[name].iterdir():
        (tmp_path / other.name).write_bytes(content if other.name == file else other.read_bytes())
    found = outcome(lambda: load(tmp_path), names=str(tmp_path))
    if found is not REFUSED:
        model = found[0] if isinstance(found, tuple) else found
        assert model.parameter_count < 10_000
        assert all(weight.dtype == torch.float32 and weight.isfinite().all() for weight in model.parameters())


# --- tokenizers ------------------------------------------------------------------------------------------------------


@st.composite
def tokenizer_folders(draw) -> dict[str, bytes]:
    """The files of a tokenizer folder, one of them damaged."""
    pieces = sorted(TOKENIZER.get_vocab(), key=TOKENIZER.get_vocab().get)
    files = {"vocab.txt": "\n".join(pieces).encode(), "tokenizer_config.json": b'{"do_lower_case": true}'}
    whole = json.loads(TOKENIZER.to_str())
    kind = draw(st.sampled_from(["vocab.txt", "tokenizer_config.json", "tokenizer.json", "tree"]))
    if kind == "tree":
        small = {key: value for key, value in whole.items() if key != "model"}
        files["tokenizer.json"] = as_json(draw(damaged_trees(small)) | {"model": whole["model"]})
    elif kind == "tokenizer.json":
        files[kind] = draw(damaged_bytes(json.dumps(whole).encode()))
    else:
        files[kind] = draw(damaged_bytes(files[kind]))
    return files


@given(tokenizer_folders())
@example({"vocab.txt": b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nx\nx", "tokenizer_config.json": b"{}"})
@example({"vocab.txt": b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nx", "tokenizer_config.json": b"5"})
def test_tokenizer_folders(tmp_path, files):
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink(missing_ok=True)
        if name in files:
            (tmp_path / name).write_bytes(files[name])
    tokenizer = outcome(lambda: folder_tokenizer(tmp_path), names=str(tmp_path))
    if tokenizer is not REFUSED:
        again = tmp_path / "again"
        again.mkdir(exist_ok=True)
        save_tokenizer(tokenizer, again)
        text = "the King fought [MASK]"
        assert load_tokenizer(again).encode(text).ids == tokenizer.encode(text).ids
        assert len((again / "vocab.txt").read_text(encoding="utf-8").split("\n")) > tokenizer.get_vocab_size()


# --- what training keeps ---------------------------------------------------------------------------------------------

STATE = {"step": 3, "curve": [1.5, 2.5], "module": {"weight": torch.arange(6.0).view(2, 3)}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> tuple[bytes, float]:
    made = Checkpoint(tmp_path_factory.mktemp("checkpoints"), lambda: "run")
    made.save(STATE)
    return made.path.read_bytes(), made.load()["seconds"]


@given(st.data())
def test_checkpoints_are_whole_or_none(tmp_path, checkpoint, data):
    whole, seconds = checkpoint
    (tmp_path / "run.pt").write_bytes(data.draw(damaged_bytes(whole)))
    found = Checkpoint(tmp_path, lambda: "run", is_writer=False).load()
    if found is not None:
        assert torch.equal(found.pop("module")["weight"], STATE["module"]["weight"])
        assert found == {"step": STATE["step"], "curve": STATE["curve"], "seconds": seconds}


@pytest.fixture(scope="module")
def teacher_cache(tmp_path_factory):
    return cached_teacher(tmp_path_factory.mktemp("outputs"))


@given(st.data())
def test_cached_outputs_are_the_teachers_or_absent(teacher_cache, data):
    file = data.draw(st.sampled_from(teacher_cache.files))
    whole = file.path.read_bytes()
    rows = list(range(len(file.lengths)))
    before = file.read(rows)
    try:
        file.path.write_bytes(data.draw(damaged_bytes(whole)))
        found = copy.copy(file)
        assert not found.open() or torch.equal(found.read(rows), before)
    finally:
        file.path.write_bytes(whole)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("blocks")
    with sequences_writer(folder, np.dtype(np.uint16)) as append:
        append(np.arange(9, dtype=np.uint16), np.array([4, 5]))
    return folder


@given(st.data())
def test_blocks(blocks, tmp_path, data):
    name = data.draw(st.sampled_from(["tokens.npy", "offsets.npy"]))
    for file in blocks.iterdir():
        content = file.read_bytes()
        (tmp_path / file.name).unlink(missing_ok=True)
        (tmp_path / file.name).write_bytes(data.draw(damaged_bytes(content)) if file.name == name else content)
    found = outcome(lambda: Sequences.open(tmp_path), names=str(tmp_path))
    if found is not REFUSED:
        assert [len(found[index]) for index in range(len(found))] == found.lengths.tolist()
