"""The task teacher: how each kind reads rows, and that students learn the same from its cache and live."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.builders import STUDENT, TEACHER, classifier
from tests.support.families import WORDS, save_family
from tests.support.hub_client import use_hub
from tests.support.hub_server import Repository, serve_hub
from tests.unit.distill.test_loop import OPTIMIZER, RUN
from tinybert.config.fields import HubModel, ModelSource, Training
from tinybert.config.tasks import TASKS, ReadyTeacher
from tinybert.data.encoding import encode
from tinybert.data.tokenizer import save_tokenizer, train_tokenizer
from tinybert.distill.batches import Batches, predict
from tinybert.distill.loop import LiveTeacher, Settings, start_accelerator, train
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.task_teacher import TaskTeacher, start_task_teacher
from tinybert.distill.teacher_cache import CachedTeacher, TeacherCache
from tinybert.distill.vocabulary import trim_vocabulary
from tinybert.models.bert import SequenceClassifier
from tinybert.models.foreign import ForeignClassifier, PredictedTeacher
from tinybert.models.model_folders import save_model
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError

COLA = TASKS["cola"]
TOKENIZER = train_tokenizer(WORDS, vocabulary_size=60)


def rows(count=24) -> list[dict]:
    rng = random.Random(0)
    texts = (" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(count))
    return [{"idx": idx, "sentence": text, "label": idx % 2} for idx, text in enumerate(texts)]


def reader(model) -> TaskTeacher:
    return TaskTeacher(model, COLA, TOKENIZER, max_length_tokens=32)


@pytest.fixture
def foreign(tmp_path) -> TaskTeacher:
    save_family("roberta", tmp_path / "model", COLA.labels)
    return reader(start_task_teacher(COLA, TOKENIZER, ReadyTeacher(folder=str(tmp_path / "model"))))


def table(known=range(24)) -> TaskTeacher:
    logits = torch.randn(len(known), 2, generator=torch.Generator().manual_seed(0))
    return reader(PredictedTeacher({"train": logits}, {"train": torch.tensor(known)}, COLA))


def distilled(teacher: TaskTeacher, losses: dict[str, float], cache: TeacherCache, *, accumulation_steps=1):
    """The student's weights, loss curve, and how many rows the teacher computed, after two epochs."""
    examples, asked = teacher.read_both(rows())
    counted = []
    hook = teacher.model.register_forward_pre_hook(lambda _, inputs: counted.append(len(inputs[0].input_ids)))
    student = classifier(replace(STUDENT, vocab_size=TOKENIZER.get_vocab_size()), COLA.labels, seed=1)
    torch.manual_seed(3)
    loss = DistillationLoss(DistillationConfig(losses, temperature=2.0), student.config, teacher.model.config)
    training = Training(
        epochs=2, max_steps=None, batch_size=8, learning_rate=3e-3, accumulation_steps=accumulation_steps
    )
    cached = CachedTeacher(teacher.model, loss, asked, cache)
    batches = Batches(examples, batch_size=8, seed=7)
    curve = train(student, loss, batches, Settings(training, OPTIMIZER, 7), teacher=cached, run=RUN)
    hook.remove()
    return student.state_dict(), curve, sum(counted)


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_students_learn_the_same_from_cache_and_live(tmp_path, foreign, accumulation_steps):
    losses = {"prediction": 1.0, "logit_mse": 0.5, "hard": 0.5}
    settings = {"accumulation_steps": accumulation_steps}
    live, live_curve, asked_live = distilled(foreign, losses, TeacherCache(tmp_path, 0), **settings)
    cached, curve, asked = distilled(foreign, losses, TeacherCache(tmp_path, 10**8), **settings)
    assert (asked_live, asked) == (2 * 24, 24 + 1)
    for name, weight in live.items():
        torch.testing.assert_close(cached[name], weight, rtol=1e-4, atol=1e-5)
    assert curve[-1]["prediction"] == pytest.approx(live_curve[-1]["prediction"], rel=1e-4)
    assert all(entry["prediction"] > 0 for entry in curve)


def test_pkd_reads_first_tokens_of_another_width(tmp_path, foreign):
    losses = {"pkd": 1.0, "prediction": 1.0}
    _, live_curve, _ = distilled(foreign, losses, TeacherCache(tmp_path, 0))
    _, curve, asked = distilled(foreign, losses, TeacherCache(tmp_path, 10**8))
    assert asked == 24 + 1
    assert [entry["pkd"] for entry in curve] == pytest.approx([entry["pkd"] for entry in live_curve], rel=2e-3)
    files = list(tmp_path.glob("hidden_*.rows"))
    assert [path.stat().st_size for path in files] == [24 * 16 * 2 + 4]  # a vector of 16 float16 a row, a checksum


