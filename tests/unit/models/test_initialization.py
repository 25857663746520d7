"""How students and teachers start."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.builders import STUDENT, TEACHER, batch, classifier, masked_lm
from tests.support.hub_client import use_hub
from tests.support.hub_server import Repository, serve_hub
from tinybert.config.fields import HubModel, ModelSource, source_folder
from tinybert.config.students import Init, Student, check_students
from tinybert.config.tasks import MULTILABEL, TASKS
from tinybert.models.bert import MaskedLM
from tinybert.models.initialization import finetuned_teacher, initialize_student, start_teacher
from tinybert.models.model_folders import save_model
from tinybert.pipeline.errors import UserError

SAME_WIDTH = SimpleNamespace(kind="bert", layers=2, width=24, heads=3, feed_forward=48, dropout=0.1)
NARROW = SimpleNamespace(kind="bert", layers=2, width=12, heads=3, feed_forward=24, dropout=0.1)
BILSTM = SimpleNamespace(kind="bilstm", layers=1, embedding=8, width=6, feed_forward=5, dropout=0.1)


def start(architecture, **origin):
    """From the same teacher each time; `origin`: the keys of the start section."""
    student = SimpleNamespace(architecture=architecture, init=Init(**origin))
    sample = [batch((9, 8, 7), 9, seed=seed) for seed in range(8)]
    return initialize_student(student, masked_lm(TEACHER), sample=lambda: sample)


def test_a_student_has_the_teachers_padding_token():
    student = SimpleNamespace(architecture=NARROW, init=Init(teacher="uniform"))
    teacher = masked_lm(replace(TEACHER, pad_token_id=3))
    started = initialize_student(student, teacher, sample=lambda: [batch((9, 8, 7), 9)])
    assert started.model.config.pad_token_id == started.model.bert.embeddings.word_embeddings.padding_idx == 3


def test_random_init_has_the_teachers_vocabulary():
    started = start(NARROW)
    assert started.model.config == replace(STUDENT, max_position_embeddings=32)
    assert started.model.bert.embeddings.position_embeddings.weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert started.projection is None


def test_start_from_teacher_layers_of_the_same_shape_copies_them():
    teacher = masked_lm(TEACHER)
    student = start(SAME_WIDTH, teacher=[1, 3]).model
    for ours, theirs in ((0, 0), (1, 2)):
        copied, original = student.bert.encoder.layer[ours], teacher.bert.encoder.layer[theirs]
        for (name, a), b in zip(copied.state_dict().items(), original.state_dict().values(), strict=True):
            assert torch.equal(a, b), name
    assert torch.equal(student.cls.predictions.bias, teacher.cls.predictions.bias)
    embeddings = [model.bert.embeddings.word_embeddings.weight for model in (student, teacher)]
    assert torch.equal(*embeddings)
    assert embeddings[0].data_ptr() != embeddings[1].data_ptr()


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
    assert torch.equal(student.cls.predictions.transform.dense.weight,
                       masked_lm(seed=5).cls.predictions.transform.dense.weight)  # fmt: skip


def test_inits_that_do_not_fit_are_rejected(tmp_path):
    with pytest.raises(UserError, match=r"init\.folder: not a folder \(got 'nowhere'\)"):
        start(NARROW, folder="nowhere")
    save_model(masked_lm(replace(STUDENT, vocab_size=60)), tmp_path)
    with pytest.raises(UserError, match=r"wrong vocab_size \(got 60\); allowed: 50"):
        start(NARROW, folder=str(tmp_path))


def test_a_start_folder_may_hold_any_encoder(tmp_path):
    """A released general student comes as an encoder alone, with its own positions; dropout is the student config's."""
    stored = classifier(replace(STUDENT, max_position_embeddings=16, hidden_dropout_prob=0.3))
    save_model(stored, tmp_path)
    student = start(NARROW, folder=str(tmp_path)).model
    assert student.config.max_position_embeddings == 16
    assert student.config.hidden_dropout_prob == NARROW.dropout
    ours, theirs = student.bert.state_dict(), stored.bert.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def add_weights(folder: Path, **tensors: torch.Tensor) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(path) | {name.replace("__", "."): tensor for name, tensor in tensors.items()}, path)


