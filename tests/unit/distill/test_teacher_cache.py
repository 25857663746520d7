"""The teacher's kept answers: the same losses as live; files that are too small, broken or foreign."""

import multiprocessing
import os
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open

from tests.support.builders import STUDENT, TEACHER, classifier
from tests.unit.distill.test_loop import OPTIMIZER, examples
from tinybert.distill.cache_file import CacheFile, Form
from tinybert.distill.loop import start_accelerator
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.task_training import train_on_task
from tinybert.distill.teacher import LiveTeacher
from tinybert.distill.teacher_cache import CachedTeacher, TeacherCache

LAYERS = {"embedding": 1.0, "hidden": 1.0, "attention": 1.0}
HALF = 2e-3  # float16 has 11 bits: relative 5e-4 a number, twice that in a square
ROWS = [5, 0, 23, 11, 2]


class CountingTeacher(LiveTeacher):
    """Counts the rows it is asked about."""

    rows_asked = 0

    def ask(self, batch, wanted):
        self.rows_asked += len(batch.input_ids)
        return super().ask(batch, wanted)


def objective(losses, layer_map="uniform", **settings) -> DistillationLoss:
    torch.manual_seed(3)
    learning_rate = 1e-3 if layer_map == "learnable" else None
    imitation = DistillationConfig(losses, layer_map=layer_map, map_learning_rate=learning_rate, **settings)
    return DistillationLoss(imitation, STUDENT, TEACHER)


def live_teacher(goal: DistillationLoss, *, seed=2) -> CountingTeacher:
    return CountingTeacher(classifier(TEACHER, seed=seed), goal, start_accelerator("float32"))


def kept_teacher(folder, goal=None, *, limit_bytes=10**8, data=None, seed=2) -> CachedTeacher:
    goal = goal or objective(LAYERS)
    return CachedTeacher(live_teacher(goal, seed=seed), TeacherCache(folder, limit_bytes), data or examples())


def names(folder) -> set[str]:
    return {path.name for path in folder.glob("*.safetensors")}


def assert_same_losses(kept: CachedTeacher, *, rel=HALF) -> dict:
    """The terms of a student on a padded batch, whose rows stand in another order than in the data."""
    goal, batch = kept.live.objective, kept.examples.batch(ROWS)
    student = classifier(seed=1)(batch, goal.student_spec)
    from_file = {name: term.item() for name, term in goal(student, kept(batch), batch).items()}
    from_live = {name: term.item() for name, term in goal(student, kept.live(batch), batch).items()}
    assert from_file == pytest.approx(from_live, rel=rel)
    assert all(value > 1e-6 for value in from_live.values())
    return from_file


@pytest.mark.parametrize(
    ("losses", "layer_map"),
    [
        (LAYERS, "uniform"),
        (LAYERS, "mean"),
        (LAYERS, "random"),
        (LAYERS, "learnable"),
        ({"attention_kl": 1.0, "cosine": 1.0}, "top"),
        ({"pkd": 1.0, "hard": 0.5, "prediction": 0.5}, "uniform"),
        ({"query_key_relation": 1.0, "value_relation": 1.0}, "mean"),
        ({"logit_mse": 1.0}, "uniform"),
    ],
)
def test_kept_and_live_give_the_same_losses(tmp_path, losses, layer_map):
    goal = objective(losses, layer_map, temperature=2.0, relation_heads=4)
    kept = kept_teacher(tmp_path, goal)
    asked = kept.live.rows_asked
    kept(kept.examples.batch(ROWS))
    assert kept.live.rows_asked == asked  # the file alone answered
    goal.begin_step(1)
    assert_same_losses(kept)


def test_logits_are_kept_in_full(tmp_path):
    kept = kept_teacher(tmp_path, objective({"prediction": 1.0}))
    batch = kept.examples.batch(ROWS)
    torch.testing.assert_close(kept(batch).logits, kept.live(batch).logits, rtol=1e-5, atol=1e-6)


def test_gradients_reach_a_learnable_map(tmp_path):
    goal = objective({"hidden": 1.0}, "learnable")
    kept = kept_teacher(tmp_path, goal)
    batch = kept.examples.batch(ROWS)
    goal(classifier(seed=1)(batch, goal.student_spec), kept(batch), batch)["hidden"].backward()
    assert all(theta.grad.abs().sum() > 0 for theta in goal.map.theta)