def test_a_batch_is_compared_with_the_teachers_own_rows(tmp_path, foreign):
    """Computed by hand: row i of the student's batch against the teacher's logits of text i."""
    examples, asked = foreign.read_both(rows())
    loss = DistillationLoss(DistillationConfig({"logit_mse": 1.0}), STUDENT, foreign.model.config)
    cached = CachedTeacher(foreign.model, loss, asked, TeacherCache(tmp_path, 10**8))
    cached.begin(start_accelerator("float32"))
    chosen = [5, 0, 23, 11]
    student = torch.zeros(4, 2)
    with torch.inference_mode():
        alone = [foreign.model(asked.batch([row])).logits[0] for row in chosen]
    found = loss.targets(cached(examples.batch(chosen))).logits
    torch.testing.assert_close(found, torch.stack(alone), atol=1e-5, rtol=1e-4)
    expected = torch.stack(alone).square().sum(dim=1).mean().item()
    outputs = type(cached(examples.batch(chosen)))(logits=student)
    term = loss(outputs, cached(examples.batch(chosen)), examples.batch(chosen))["logit_mse"]
    assert term.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("loss", ["attention", "hidden", "embedding", "cosine"])
def test_losses_of_tokens_are_refused(foreign, loss):
    with pytest.raises(UserError, match=f"losses: no targets for {loss} .*; allowed: hard, prediction, logit_mse, pkd"):
        DistillationLoss(DistillationConfig({loss: 1.0}), STUDENT, foreign.model.config)


def test_masked_words_are_masked_for_a_foreign_teacher_too(foreign):
    tokenizer = foreign.model.tokenizer
    found = foreign.read([{"idx": 0, "sentence": f"{WORDS[0]} [MASK]", "label": 1}], "train").input_ids[0]
    assert found.tolist() == tokenizer(f"{WORDS[0]} {tokenizer.mask_token}").input_ids
    assert tokenizer.mask_token_id in found and tokenizer.mask_token != "[MASK]"


def test_a_table_teaches_by_row_numbers(tmp_path):
    teacher = table()
    live, _, _ = distilled(teacher, {"prediction": 1.0}, TeacherCache(tmp_path, 0))
    cached, _, _ = distilled(teacher, {"prediction": 1.0}, TeacherCache(tmp_path, 10**8))
    assert all(torch.equal(cached[name], weight) for name, weight in live.items())
    _, asked = teacher.read_both(list(reversed(rows())))
    assert np.array_equal(predict(teacher.model, asked, COLA), teacher.model.table.argmax(1).flip(0).numpy())


def test_rows_without_a_prediction_are_left_out():
    teacher = table(known=[0, 2, 9])
    examples, asked = teacher.read_both(rows())
    assert len(examples) == len(asked) == 3
    assert examples.input_ids[2].tolist() == reader(classifier()).read([rows()[9]], "train").input_ids[0].tolist()


def test_drawn_rows_without_any_prediction_name_the_fraction():
    with pytest.raises(UserError, match=r"^tasks\.cola\.train_fraction: no drawn row has a prediction;"):
        table(known=[0]).known(rows()[5:])


def test_a_foreign_teachers_positions_count_its_own_tokens(tmp_path):
    """A student may have longer rows than the teacher's."""
    save_family("distilbert", tmp_path / "model", COLA.labels, max_position_embeddings=8)
    source = ReadyTeacher(folder=str(tmp_path / "model"))
    teacher = reader(start_task_teacher(COLA, TOKENIZER, source))
    loss = DistillationLoss(DistillationConfig({"prediction": 1.0}), STUDENT, teacher.model.config)
    _, short = teacher.read_both([{"idx": 0, "sentence": "fish swim the", "label": 1}])
    long_batches = Batches(reader(classifier()).read(rows(), "train"), batch_size=8, seed=0)
    assert long_batches.longest_row_tokens > 8
    CachedTeacher(teacher.model, loss, short, TeacherCache(tmp_path, 0)).check_length(long_batches)
    with pytest.raises(UserError, match="at most 8, the model's positions; fix: lower it"):
        LiveTeacher(teacher.model, loss).check_length(long_batches)


