"""Work spread over processes: results in order, and never more than a few items on the way."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any, TypeVar

from tinybert.pipeline.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")

# Up to this size one process is done before others would have started.
ALONE_BYTES = 8 * 2**20
# Each process holds up to 100 MB: many more of them would need more than 2 GiB.
MOST_PROCESSES = 16
# Items handed out for each process: one in work, one waiting, so that none of them is ever idle.
ITEMS_A_PROCESS = 2

_function: Callable  # in a worker: what it is there for


def processes_for(size_bytes: int) -> int:
    """How many processes a text of this size is worth: 1 if it is small, else one for each usable CPU, at most 16."""
    return 1 if size_bytes <= ALONE_BYTES else min(len(os.sched_getaffinity(0)), MOST_PROCESSES)


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], *, processes: int
) -> Iterator[tuple[Item, Result]]:
    """Yields (item, function(item)) in the order of `items`, computed by so many processes; 1: in this one.

    `function` is pickled once for each process, items and results on their way. `items` may be a stream of any
    length: it is read two items a process ahead of what was yielded, no further. An exception of `function` or of
    `items` is raised here; UserError when a process was killed.
    """
    if processes == 1:
        for item in items:
            yield item, function(item)
        return
    # "spawn": a fork would copy locks that other threads (MLflow's, tqdm's) hold at that moment, for ever locked.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_start_worker, initargs=(function,))
    try:
        handed_out = ((item, pool.submit(_work, item)) for item in items)
        for item, future in _read_ahead(handed_out, ITEMS_A_PROCESS * processes):
            yield item, future.result()
    except BrokenProcessPool:
        raise UserError(
            f"one of {processes} worker processes was killed, most likely for lack of memory; free some, "
            "or allow fewer CPUs (taskset -c 0,1 COMMAND allows two)"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _read_ahead(found: Iterable[Item], count: int) -> Iterator[Item]:
    pending: deque[Item] = deque()
    for item in found:
        pending.append(item)
        if len(pending) >= count:
            yield pending.popleft()
    yield from pending


def _start_worker(function: Callable) -> None:
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it ends the others in order
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process a CPU: threads would only take turns
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent killed by SIGKILL ends nobody, and its workers would wait for ever."""
    if parent := multiprocessing.parent_process():
        wait([parent.sentinel])
    os._exit(1)


def _work(item: Any) -> Any:
    return _function(item)
