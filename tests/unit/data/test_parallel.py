"""Order, bounded read-ahead, and the ends of worker processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tinybert.data import parallel
from tinybert.data.parallel import map_in_order, processes_for
from tinybert.pipeline.errors import UserError


def square_slowly(number: int) -> tuple[int, int]:
    time.sleep(0.02 * (number % 3))  # so that later ones are done earlier
    return number * number, os.getpid()


def check_five(number: int) -> int:
    if number == 5:
        raise UserError("line 5: no")
    return number


def die_at_five(number: int) -> int:
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_order_and_from_other_processes(processes):
    results = list(map_in_order(square_slowly, range(12), processes=processes))
    assert [(item, square) for item, (square, _) in results] == [(number, number**2) for number in range(12)]
    elsewhere = {worker for _, (_, worker) in results} - {os.getpid()}
    assert len(elsewhere) == 0 if processes == 1 else 1 <= len(elsewhere) <= 2


@pytest.mark.parametrize(("processes", "most_ahead"), [(1, 1), (2, 4)])
def test_a_stream_is_read_no_further_than_a_few_items_ahead(processes, most_ahead):
    taken = 0

    def stream():
        nonlocal taken
        for number in range(30):
            taken += 1
            yield number

    ahead = [taken - done for done, _ in enumerate(map_in_order(abs, stream(), processes=processes))]
    assert len(ahead) == 30 and max(ahead) == most_ahead


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_in_a_worker_arrives_behind_the_results_before_it(processes):
    found = []
    with pytest.raises(UserError, match=r"^line 5: no$"):
        for _, result in map_in_order(check_five, range(50), processes=processes):
            found.append(result)
    assert found == [0, 1, 2, 3, 4]


def test_a_killed_worker_is_told_in_one_line():
    with pytest.raises(UserError, match="one of 2 worker processes was killed, most likely") as caught:
        list(map_in_order(die_at_five, range(50), processes=2))
    assert "\n" not in str(caught.value)


KILLED_SCRIPT = """
import os, signal
from tests.unit.data.test_parallel import square_slowly
from tinybert.data.parallel import map_in_order
if __name__ == "__main__":
    for _, (_, worker) in map_in_order(square_slowly, range(100), processes=2):
        print(worker, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(KILLED_SCRIPT)
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"}
    # Workers hold the standard output open: this returns when all have ended, or fails by its time limit.
    process = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=20)
    assert process.returncode == -signal.SIGKILL and int(process.stdout) > 0


def test_small_texts_are_worth_one_process_and_large_ones_all_usable_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(5))
    assert [processes_for(size) for size in (0, parallel.ALONE_BYTES, parallel.ALONE_BYTES + 1)] == [1, 1, 5]
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(192))
    assert processes_for(10**12) == parallel.MOST_PROCESSES