def test_a_teacher_of_another_family_comes_from_the_hub(tmp_path, monkeypatch):
    folder, sha = save_family("xlm-roberta", tmp_path / "model", COLA.labels), "a" * 40
    (folder / "pytorch_model.bin").write_bytes(b"never asked for")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with serve_hub(Repository("models", "a/b", sha, files)) as hub:
        use_hub(monkeypatch, hub.endpoint, tmp_path / "cache")
        source = ReadyTeacher(hub=HubModel(model="a/b", revision=sha))
        found = reader(start_task_teacher(COLA, TOKENIZER, source))
        fetched = {line.rsplit("/", 1)[1] for line in hub.requests if "/resolve/" in line}
    assert fetched == files.keys() - {"pytorch_model.bin"}
    local = reader(start_task_teacher(COLA, TOKENIZER, ReadyTeacher(folder=str(folder))))
    logits = [teacher.model(teacher.read(rows(), "train").batch([3, 1])).logits for teacher in (found, local)]
    assert torch.equal(*logits)


# --- which class computes a third-party model ---


def own_bert(folder: Path) -> Path:
    folder.mkdir()
    save_model(classifier(replace(TEACHER, vocab_size=TOKENIZER.get_vocab_size()), COLA.labels), folder)
    return folder


@pytest.mark.parametrize("names", [("LABEL_0", "LABEL_1"), ("yes", "no")])
@pytest.mark.parametrize("has_label_order", [True, False])
def test_classes_without_names_need_an_order_of_the_labels(tmp_path, names, has_label_order):
    save_family("roberta", tmp_path / "model", names)
    task = replace(COLA, name="mine", labels=("no", "yes"), is_own=True, has_label_order=has_label_order)
    source, key = ReadyTeacher(folder=str(tmp_path / "model")), "tasks.mine.finetuned_teacher"
    if has_label_order or names[0] == "yes":
        found = start_task_teacher(task, TOKENIZER, source, key=key)
        assert found.order.tolist() == ([1, 0] if names[0] == "yes" else [0, 1])
    else:
        with pytest.raises(UserError, match=r"^tasks\.mine\.finetuned_teacher: its classes have no names"):
            start_task_teacher(task, TOKENIZER, source, key=key)


def test_a_bert_with_the_projects_vocabulary_is_our_own(tmp_path):
    folder = own_bert(tmp_path / "bert")
    assert type(start_task_teacher(COLA, TOKENIZER, ReadyTeacher(folder=str(folder)))) is SequenceClassifier
    save_tokenizer(TOKENIZER, folder)
    assert type(start_task_teacher(COLA, TOKENIZER, ReadyTeacher(folder=str(folder)))) is SequenceClassifier
    assert type(start_task_teacher(COLA, TOKENIZER, ModelSource(folder=str(folder)))) is SequenceClassifier
    assert type(start_task_teacher(COLA, TOKENIZER, folder)) is SequenceClassifier


@pytest.mark.parametrize("kind", [ReadyTeacher, ModelSource])
def test_a_bert_without_tokenizer_has_as_many_tokens_as_the_project(tmp_path, kind):
    known = TOKENIZER.get_vocab_size()
    for name, tokens in (("small", known - 1), ("padded", known + 7)):
        (tmp_path / name).mkdir()
        save_model(classifier(replace(TEACHER, vocab_size=tokens), COLA.labels), tmp_path / name)
        problem = rf"^teacher: its vocabulary is not the tokenizer's \(got {tokens} tokens\); allowed: {known};"
        with pytest.raises(UserError, match=problem):
            start_task_teacher(COLA, TOKENIZER, kind(folder=str(tmp_path / name)))
    save_tokenizer(TOKENIZER, tmp_path / "padded")  # its own, so the other rows of its word table are padding
    padded = start_task_teacher(COLA, TOKENIZER, kind(folder=str(tmp_path / "padded")))
    assert padded.config.vocab_size == known + 7


def test_a_bert_with_another_vocabulary_of_equal_size_is_foreign(tmp_path):
    folder = own_bert(tmp_path / "bert")
    other = train_tokenizer([word[::-1] for word in WORDS], vocabulary_size=60)
    assert other.get_vocab_size() == TOKENIZER.get_vocab_size() and other.get_vocab() != TOKENIZER.get_vocab()
    save_tokenizer(other, folder)
    found = start_task_teacher(COLA, TOKENIZER, ReadyTeacher(folder=str(folder)))
    assert type(found) is ForeignClassifier
    text = reader(found).read([{"idx": 0, "sentence": "hsif miws", "label": 1}], "train").input_ids[0]
    assert text.tolist() == other.encode("hsif miws").ids