def test_a_released_student_keeps_what_no_architecture_sets(tmp_path):
    released = masked_lm(replace(STUDENT, type_vocab_size=3, layer_norm_eps=1e-2, problem_type=MULTILABEL))
    save_model(released, tmp_path)
    student, sample = start(NARROW, folder=str(tmp_path)).model, batch(positions=torch.tensor([1, 2]))
    assert student.config == replace(released.config, problem_type=None)
    assert torch.equal(student.eval()(sample).logits, released(sample).logits)


def test_a_released_students_projection_is_taken_where_it_fits(tmp_path):
    save_model(classifier(STUDENT), tmp_path)
    assert start(NARROW, folder=str(tmp_path)).projection is None
    weight = torch.arange(24.0 * 12).reshape(24, 12)  # (teacher width, student width)
    add_weights(tmp_path, fit_dense__weight=weight, fit_dense__bias=torch.zeros(24))
    assert torch.equal(start(NARROW, folder=str(tmp_path)).projection, weight)
    add_weights(tmp_path, fit_dense__weight=weight[:18])
    assert start(NARROW, folder=str(tmp_path)).projection is None


def test_a_released_students_projections_of_all_layers_are_taken(tmp_path):
    save_model(classifier(STUDENT), tmp_path)
    weights = torch.randn(1 + STUDENT.num_hidden_layers, 24, 12)
    for layer, weight in enumerate(weights):
        assert start(NARROW, folder=str(tmp_path)).projection is None  # one lacks
        add_weights(tmp_path, **{f"fit_denses__{layer}__weight": weight.clone()})
    assert torch.equal(start(NARROW, folder=str(tmp_path)).projection, weights)


SHA = "a" * 40
ON_HUB = HubModel(model="someone/bert", revision=SHA)
ABSENT = HubModel(model="a/b", revision=SHA)


@pytest.fixture
def served(monkeypatch, tmp_path):
    """A Hub on loopback without a model yet."""
    with serve_hub() as hub:
        use_hub(monkeypatch, hub.endpoint, tmp_path / "cache")
        yield hub


def publish(hub, folder: Path, name: str = ON_HUB.model) -> None:
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    hub.repositories["models", name] = Repository("models", name, SHA, files)


def test_start_from_the_hub(served, tmp_path):
    save_model(masked_lm(seed=5), tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"never asked for")
    publish(served, tmp_path)
    student = start(NARROW, hub=ON_HUB).model
    assert all(torch.equal(a, b) for a, b in zip(student.parameters(), masked_lm(seed=5).parameters(), strict=True))
    asked = [line.split("/")[-2:] for line in served.requests if "/resolve/" in line]
    assert sorted(set(map(tuple, asked))) == [(SHA, "config.json"), (SHA, "model.safetensors")]


def test_hub_inits_that_do_not_fit_are_rejected(served, tmp_path):
    with pytest.raises(UserError) as caught:
        start(NARROW, hub=ABSENT)
    assert str(caught.value) == (
        f"init.hub.model: a/b ({SHA}) cannot be loaded from the Hub (there is no such repository, or it is private "
        "and HF_TOKEN holds no token for it); fix: check init.hub.model and init.hub.revision, or use a folder "
        "instead"
    )
    save_model(masked_lm(replace(STUDENT, intermediate_size=36)), tmp_path)
    publish(served, tmp_path)
    with pytest.raises(UserError, match=r"init: someone/bert: wrong intermediate_size \(got 36\); allowed: 24"):
        start(NARROW, hub=ON_HUB)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    publish(served, tmp_path, "someone/pickled")
    with pytest.raises(UserError, match="allowed: safetensors, no pickles; fix: run tinybert convert"):
        start(NARROW, hub=HubModel(model="someone/pickled", revision=SHA))


def teacher_settings(**changes):
    values = {
        "source": "synthetic",
        "synthetic": SimpleNamespace(architecture=SAME_WIDTH),
        "pretraining": SimpleNamespace(epochs=0),
    }
    return SimpleNamespace(**values | changes)