def train(store, losses=LAYERS, *, layer_map="uniform", epochs=4):
    teacher = classifier(TEACHER, seed=2)
    asked = []
    teacher.register_forward_pre_hook(lambda module, inputs: asked.append(len(inputs[0].input_ids)))
    training = SimpleNamespace(epochs=epochs, max_steps=None, batch_size=8, learning_rate=3e-3, accumulation_steps=1)
    params = SimpleNamespace(optimizer=OPTIMIZER, precision="float32")
    student, goal = classifier(seed=1), objective(losses, layer_map)
    curve = train_on_task(
        student, goal, examples(), training=training, params=params, seed=7, store=store, teacher=teacher, title="test"
    )
    return curve, sum(asked)


@pytest.mark.parametrize("layer_map", ["uniform", "random", "learnable"])
def test_a_training_run_asks_once_and_learns_the_same(tmp_path, layer_map):
    live, asked_live = train(None, layer_map=layer_map)
    kept, asked_kept = train(TeacherCache(tmp_path, 10**8), layer_map=layer_map)
    assert (asked_live, asked_kept) == (4 * 24, 24 + 1)  # 1: to see what the answers look like
    assert [point["total"] for point in kept] == pytest.approx([point["total"] for point in live], rel=HALF)
    again, asked_again = train(TeacherCache(tmp_path, 10**8), layer_map=layer_map)
    assert asked_again == 1
    assert again == kept


def test_less_than_an_epoch_keeps_nothing(tmp_path):
    train(TeacherCache(tmp_path, 10**8), epochs=0)
    assert names(tmp_path) == set()


def test_phases_share_the_logits(tmp_path):
    kept_teacher(tmp_path, objective(LAYERS))
    before = names(tmp_path)
    prediction = kept_teacher(tmp_path, objective({"prediction": 1.0}))
    assert names(tmp_path) == before
    assert prediction.live.rows_asked == 1


@pytest.mark.parametrize(
    "change",
    [{"seed": 5}, {"data": examples(seed=9)}, {"goal": objective(LAYERS, "top")}, {"goal": objective(LAYERS, "mean")}],
    ids=["weights", "data", "map", "weighing"],
)
def test_another_teacher_data_or_map_has_other_files(tmp_path, change):
    kept_teacher(tmp_path)
    first = names(tmp_path)
    assert_same_losses(kept_teacher(tmp_path, **change))
    assert len(names(tmp_path) - first) >= 1


def test_a_small_store_keeps_the_first_rows_and_asks_for_the_rest(tmp_path):
    kept_teacher(tmp_path / "whole")
    whole = sum(path.stat().st_size for path in (tmp_path / "whole").glob("*.safetensors"))
    limit = whole // 2
    kept = kept_teacher(tmp_path / "half", limit_bytes=limit)
    held = sum(path.stat().st_size for path in (tmp_path / "half").glob("*.safetensors"))
    assert 0.5 * limit < held <= limit
    layers = kept.files[1]
    assert 4 < len(layers.lengths) < 20
    before = kept.live.rows_asked
    kept(kept.examples.batch(ROWS))
    missing = sum(row >= len(layers.lengths) for row in ROWS)
    assert kept.live.rows_asked - before == missing > 0
    assert_same_losses(kept)


def test_a_damaged_row_is_asked_for_again(tmp_path):
    form = kept_teacher(tmp_path).files[1]
    with open(form.path, "r+b") as handle:
        handle.seek(len(form.header) + 4 * 24 + 2 * int(form.first_token[5]) * 3 * 24 + 8)  # in the tokens of row 5
        handle.write(b"\xff\x7b")
    kept = kept_teacher(tmp_path)
    assert kept.live.rows_asked == 1
    assert_same_losses(kept)
    assert kept.files[1].has(torch.tensor(ROWS).numpy()).tolist() == [False, True, True, True, True]


@pytest.mark.parametrize("spoil", [lambda data: data[:-10], lambda data: b"none of ours" + data[12:], lambda data: b""])
def test_a_broken_or_foreign_file_is_made_anew(tmp_path, spoil):
    path = kept_teacher(tmp_path).files[1].path
    whole = path.read_bytes()
    path.write_bytes(spoil(whole))
    assert_same_losses(kept_teacher(tmp_path))
    assert path.read_bytes() == whole