@pytest.mark.parametrize("kind", ["own", "foreign", "table"])
def test_stages_load_what_was_saved(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    folder = paths.task_model("cola", 1, "teacher")
    folder.mkdir(parents=True)
    if kind == "own":
        model = classifier(TEACHER, COLA.labels)
        save_tokenizer(TOKENIZER, folder)
    elif kind == "foreign":
        source = ReadyTeacher(folder=str(save_family("bert", tmp_path / "bert", COLA.labels)))
        model = start_task_teacher(COLA, TOKENIZER, source)
    else:
        model = table().model
    save_model(model, folder)
    found = TaskTeacher.load(COLA, 1, TOKENIZER, max_length_tokens=32)
    assert type(found.model) is type(model)
    assert found.model.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(part, model.state_dict()[name]) for name, part in found.model.state_dict().items())


@pytest.fixture
def trimmed(tmp_path, monkeypatch) -> tuple[TaskTeacher, SequenceClassifier]:
    """A saved BERT teacher for a student whose vocabulary lacks most words, and that student."""
    monkeypatch.chdir(tmp_path)
    folder = paths.task_model("cola", 1, "teacher")
    folder.mkdir(parents=True)
    size = TOKENIZER.get_vocab_size()
    save_model(classifier(replace(TEACHER, vocab_size=size), COLA.labels), folder)
    save_tokenizer(TOKENIZER, folder)
    student = classifier(replace(STUDENT, vocab_size=size), COLA.labels)
    few = encode(rows(2), COLA, TOKENIZER, max_length_tokens=32)
    tokenizer = trim_vocabulary(student, TOKENIZER, few, limit=1000)
    return TaskTeacher.load(COLA, 1, tokenizer, max_length_tokens=32), student


def test_a_teacher_reads_its_own_tokens_beside_a_trimmed_student(trimmed):
    teacher, student = trimmed
    examples, asked = teacher.read_both(rows())
    expected = encode(rows(), COLA, TOKENIZER, max_length_tokens=32)
    assert [ids.tolist() for ids in asked.input_ids] == [ids.tolist() for ids in expected.input_ids]
    assert examples.lengths.sum() > asked.lengths.sum()
    assert max(ids.max() for ids in examples.input_ids) < student.config.vocab_size < TOKENIZER.get_vocab_size()


def test_losses_of_tokens_make_the_teacher_read_the_students(trimmed):
    teacher, _ = trimmed
    examples, asked = teacher.read_both(rows(), by_token=True)
    for ours, theirs in zip(examples.input_ids, asked.input_ids, strict=True):
        assert [teacher.tokenizer.id_to_token(n) for n in ours] == [TOKENIZER.id_to_token(n) for n in theirs]
    assert any(
        ours.tolist() != theirs.tolist() for ours, theirs in zip(examples.input_ids, asked.input_ids, strict=True)
    )


@pytest.mark.parametrize("losses", [{"hidden": 1.0, "attention": 1.0}, {"pkd": 1.0, "prediction": 1.0}])
@pytest.mark.parametrize("cached", [0, 10**8])
def test_a_trimmed_student_learns_inner_layers(tmp_path, trimmed, cached, losses):
    """The student's hidden states of a batch against the teacher's on the same tokens, computed directly."""
    teacher, student = trimmed
    loss = DistillationLoss(DistillationConfig(losses), student.config, teacher.model.config)
    assert loss.compares_tokens
    examples, asked = teacher.read_both(rows(), by_token=True)
    found = CachedTeacher(teacher.model, loss, asked, TeacherCache(tmp_path, cached))
    found.begin(start_accelerator("float32"))
    batch = examples.batch([3, 0, 7])
    with torch.no_grad():
        live = loss.targets(teacher.model(asked.batch([3, 0, 7]), loss.teacher_spec()))
        ours = student(batch, loss.student_spec)
        terms, expected = loss(ours, found(batch), batch), loss(ours, live, batch)
    for name, term in terms.items():
        assert term.item() == pytest.approx(expected[name].item(), rel=1e-3)
        assert term > 0
