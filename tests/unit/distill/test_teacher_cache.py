"""The teacher cache: the same losses as live; files that are too small, damaged or foreign."""

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.support.builders import PRECISIONS, STUDENT, TEACHER, classifier, learnable
from tests.unit.distill.test_loop import OPTIMIZER, RUN, examples
from tinybert.config.fields import Training
from tinybert.config.tasks import TASKS, Task
from tinybert.distill import teacher_cache
from tinybert.distill.batches import Batches, predict
from tinybert.distill.loop import LiveTeacher, Settings, start_accelerator, train
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.teacher_cache import CachedTeacher, OutputFile, TeacherCache
from tinybert.pipeline.code_digest import normalized

LAYERS = {"embedding": 1.0, "hidden": 1.0, "attention": 1.0}
HALF = 2e-3  # float16 has 11 bits: relative 5e-4 a number, twice that in a square
ROWS = [5, 0, 23, 11, 2]


class CountingTeacher(CachedTeacher):
    """Counts the rows it is asked about."""

    rows_asked = 0

    def ask(self, batch, spec):
        self.rows_asked += len(batch.input_ids)
        return super().ask(batch, spec)

    def live(self, batch):
        """The answer without the cache."""
        return super().ask(batch, self.loss.teacher_spec())


def loss_of(losses, layer_map="uniform", **settings) -> DistillationLoss:
    torch.manual_seed(3)
    return DistillationLoss(DistillationConfig(losses, layer_map=layer_map, **settings), STUDENT, TEACHER)


def cached_teacher(folder, loss=None, *, limit_bytes=10**8, data=None, model=None) -> CountingTeacher:
    model = model or classifier(TEACHER, seed=2)
    cache = TeacherCache(folder, limit_bytes)
    found = CountingTeacher(model, loss or loss_of(LAYERS), data or examples(), cache)
    found.begin(start_accelerator("float32"))
    return found


@pytest.mark.parametrize("precision", PRECISIONS[1:])
def test_in_bf16_live_and_cached_outputs_are_alike(tmp_path, precision):
    teacher = CountingTeacher(classifier(TEACHER, seed=2), loss_of(LAYERS), examples(), TeacherCache(tmp_path, 10**8))
    teacher.begin(start_accelerator(precision))
    assert next(teacher.model.parameters()).dtype == torch.float32
    assert teacher.live(examples().batch(ROWS)).hidden[2].dtype == torch.float32
    assert_same_losses(teacher, rel=0.02)


def names(folder) -> set[str]:
    return {path.name for path in folder.glob("*.rows")}


def layer_file(cached: CountingTeacher) -> OutputFile:
    return next(file for file in cached.files if file.field != "logits")


def assert_same_losses(teacher: CountingTeacher, *, rel=HALF) -> dict:
    """The terms of a student on a padded batch, whose rows stand in another order than in the data."""
    loss, batch = teacher.loss, teacher.examples.batch(ROWS)
    student = classifier(seed=1)(batch, loss.student_spec)
    from_file = {name: term.item() for name, term in loss(student, teacher(batch), batch).items()}
    from_live = {name: term.item() for name, term in loss(student, teacher.live(batch), batch).items()}
    assert from_file == pytest.approx(from_live, rel=rel)
    assert all(value > 1e-6 for value in from_live.values())
    return from_file


@pytest.mark.parametrize(
    ("losses", "layer_map"),
    [
        (LAYERS, "uniform"),
        (LAYERS, "mean"),
        (LAYERS, "random"),
        (LAYERS, learnable()),
        ({"attention_kl": 1.0, "cosine": 1.0}, "top"),
        ({"pkd": 1.0, "hard": 0.5, "prediction": 0.5}, "uniform"),
        ({"logit_mse": 1.0}, "uniform"),
    ],
)
def test_cached_and_live_give_the_same_losses(tmp_path, losses, layer_map):
    loss = loss_of(losses, layer_map, temperature=2.0)
    cached = cached_teacher(tmp_path, loss)
    asked = cached.rows_asked
    cached(cached.examples.batch(ROWS))
    assert cached.rows_asked == asked  # all came from the file
    loss.map.redraw(1)
    assert_same_losses(cached)


