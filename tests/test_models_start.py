"""How students and teachers start."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.builders import STUDENT, TEACHER, batch, classifier, masked_lm
from tinybert.errors import UserError
from tinybert.models.bert import MaskedLM
from tinybert.models.folder import save_model
from tinybert.models.pretrained import load_pretrained
from tinybert.models.start import start_student
from tinybert.models.teacher import start_teacher
from tinybert.recipe import Start

SAME_WIDTH = SimpleNamespace(kind="bert", layers=2, width=24, heads=3, feed_forward=48, dropout=0.1)
NARROW = SimpleNamespace(kind="bert", layers=2, width=12, heads=3, feed_forward=24, dropout=0.1)
BILSTM = SimpleNamespace(kind="bilstm", layers=1, embedding=8, width=6, feed_forward=5, dropout=0.1)


def start(architecture, **origin):
    """From the same teacher each time; `origin`: the keys of the start section."""
    recipe = SimpleNamespace(architecture=architecture, start=Start(**origin))
    sample = [batch((9, 8, 7), 9, seed=seed) for seed in range(8)]
    return start_student(recipe, masked_lm(TEACHER), sample=lambda: sample)


def test_random_start_has_the_recipes_shape_and_the_teachers_vocabulary():
    started = start(NARROW)
    assert started.model.config == replace(STUDENT, max_position_embeddings=32)
    assert started.model.bert.embeddings.position_embeddings.weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert started.projection is None


def test_start_from_teacher_layers_of_the_same_shape_copies_them():
    teacher = masked_lm(TEACHER)
    student = start(SAME_WIDTH, teacher=[1, 3]).model
    for ours, theirs in ((0, 0), (1, 2)):
        copied, original = student.bert.encoder["layer"][ours], teacher.bert.encoder["layer"][theirs]
        for (name, a), b in zip(copied.state_dict().items(), original.state_dict().values(), strict=True):
            assert torch.equal(a, b), name
    assert torch.equal(student.cls["predictions"].bias, teacher.cls["predictions"].bias)
    embeddings = [model.bert.embeddings.word_embeddings.weight for model in (student, teacher)]
    assert torch.equal(*embeddings)
    assert embeddings[0].data_ptr() != embeddings[1].data_ptr()


def test_start_from_a_wider_teacher_brings_the_way_back():
    started = start(NARROW, teacher="uniform")
    assert started.model.config.hidden_size == 12
    assert started.projection.shape == (24, 12)


def test_a_bilstm_starts_from_the_teachers_word_embeddings():
    teacher = masked_lm(TEACHER)
    student = start(BILSTM, teacher="bottom").model
    words = teacher.bert.embeddings.word_embeddings.weight.detach()
    _, _, components = torch.linalg.svd(words.double(), full_matrices=False)
    found = student.encoder.word_embeddings.weight.detach().double()
    expected = words.double() @ components[:8].T
    assert (found.abs() - expected.abs()).abs().max() < 1e-5
    assert not torch.equal(start(BILSTM).model.encoder.word_embeddings.weight.detach().double(), found)


def test_start_from_a_folder(tmp_path):
    save_model(masked_lm(seed=5), tmp_path)
    student = start(NARROW, folder=str(tmp_path)).model
    assert torch.equal(student.cls["predictions"].transform["dense"].weight,
                       masked_lm(seed=5).cls["predictions"].transform["dense"].weight)  # fmt: skip


def test_starts_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"start\.folder: 'nowhere' is no folder"):
        start(NARROW, folder="nowhere")
    save_model(masked_lm(replace(STUDENT, vocab_size=60)), tmp_path)
    with pytest.raises(UserError, match="has vocab_size 60, 50 is needed"):
        start(NARROW, folder=str(tmp_path))


def test_a_start_folder_may_hold_any_encoder(tmp_path):
    """A released general student comes as an encoder alone, with its own positions; dropout is the recipe's."""
    stored = classifier(replace(STUDENT, max_position_embeddings=16, hidden_dropout_prob=0.3))
    save_model(stored, tmp_path)
    student = start(NARROW, folder=str(tmp_path)).model
    assert student.config.max_position_embeddings == 16
    assert student.config.hidden_dropout_prob == NARROW.dropout
    ours, theirs = student.bert.state_dict(), stored.bert.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_foreign_encoder_loads_under_old_names_without_its_head(tmp_path):
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


def test_checkpoints_that_are_no_encoder_are_refused(tmp_path):
    save_model(masked_lm(TEACHER), tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    short = {name: value for name, value in stored.items() if "layer.3.output.dense" not in name}
    save_file(short, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"lacks bert\.encoder\.layer\.3\.output\.dense\.bias and 1 more"):
        load_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="only safetensors are read"):
        load_pretrained(tmp_path)


def teacher_settings(**changes):
    values = {
        "source": "embedded",
        "embedded": SimpleNamespace(architecture=SAME_WIDTH),
        "pretraining": SimpleNamespace(epochs=0),
    }
    return SimpleNamespace(**values | changes)


def test_an_embedded_teacher_is_drawn_by_its_seed():
    first, second, other = (start_teacher(teacher_settings(), vocab_size=50, seed=seed) for seed in (1, 1, 2))
    assert isinstance(first, MaskedLM)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_local_teachers_that_do_not_fit_are_refused(tmp_path):
    save_model(masked_lm(TEACHER), tmp_path)
    local = teacher_settings(source="local", local=SimpleNamespace(folder=str(tmp_path)))
    assert start_teacher(local, vocab_size=50, seed=0).config == TEACHER
    with pytest.raises(UserError, match="its vocabulary has 50 pieces, its tokenizer 60"):
        start_teacher(local, vocab_size=60, seed=0)
    encoder = {k: v for k, v in load_file(tmp_path / "model.safetensors").items() if k.startswith("bert.")}
    save_file(encoder, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="has no masked-LM head; give it at least 1 epoch"):
        start_teacher(local, vocab_size=50, seed=0)
