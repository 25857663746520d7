"""Runs `python -m module` in forks of one process that has imported the large libraries, which saves seconds each.

The server has imported torch, MLflow, DVC and others, but none of the project's modules: each copy of the project has
its own. CLIENT is a `python` for PATH: it asks the server for a fork with its own folder, environment and standard
streams, and ends as the fork does. Whatever is not `python -m` goes to the real Python.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

# Without huggingface_hub and what imports it: its import reads settings that tests change.
LIBRARIES = """torch torch._dynamo safetensors.torch tokenizers accelerate onnx numpy pandas pyarrow.parquet scipy.stats
    sklearn.metrics matplotlib.pyplot jinja2 pydantic ruamel.yaml mlflow mlflow.data.pandas_dataset
    mlflow.store.tracking.sqlalchemy_store dvc.cli dvc.repo dvc.commands.repro dvc.repo.experiments"""
# As the project sets them: the import of MLflow reads them.
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "CRITICAL"}
CLIENT = """#!{python} -IS
import os, sys
if sys.argv[1:2] != ["-m"]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
import json, signal, socket
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
socket.send_fds(server, [b"-"], [0, 1, 2])
with server.makefile("rw") as stream:
    print(json.dumps([sys.argv[0], sys.argv[2:], os.getcwd(), dict(os.environ)]), file=stream, flush=True)
    child = int(stream.readline())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: os.kill(child, number))
    status = int(stream.readline())
if status < 0:
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""


def start(folder: Path) -> Path:
    """Starts a server that ends with this process, however it ends; returns the `python` in `folder` that asks it."""
    client, address = folder / "python", str(folder / "socket")
    client.write_text(CLIENT.format(python=sys.executable, address=address))
    client.chmod(0o755)
    server = subprocess.Popen(
        [sys.executable, __file__, address],
        env=os.environ | QUIET,
        stdin=subprocess.PIPE,  # ends when this process ends
        stdout=subprocess.PIPE,
    )
    assert server.stdin and server.stdout and server.stdout.readline()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.wait)
    atexit.register(server.stdin.close)  # runs first: atexit calls in reverse order
    return client


def main(address: str) -> None:
    """Answers clients until standard input ends; in a fork, returns after the requested module has run."""
    for name in LIBRARIES.split():
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy all that is imported
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: reap())
    print("ready", flush=True)
    while listener in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            serve(connection)
            return
        connection.close()


def reap() -> None:
    """Waits for ended children, so that the CPU time of the forks counts as the tests'."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def serve(connection: socket.socket) -> None:
    """Forks and sends the fork's process id and exit status; returns in the fork when its module ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rw") as stream:
        executable, arguments, folder, environment = json.loads(stream.readline())
        if child := os.fork():
            print(child, file=stream, flush=True)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=stream, flush=True)
            os._exit(0)
    connection.close()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.executable, sys.argv, tempfile.tempdir = executable, arguments, None
    sys.path[0:1] = [folder, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