def test_logits_are_cached_in_float32(tmp_path):
    cached = cached_teacher(tmp_path, loss_of({"prediction": 1.0}))
    batch = cached.examples.batch(ROWS)
    torch.testing.assert_close(cached(batch).logits, cached.live(batch).logits, rtol=1e-5, atol=1e-6)


def test_gradients_reach_a_learnable_map(tmp_path):
    loss = loss_of({"hidden": 1.0}, learnable())
    cached = cached_teacher(tmp_path, loss)
    batch = cached.examples.batch(ROWS)
    loss(classifier(seed=1)(batch, loss.student_spec), cached(batch), batch)["hidden"].backward()
    assert all(theta.grad.abs().sum() > 0 for theta in loss.map.theta)


def run(cache, losses=LAYERS, *, layer_map="uniform", epochs=4):
    model, asked = classifier(TEACHER, seed=2), []
    model.register_forward_pre_hook(lambda module, inputs: asked.append(len(inputs[0].input_ids)))
    training = Training(epochs=epochs, max_steps=None, batch_size=8, learning_rate=3e-3)
    student, loss = classifier(seed=1), loss_of(losses, layer_map)
    teacher = CachedTeacher(model, loss, examples(), cache) if cache else LiveTeacher(model, loss)
    batches = Batches(examples(), batch_size=8, seed=7)
    return train(student, loss, batches, Settings(training, OPTIMIZER, 7), teacher=teacher, run=RUN), sum(asked)


@pytest.mark.parametrize("layer_map", ["uniform", "random", learnable()])
def test_a_training_run_asks_once_and_learns_the_same(tmp_path, layer_map):
    live, asked_live = run(None, layer_map=layer_map)
    cached, asked_cached = run(TeacherCache(tmp_path, 10**8), layer_map=layer_map)
    assert (asked_live, asked_cached) == (4 * 24, 24 + 1)  # 1: for the shapes of the outputs
    assert [entry["total"] for entry in cached] == pytest.approx([entry["total"] for entry in live], rel=HALF)
    again, asked_again = run(TeacherCache(tmp_path, 10**8), layer_map=layer_map)
    assert asked_again == 1
    assert again == cached


@pytest.mark.parametrize(("limit_bytes", "epochs"), [(10**8, 0.9), (0, 3.0)])
def test_short_runs_and_a_limit_of_0_cache_nothing(tmp_path, limit_bytes, epochs):
    teacher = CountingTeacher(classifier(TEACHER), loss_of(LAYERS), examples(), TeacherCache(tmp_path, limit_bytes))
    teacher.begin(start_accelerator("float32"), epochs=epochs)
    assert names(tmp_path) == set()
    assert_same_losses(teacher, rel=1e-6)


def test_losses_that_read_padding_ask_the_live_teacher(tmp_path):
    cached = cached_teacher(tmp_path, loss_of(LAYERS, padded_tokens=16))
    assert names(tmp_path) == set()
    assert len(cached(cached.examples.batch(ROWS)).hidden[2]) == len(ROWS) * 16


@pytest.mark.parametrize("losses", [{"hard": 1.0, "prediction": 1.0}, {"prediction": 1.0}])
def test_hard_labels_of_varied_rows_are_the_teachers(tmp_path, losses):
    model, rows = classifier(TEACHER, seed=2), replace(examples(40), varied=np.arange(40) % 2 == 1)
    with torch.no_grad():
        model.classifier.weight.mul_(50)  # predictions of both classes
    predicted = predict(model, rows, TASKS["cola"])
    assert (predicted != rows.gold)[1::2].any()
    cached = cached_teacher(tmp_path, loss_of(losses), data=rows, model=model)
    found = cached.student_batches(rows, TASKS["cola"], batch_size=8, seed=0).rows.gold
    expected = np.where(rows.varied, predicted, rows.gold) if "hard" in losses else rows.gold
    assert found.tolist() == expected.tolist()