def test_answers_beyond_float16_are_never_kept(tmp_path):
    teacher = classifier(TEACHER, seed=2)
    with torch.no_grad():
        teacher.bert.encoder.layer[1].output.LayerNorm.weight.mul_(1e6)
    goal = objective({"hidden": 1.0})
    kept = CachedTeacher(
        LiveTeacher(teacher, goal, start_accelerator("float32")), TeacherCache(tmp_path, 10**8), examples()
    )
    assert not kept.files[1].has(torch.arange(24).numpy()).any()
    assert_same_losses(kept, rel=1e-5)


def test_a_row_beyond_float16_keeps_its_range_beside_kept_ones(tmp_path):
    teacher = classifier(TEACHER, seed=2)
    with torch.no_grad():  # normalised values beyond 2.55, which some rows have, are then beyond 65504
        teacher.bert.embeddings.LayerNorm.weight *= 65504 / 2.55
    goal = objective({"embedding": 1.0})
    live = LiveTeacher(teacher, goal, start_accelerator("float32"))
    kept = CachedTeacher(live, TeacherCache(tmp_path, 10**8), examples())
    found = kept.files[1].has(torch.arange(24).numpy())
    assert 0 < found.sum() < 24
    rows = [int(found.argmin()), int(found.argmax())]
    batch = kept.examples.batch(rows)
    theirs = live(batch).hidden[0]
    torch.testing.assert_close(kept(batch).hidden[0], theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().mean()))


def test_kept_logits_alone_are_no_answer_where_layers_are_read(tmp_path, monkeypatch):
    kept_teacher(tmp_path, objective({"prediction": 1.0}))

    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert_same_losses(kept_teacher(tmp_path), rel=1e-5)


def test_a_store_with_room_for_the_logits_alone_still_answers(tmp_path):
    assert_same_losses(kept_teacher(tmp_path, limit_bytes=5000))


def test_files_are_safetensors_that_say_what_they_hold(tmp_path):
    file = kept_teacher(tmp_path).files[1]
    with safe_open(file.path, framework="pt") as stored:
        tokens = stored.get_tensor("tokens")
        assert stored.metadata()["rows"] == "24"
    real_tokens = int(examples().lengths.sum())
    assert (tokens.shape, tokens.dtype) == ((real_tokens, 3, 24), torch.float16)  # embedding and two mapped layers


def test_of_files_in_the_way_the_oldest_used_go_first(tmp_path):
    kept_teacher(tmp_path, seed=2)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    first = names(tmp_path)
    kept_teacher(tmp_path, seed=3)
    for name in first:
        os.utime(tmp_path / name)
    second = names(tmp_path) - first
    for name in second:
        os.utime(tmp_path / name, (1, 1))
    kept_teacher(tmp_path, seed=4, limit_bytes=int(2.5 * size))
    assert first <= names(tmp_path)
    assert not {name for name in second if "layers" in name} & names(tmp_path)


def test_a_full_disk_leaves_nothing_and_training_goes_on(tmp_path, monkeypatch, capsys):
    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    kept = kept_teacher(tmp_path)
    assert_same_losses(kept, rel=1e-5)
    assert list(tmp_path.glob("*.partial")) == []
    assert "No space left on device" in capsys.readouterr().err


def _make(folder, results):
    results.put(kept_teacher(folder).live.rows_asked)


def test_of_two_processes_one_makes_the_answers(tmp_path):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    both = [context.Process(target=_make, args=(tmp_path, results)) for _ in range(2)]
    for process in both:
        process.start()
    asked = sorted(results.get(timeout=120) for _ in both)
    for process in both:
        process.join()
    assert asked == [1, 1 + 24]
    assert len(names(tmp_path)) == 2


def test_row_sizes_by_hand():
    form = Form(tokens=(("hidden", 0), ("hidden", 1)), width=8, scores=(1, 2), heads=3)
    assert form.row_bytes(torch.tensor([5]).numpy()).tolist() == [2 * (5 * 2 * 8 + 25 * 2 * 3) + 4]
    assert Form(classes=3).row_bytes(torch.tensor([5]).numpy()).tolist() == [16]


def test_a_file_of_other_facts_is_not_valid(tmp_path):
    lengths = torch.tensor([3, 4]).numpy()
    file = CacheFile(tmp_path / "a.safetensors", Form(classes=2), lengths, {"teacher": "one"})
    file.create()
    assert file.is_valid
    assert not CacheFile(file.path, Form(classes=2), lengths, {"teacher": "two"}).is_valid
    assert not CacheFile(file.path, Form(classes=3), lengths, {"teacher": "one"}).is_valid
