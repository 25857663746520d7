"""Where the independent parts of a stage are computed: in its process, or on a Ray cluster."""

import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import tinybert
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import one_line

ENGINE = "TINYBERT_ENGINE"  # "local" (the default) or "ray"; not in params.yaml, like TINYBERT_LAUNCHER
ITEMS_PER_RAY_TASK = 64


def ordered_map(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """The result of `function` for each item, in order; UserError for an unknown engine, or without Ray or a cluster.

    Ray joins the cluster that RAY_ADDRESS names or that runs on this machine, or starts one. Its machines need the
    project's packages; the code is sent to them. If a worker machine fails, the others compute its unfinished items.
    """
    if (engine := os.environ.get(ENGINE, "local")) == "local":
        yield from map(function, items)
        return
    try:
        import ray
    except ImportError:
        engine += " without its package"
    if engine != "ray":
        raise UserError(f"{ENGINE}: no such engine here (got {engine}); allowed: local, ray; fix: unset it, or get ray")
    address = os.environ.get("RAY_ADDRESS", "")
    hidden = {"CUDA_VISIBLE_DEVICES": "", "RAYON_NUM_THREADS": "1"}  # a task has one CPU and no GPU
    try:
        if ":" in address:  # Ray itself would wait for minutes
            host, _, port = address.rpartition("/")[2].rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        code = {"py_modules": [str(Path(tinybert.__file__).parent)], "env_vars": hidden}
        ray.init(runtime_env=code, ignore_reinit_error=True, log_to_driver=False, configure_logging=False)
    except Exception as error:  # of many types
        problem = f"no Ray cluster can be used (got {address!r}: {one_line(error):.200})"
        raise UserError(f"RAY_ADDRESS: {problem}; allowed: HOST:PORT; fix: start Ray there, or unset it") from None
    compute: Any = ray.remote(max_retries=-1)(lambda function, some: list(map(function, some)))
    shared, running, left = ray.put(function), deque[Any](), iter(items)
    while some := list(islice(left, ITEMS_PER_RAY_TASK)):
        running.append(compute.remote(shared, some))
        if len(running) > 2 * ray.cluster_resources().get("CPU", 1):
            yield from ray.get(running.popleft())
    for results in running:
        yield from ray.get(results)
