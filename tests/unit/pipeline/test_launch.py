"""How a training stage is launched."""

import os

import pytest

from tinybert.pipeline.errors import UserError
from tinybert.pipeline.launch import LAUNCHED, VARIABLE, is_main_process, relaunch


@pytest.fixture
def executed(monkeypatch):
    calls = []
    monkeypatch.setattr(os, "execvp", lambda *call: calls.append(call))
    for name in ("RANK", LAUNCHED):
        monkeypatch.delenv(name, raising=False)
    return calls


def test_without_a_launcher_the_process_goes_on(executed, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    relaunch("stages.general_distill", ["--student", "lazy"])
    assert executed == []


def test_the_launcher_gets_the_stage_as_a_module(executed, monkeypatch):
    monkeypatch.setenv(VARIABLE, "env 'two words' -x")
    relaunch("stages.general_distill", ["--student", "lazy"])
    assert executed == [("env", ["env", "two words", "-x", "-m", "stages.general_distill", "--student", "lazy"])]


def test_a_launched_process_launches_no_more(executed, monkeypatch):
    """Though its launcher leaves no rank, as Accelerate's does for one process."""
    monkeypatch.setenv(VARIABLE, "env")
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
    monkeypatch.setenv(VARIABLE, "no-such-launcher launch")
    with pytest.raises(UserError, match="TINYBERT_LAUNCHER: 'no-such-launcher' is no command here"):
        relaunch("stages.general_distill", [])
