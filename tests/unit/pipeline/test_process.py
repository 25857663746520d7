"""Random streams that share nothing, how a training stage is launched, and the bar of text."""

import itertools
import os

import pytest

from tinybert.pipeline.errors import UserError
from tinybert.pipeline.process import LAUNCHED, LAUNCHER, is_main_process, relaunch, stream

PLACES = [(42, "order"), (42, "order", 0), (42, "order", 0, 0), (42, "masks", 0), (42, "masks", 0, 0), (0, "order", 42)]


def first_draw(place) -> float:
    return stream(*place).random()


def test_the_same_place_gives_the_same_numbers():
    assert first_draw((42, "order", 3)) == first_draw((42, "order", 3))


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(PLACES, 2)))
def test_different_places_give_different_numbers(one, other):
    assert first_draw(one) != first_draw(other)


@pytest.fixture
def executed(monkeypatch):
    calls = []
    monkeypatch.setattr(os, "execvp", lambda *call: calls.append(call))
    for name in ("RANK", LAUNCHED):
        monkeypatch.delenv(name, raising=False)
    return calls


def test_without_a_launcher_the_process_continues(executed, monkeypatch):
    monkeypatch.delenv(LAUNCHER, raising=False)
    relaunch("stages.general_distill", ["--student", "lazy"])
    assert executed == []


def test_the_launcher_gets_the_stage_as_a_module(executed, monkeypatch):
    monkeypatch.setenv(LAUNCHER, "env 'two words' -x")
    relaunch("stages.general_distill", ["--student", "lazy"])
    assert executed == [("env", ["env", "two words", "-x", "-m", "stages.general_distill", "--student", "lazy"])]


def test_a_launched_process_launches_no_more(executed, monkeypatch):
    """Though its launcher leaves no rank, as Accelerate's does for one process."""
    monkeypatch.setenv(LAUNCHER, "env")
    relaunch("stages.general_distill", [])
    relaunch("stages.general_distill", [])
    assert len(executed) == 1
    monkeypatch.delenv(LAUNCHED)


def test_the_first_of_several_processes_writes(executed, monkeypatch):
    assert is_main_process()
    monkeypatch.setenv("RANK", "1")
    assert not is_main_process()
    monkeypatch.setenv("RANK", "0")
    assert is_main_process()


def test_a_launcher_that_is_no_command_is_refused(executed, monkeypatch):
    monkeypatch.setenv(LAUNCHER, "no-such-launcher launch")
    with pytest.raises(UserError, match="TINYBERT_LAUNCHER: 'no-such-launcher' is not a command here"):
        relaunch("stages.general_distill", [])