def test_a_synthetic_teacher_is_drawn_by_its_seed():
    first, second, other = (start_teacher(teacher_settings(), vocab_size=50, seed=seed) for seed in (1, 1, 2))
    assert isinstance(first, MaskedLM)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_local_teachers_that_do_not_fit_are_rejected(tmp_path):
    save_model(masked_lm(TEACHER), tmp_path)
    local = teacher_settings(source="local", local=SimpleNamespace(folder=str(tmp_path)))
    assert start_teacher(local, vocab_size=50, seed=0).config == TEACHER
    with pytest.raises(UserError, match=r"its vocabulary is not the tokenizer\'s \(got 50 tokens\); allowed: 60"):
        start_teacher(local, vocab_size=60, seed=0)
    encoder = {k: v for k, v in load_file(tmp_path / "model.safetensors").items() if k.startswith("bert.")}
    save_file(encoder, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"has no masked-LM head .* fix: give it at least 1 epoch"):
        start_teacher(local, vocab_size=50, seed=0)


UNFIT = [
    (
        replace(TEACHER, num_attention_heads=2),
        "general.losses.attention: the student has 3 heads, the teacher 2",
    ),
    (replace(TEACHER, num_hidden_layers=1), "layer_map: "),
]


def student_config(**stages) -> Student:
    tree = {"architecture": vars(NARROW), "init": "random", "layer_map": "uniform", "projection": "shared"}
    return Student.model_validate(tree | {"general": None} | stages)


@pytest.mark.parametrize(("teacher", "line"), UNFIT)
def test_unusable_teachers_are_rejected_for_all_stages(teacher, line):
    students = {"tiny": student_config(general={"losses": {"attention": 1.0}}, domain={"losses": {"hidden": 1.0}})}
    check_students(students, TEACHER.shape)
    with pytest.raises(UserError, match=rf"^students\.tiny\.{line}"):
        check_students(students, teacher.shape)


def test_a_task_teacher_need_fit_the_task_stages_alone():
    students = {"tiny": student_config(general={"losses": {"attention": 1.0}}, prediction={"losses": {"hard": 1.0}})}
    other = replace(TEACHER, num_attention_heads=2)
    check_students(students, other.shape, ("intermediate", "prediction"))
    with pytest.raises(UserError, match="attention"):
        check_students(students, other.shape)


def test_a_teacher_comes_from_the_hub(served, tmp_path):
    save_model(masked_lm(TEACHER, seed=3), tmp_path)
    publish(served, tmp_path)
    teacher = start_teacher(teacher_settings(source="hub", hub=ON_HUB), vocab_size=50, seed=0)
    assert all(
        torch.equal(*pair) for pair in zip(teacher.parameters(), masked_lm(TEACHER, 3).parameters(), strict=True)
    )
    with pytest.raises(UserError, match=r"^teacher\.hub\.model: a/b \(a+\) cannot .* or use a folder instead"):
        start_teacher(teacher_settings(source="hub", hub=ABSENT), vocab_size=50, seed=0)


def finetuned(folder: Path, task: str):
    key = f"tasks.{task}.finetuned_teacher"
    folder = source_folder(ModelSource(folder=str(folder)), key=key)
    return finetuned_teacher(folder, TASKS[task], key=key)


def save_classifier(folder: Path, *labels: str, **changes) -> torch.Tensor:
    """A model folder as others leave it, with `changes` of its config.json; its classifier's weight."""
    model = classifier(TEACHER, labels=labels, seed=7)
    with torch.no_grad():
        model.classifier.bias.copy_(torch.arange(len(labels)))
    save_model(model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in (config | changes).items() if v is not None}))
    return model.classifier.weight.detach()


def test_finetuned_classes_get_the_tasks_order(tmp_path):
    weight = save_classifier(tmp_path, "CONTRADICTION", "Entailment", "neutral")
    teacher = finetuned(tmp_path, "mnli")  # entailment, neutral, contradiction
    assert teacher.labels == ("entailment", "neutral", "contradiction")
    assert torch.equal(teacher.classifier.weight, weight[[1, 2, 0]])
    assert teacher.classifier.bias.tolist() == [1, 2, 0]
    assert not teacher.training
    stored = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(tensor, stored[f"bert.{name}"]) for name, tensor in teacher.bert.state_dict().items())


