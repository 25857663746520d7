"""Benchmarks in this process, with contestants in threads: a spawned process takes seconds to import PyTorch."""

import os
import pickle
import sys
from contextlib import closing, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from threading import Thread
from types import SimpleNamespace

import pytest

from benchmarks import timing


class ThreadAsProcess(Thread):
    """Takes what a spawned process takes: arguments that can be pickled, and a connection of its own."""

    def __init__(self, target, args, daemon) -> None:
        *arguments, gun = args
        self.gun = timing.StartGun(Connection(os.dup(gun.connection.fileno())))
        target, *arguments = pickle.loads(pickle.dumps([target, *arguments]))
        super().__init__(target=target, args=(*arguments, self.gun), daemon=daemon)

    def run(self) -> None:
        with closing(self.gun.connection), suppress(SystemExit):  # which ends a process without a message too
            super().run()


@pytest.fixture
def run_main(monkeypatch, capsys):
    """A function that runs a benchmark with options and returns the lines that it prints."""
    context = SimpleNamespace(Pipe=Pipe, Process=ThreadAsProcess)
    monkeypatch.setattr(timing, "multiprocessing", SimpleNamespace(get_context=lambda method: context))
    monkeypatch.setenv("TQDM_DISABLE", "1")  # benchmarks.ours sets it, and here it must be restored

    def run(module, *options: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [module.__name__, *options])
        module.main()
        return capsys.readouterr().out.splitlines()

    return run