def test_hard_labels_of_varied_rows_with_several_labels(tmp_path):
    task = Task("tags", ("sentence",), ("no", "yes"), "tags", ("micro_f1",), kind="multilabel")
    gold, model = np.ones((3, 2), dtype=np.float32), classifier(TEACHER)
    rows = replace(examples(3), labels=gold, varied=np.array([False, True, True]))
    cached = cached_teacher(tmp_path, loss_of({"hard": 1.0}), data=rows, model=model)
    found = cached.student_batches(rows, task, batch_size=3, seed=0).rows.gold
    assert found.dtype == np.float32 and found[0].tolist() == [1, 1]
    assert found[1:].tolist() == predict(model, rows, task)[1:].tolist()


def test_phases_share_the_logits(tmp_path):
    cached_teacher(tmp_path, loss_of(LAYERS))
    before = names(tmp_path)
    prediction = cached_teacher(tmp_path, loss_of({"prediction": 1.0}))
    assert names(tmp_path) == before
    assert prediction.rows_asked == 1


def test_logits_do_not_depend_on_the_phase_that_fills_the_cache(tmp_path):
    computed, logits = [], []
    for number, losses in enumerate((LAYERS, {"prediction": 1.0})):
        model = classifier(TEACHER, seed=2)
        model.bert.encoder.layer[-1].output.register_forward_hook(lambda *call: computed.append(call[-1].shape))
        cached = cached_teacher(tmp_path / str(number), loss_of(losses), model=model)
        logits.append(cached(cached.examples.batch(ROWS)).logits)
    assert torch.equal(*logits)
    half = len(computed) // 2
    assert computed[:half] == computed[half:]  # all tokens of the last layer, whatever is read


@pytest.mark.parametrize(
    ("change", "new"),
    [
        ({"model": classifier(TEACHER, seed=5)}, 6),
        ({"model": classifier(replace(TEACHER, layer_norm_eps=1e-3), seed=2)}, 6),
        ({"data": examples(seed=9)}, 6),
        ({"loss": loss_of(LAYERS, "top")}, 5),  # logits are shared
        ({"loss": loss_of(LAYERS, "mean")}, 5),
    ],
    ids=["weights", "config", "data", "map", "weighing"],
)
def test_another_teacher_data_or_map_has_other_files(tmp_path, change, new):
    cached_teacher(tmp_path)
    first = names(tmp_path)
    assert_same_losses(cached_teacher(tmp_path, **change))
    assert len(names(tmp_path) - first) == new


def test_another_precision_has_other_files(tmp_path):
    cached = cached_teacher(tmp_path)
    before, cached.accelerator = cached._digest(), SimpleNamespace(mixed_precision="bf16")
    assert cached._digest() != before


MODULES = ["bert.py", "foreign.py", "losses.py", "objective.py", "outputs.py", "packed_linear.py", "teacher_cache.py"]


@pytest.mark.parametrize("module", MODULES)
def test_other_code_has_other_files(tmp_path, monkeypatch, module):
    cached_teacher(tmp_path)
    first = names(tmp_path)
    monkeypatch.setattr(
        teacher_cache, "normalized", lambda path: normalized(path) + ("edited" if path.name == module else "")
    )
    cached_teacher(tmp_path)
    assert len(names(tmp_path)) == 2 * len(first)


def test_a_cache_that_is_too_small_says_so_and_is_not_filled(tmp_path, capsys):
    needed = sum(file.size_bytes for file in cached_teacher(tmp_path / "whole").files)
    cached = cached_teacher(tmp_path / "small", limit_bytes=needed - 1)
    assert names(tmp_path / "small") == set() and cached.files == []
    assert "GB are needed); allowed" in capsys.readouterr().err
    assert_same_losses(cached, rel=1e-5)


def test_a_damaged_file_is_filled_again(tmp_path):
    file = layer_file(cached_teacher(tmp_path))
    whole = file.path.read_bytes()
    with open(file.path, "r+b") as handle:
        handle.seek(file.offsets[5] + 8)
        handle.write(b"\xff\x7b")
    cached = cached_teacher(tmp_path)
    assert cached.rows_asked == 1 + 24
    assert file.path.read_bytes() == whole
    assert_same_losses(cached)


@pytest.mark.parametrize("spoil", [lambda data: data[:-10], lambda data: data[::-1], lambda data: b""])
def test_a_truncated_or_foreign_file_is_filled_again(tmp_path, spoil):
    path = layer_file(cached_teacher(tmp_path)).path
    whole = path.read_bytes()
    path.write_bytes(spoil(whole))
    assert_same_losses(cached_teacher(tmp_path))
    assert path.read_bytes() == whole


