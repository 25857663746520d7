"""A killed training goes on where it was, to the same weights bit for bit."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.support.root import ROOT
from tests.support.small_distillation import distill
from tinybert.distill import resume
from tinybert.distill.resume import Checkpoint
from tinybert.pipeline.errors import UserError

STEPS = 60


@pytest.fixture
def always_due(monkeypatch):
    monkeypatch.setenv("TINYBERT_CHECKPOINT_SECONDS", "0")


@pytest.fixture
def one_thread():
    """As in the process of `start`: the number of threads changes sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def start(folder: Path) -> subprocess.Popen:
    """The run with checkpoints in a process, slow enough to be killed."""
    command = [sys.executable, "-m", "tests.support.small_distillation", str(folder), "--steps", str(STEPS)]
    return subprocess.Popen(
        [*command, "--dropout", "0.2", "--checkpoint", "--pause", "0.05"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": "src", "TINYBERT_CHECKPOINT_SECONDS": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def saved_step(folder: Path) -> int:
    try:
        return torch.load(folder / "checkpoints/small.pt", weights_only=True)["step"]
    except OSError:
        return 0


def wait_for_step(folder: Path, step: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while saved_step(folder) < step:
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("steps", [(20,), pytest.param((1, 9, 20, 33, 50), marks=pytest.mark.long)])
def test_kills_change_no_bit_of_the_weights(tmp_path, always_due, one_thread, steps):
    for step in steps:
        process = start(tmp_path)
        wait_for_step(tmp_path, step, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert step <= saved_step(tmp_path) < STEPS
    resumed, curve = distill(steps=STEPS, dropout=0.2, checkpoint=Checkpoint(tmp_path / "checkpoints", lambda: "small"))
    undisturbed, whole_curve = distill(steps=STEPS, dropout=0.2)
    theirs = undisturbed.state_dict()
    assert all(tensor.equal(theirs[name]) for name, tensor in resumed.state_dict().items())
    assert curve == whole_curve and len(curve) == len(whole_curve) > 0


def test_points_so_far_are_given_out_again(tmp_path, always_due):
    first = Checkpoint(tmp_path, lambda: "a")
    _, curve = distill(steps=10, dropout=0.0, checkpoint=first)
    again = Checkpoint(tmp_path, lambda: "a")
    again._lock = first._lock  # as after the death of the first
    _, restored = distill(steps=10, dropout=0.0, checkpoint=again)
    assert restored == curve


def test_another_fingerprint_starts_again_and_an_end_cleans_up(tmp_path, always_due):
    checkpoint = Checkpoint(tmp_path, lambda: "a")
    distill(steps=3, dropout=0.0, checkpoint=checkpoint)
    assert (tmp_path / "a.pt").is_file()
    assert Checkpoint(tmp_path, lambda: "b").load() is None
    (tmp_path / ".a.pt.12345678.partial").touch()  # of a process that was killed while it wrote
    checkpoint.remove()
    assert [path.name for path in tmp_path.iterdir() if "a.pt" in path.name] == []


def test_short_runs_never_ask_for_a_fingerprint(tmp_path):
    def fingerprint():
        raise AssertionError("reads all inputs")

    checkpoint = Checkpoint(tmp_path / "none", fingerprint)
    distill(steps=3, dropout=0.0, checkpoint=checkpoint)
    checkpoint.remove()
    assert not (tmp_path / "none").exists()


def test_a_second_run_at_the_same_time_goes_without(tmp_path, always_due):
    first, second = Checkpoint(tmp_path, lambda: "a"), Checkpoint(tmp_path, lambda: "a")
    distill(steps=3, dropout=0.0, checkpoint=first)
    before = (tmp_path / "a.pt").read_bytes()
    assert second.load() is None
    distill(steps=2, dropout=0.0, checkpoint=second)
    assert (tmp_path / "a.pt").read_bytes() == before


@pytest.mark.parametrize("foreign", [{"weight": torch.zeros(2)}, Path("a"), [1]])
def test_a_foreign_file_is_no_checkpoint(tmp_path, foreign):
    torch.save(foreign, tmp_path / "a.pt")  # the second runs code when it is unpickled
    assert Checkpoint(tmp_path, lambda: "a").load() is None


def test_a_place_that_cannot_be_written_stops_no_training(tmp_path, always_due, capsys):
    (tmp_path / "file").write_text("")
    _, curve = distill(steps=3, dropout=0.0, checkpoint=Checkpoint(tmp_path / "file" / "in it", lambda: "a"))
    assert len(curve) == 3
    assert capsys.readouterr().err.count("checkpoint: not saved, training continues") == 1


def test_an_interval_that_is_no_number_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("TINYBERT_CHECKPOINT_SECONDS", "5min")
    with pytest.raises(UserError, match=r"TINYBERT_CHECKPOINT_SECONDS: must be a number of seconds \(got '5min'\)"):
        Checkpoint(tmp_path, lambda: "a")


def test_the_seconds_of_interrupted_runs_add_up(tmp_path, monkeypatch):
    monkeypatch.setattr(resume, "STARTED", 90.0)
    total = 0.0
    for step, now in enumerate((100.0, 130.0, 205.0)):
        monkeypatch.setattr(resume.time, "monotonic", lambda now=now: now)
        checkpoint = Checkpoint(tmp_path, lambda: "run")
        assert (checkpoint.load() or {"step": 0})["step"] == step
        assert checkpoint.earlier_seconds == total
        checkpoint.save({"step": step + 1})
        checkpoint._lock.close()  # as the end of a process does
        total += now - 90.0


def test_a_bit_that_turned_is_noticed(tmp_path):
    checkpoint = Checkpoint(tmp_path, lambda: "run")
    checkpoint.save({"step": 3, "weight": torch.arange(6.0)})
    content, weight = checkpoint.path.read_bytes(), torch.arange(6.0).numpy().tobytes()
    saved = checkpoint.load()
    assert (saved["step"], saved["weight"].tolist()) == (3, [0, 1, 2, 3, 4, 5])
    for place in (content.index(b"step"), content.index(weight) + 5):
        checkpoint.path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert checkpoint.load() is None