@pytest.mark.parametrize(
    ("task", "stored", "names"),
    [
        ("cola", ("LABEL_0", "LABEL_1"), ("unacceptable", "acceptable")),
        ("qnli", ("entailment", "not-entailment"), ("entailment", "not_entailment")),
        ("stsb", ("LABEL_0",), ("score",)),
    ],
)
def test_finetuned_classes_without_names_keep_their_order(tmp_path, task, stored, names):
    weight = save_classifier(tmp_path, *stored)
    teacher = finetuned(tmp_path, task)
    assert teacher.labels == names
    assert torch.equal(teacher.classifier.weight, weight)


def test_a_finetuned_teacher_without_class_names_has_two(tmp_path):
    weight = save_classifier(tmp_path, "a", "b", id2label=None)
    assert torch.equal(finetuned(tmp_path, "cola").classifier.weight, weight)


def test_unknown_class_names_are_rejected(tmp_path):
    save_classifier(tmp_path, "grammatical", "ungrammatical")  # taken as they stand they would be the wrong way round
    with pytest.raises(UserError, match=r"unknown classes \(got grammatical, ungrammatical\); allowed: unacc"):
        finetuned(tmp_path, "cola")


def test_a_finetuned_teacher_comes_from_the_hub(served, tmp_path):
    weight = save_classifier(tmp_path, "LABEL_0", "LABEL_1")
    publish(served, tmp_path)
    key, task = "tasks.cola.finetuned_teacher", TASKS["cola"]
    teacher = finetuned_teacher(source_folder(ModelSource(hub=ON_HUB), key=key), task, key=key)
    assert torch.equal(teacher.classifier.weight, weight)
    assert all(SHA in line for line in served.requests if ON_HUB.model in line)
    with pytest.raises(UserError, match=r"tasks\.cola\.finetuned_teacher\.hub\.model: a/b \(a+\) cannot be loaded"):
        source_folder(ModelSource(hub=ABSENT), key=key)


@pytest.mark.parametrize(
    ("task", "labels", "changes", "line"),
    [
        (
            "mnli",
            ("no", "yes"),
            {},
            "tasks.mnli.finetuned_teacher: wrong number of outputs (got 2); allowed: 3",
        ),
        (
            "stsb",
            ("no", "yes"),
            {},
            "tasks.stsb.finetuned_teacher: wrong number of outputs (got 2); allowed: 1",
        ),
        (
            "cola",
            ("acceptable", "other"),
            {},
            "unknown classes (got acceptable, other); allowed: unacceptable",
        ),
        (
            "cola",
            ("no", "yes"),
            {"architectures": ["BertModel"]},
            "not supported here (got ['BertModel'])",
        ),
        (
            "cola",
            ("no", "yes"),
            {"model_type": "roberta"},
            "model_type: not supported (got 'roberta'); allowed: bert or bilstm",
        ),
        (
            "cola",
            ("no", "yes"),
            {"id2label": {"1": "no", "2": "yes"}},
            "id2label: must name the classes 0, 1",
        ),
        (
            "cola",
            ("no", "yes"),
            {"id2label": {"0": "no"}},
            "classifier.weight: wrong shape (got (2, 24))",
        ),
    ],
)
def test_finetuned_teachers_that_do_not_fit_are_rejected(tmp_path, task, labels, changes, line):
    save_classifier(tmp_path, *labels, **changes)
    with pytest.raises(UserError) as caught:
        finetuned(tmp_path, task)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_finetuned_teachers_in_other_formats_are_rejected(tmp_path):
    with pytest.raises(UserError, match=r"tasks\.cola\.finetuned_teacher\.folder: not a folder \(got '.*nowhere'\)"):
        finetuned(tmp_path / "nowhere", "cola")
    save_classifier(tmp_path, "no", "yes")
    short = {k: v for k, v in load_file(tmp_path / "model.safetensors").items() if "classifier" not in k}
    save_file(short, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"lacks classifier\.bias and 1 more weights"):
        finetuned(tmp_path, "cola")
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="allowed: safetensors, no pickles; fix: run tinybert convert"):
        finetuned(tmp_path, "cola")