def test_a_file_under_the_name_of_another_is_filled_again(tmp_path):
    first, second, *_ = (file.path for file in cached_teacher(tmp_path).files)
    whole = second.read_bytes()
    second.write_bytes(first.read_bytes())
    assert_same_losses(cached_teacher(tmp_path))
    assert second.read_bytes() == whole


def test_outputs_beyond_float16_are_not_cached(tmp_path):
    model = classifier(TEACHER, seed=2)
    with torch.no_grad():
        model.bert.encoder.layer[1].output.LayerNorm.weight.mul_(1e6)
    cached = cached_teacher(tmp_path, loss_of({"hidden": 1.0}), model=model)
    assert cached.files == [] and list(tmp_path.glob("*.*s")) == []
    assert_same_losses(cached, rel=1e-5)


def test_cached_logits_do_not_stand_for_layers(tmp_path, monkeypatch):
    cached_teacher(tmp_path, loss_of({"prediction": 1.0}))

    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert_same_losses(cached_teacher(tmp_path), rel=1e-5)


def test_record_sizes_by_hand(tmp_path):
    sizes = {}
    for file in cached_teacher(tmp_path).files:
        sizes[file.field, file.layer] = file.path.stat().st_size - 4
    lengths = examples().lengths
    states = 2 * 24 * lengths.sum()
    assert sizes.pop(("logits", 0)) == 4 * 2 * 24
    assert {layer: size for (field, layer), size in sizes.items() if field == "hidden"} == dict.fromkeys(
        range(3), states
    )
    assert sizes["scores", 1] == sizes["scores", 2] == 2 * 3 * (lengths**2).sum()


def test_the_least_recently_used_files_are_removed_first(tmp_path):
    cached_teacher(tmp_path, model=classifier(TEACHER, seed=2))
    size = sum(path.stat().st_size for path in tmp_path.glob("*.rows"))
    first = names(tmp_path)
    cached_teacher(tmp_path, model=classifier(TEACHER, seed=3))
    second = names(tmp_path) - first
    for seconds, group in ((1, first), (2, second)):
        for name in group:
            os.utime(tmp_path / name, (seconds, seconds))
    cached_teacher(tmp_path, model=classifier(TEACHER, seed=2))  # reads the first again
    cached_teacher(tmp_path, model=classifier(TEACHER, seed=4), limit_bytes=2 * size)
    assert first <= names(tmp_path)
    assert not second & names(tmp_path)


def test_files_that_are_there_need_no_further_room(tmp_path):
    needed = sum(file.size_bytes for file in cached_teacher(tmp_path).files)
    assert cached_teacher(tmp_path, limit_bytes=needed).rows_asked == 1


def test_a_full_disk_leaves_nothing_and_training_continues(tmp_path, monkeypatch, capsys):
    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    cached = cached_teacher(tmp_path)
    assert_same_losses(cached, rel=1e-5)
    assert list(tmp_path.glob("*.partial")) == []
    assert "No space left on device" in capsys.readouterr().err


def test_partial_files_are_removed_while_other_processes_wait(tmp_path, monkeypatch):
    unlink, removed = Path.unlink, []

    def unlink_under_lock(path, **options):
        with open(tmp_path / ".lock") as handle, pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        removed.append(path.suffix)
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", unlink_under_lock)
    monkeypatch.setattr(OutputFile, "write", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cached_teacher(tmp_path)
    assert removed == [".partial"] * 6
    assert names(tmp_path) == set()


def test_of_two_teachers_one_fills_the_cache(tmp_path):
    """In two threads, as two stages do: each opens the lock for itself."""
    given = [(classifier(TEACHER, seed=2), loss_of(LAYERS), examples(), TeacherCache(tmp_path, 10**8)) for _ in "12"]
    both, accelerator = [CountingTeacher(*arguments) for arguments in given], start_accelerator("float32")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda teacher: teacher.begin(accelerator), both))
    assert sorted(teacher.rows_asked for teacher in both) == [1, 1 + 24]
    assert len(names(tmp_path)) == 6
