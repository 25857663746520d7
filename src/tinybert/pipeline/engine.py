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

# "local" (the default) or "ray". Not part of params, as the launcher is not: it changes no result.
ENGINE = "TINYBERT_ENGINE"
PARTS_A_TASK = 64


def in_order(function: Callable[[Any], Any], parts: Iterable) -> Iterator[Any]:
    """The result of `function` for each part, in order; UserError for an unknown engine or without a cluster.

    Ray takes the cluster that RAY_ADDRESS names, or starts one on this machine. Its machines need the project's
    packages and get its code from here. What a machine has not finished when it fails is computed by another one.
    """
    if (engine := os.environ.get(ENGINE, "local")) == "local":
        yield from map(function, parts)
        return
    if engine != "ray":
        raise UserError(f"{ENGINE}: no engine (got {engine}); allowed: local, ray; fix: correct the variable")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray

        if ":" in (address := os.environ.get("RAY_ADDRESS", "")):  # Ray itself would wait for minutes
            host, _, port = address.rpartition("/")[2].rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        code = {"py_modules": [str(Path(tinybert.__file__).parent)], "env_vars": {"RAYON_NUM_THREADS": "1"}}
        ray.init(runtime_env=code, ignore_reinit_error=True, log_to_driver=False, configure_logging=False)
    except (ImportError, OSError, ValueError) as error:
        problem = f"{ENGINE}: Ray cannot be used ({str(error).splitlines()[0]})"
        raise UserError(f"{problem}; fix: pip install ray, and set RAY_ADDRESS to a running cluster") from None
    compute: Any = ray.remote(max_retries=-1)(lambda function, some: list(map(function, some)))
    shared, running, left = ray.put(function), deque[Any](), iter(parts)
    while some := list(islice(left, PARTS_A_TASK)):
        running.append(compute.remote(shared, some))
        if len(running) > 2 * ray.cluster_resources().get("CPU", 1):
            yield from ray.get(running.popleft())
    for results in running:
        yield from ray.get(results)
