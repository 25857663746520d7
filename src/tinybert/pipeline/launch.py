"""How a training stage is launched: in this process, or by a launcher that the environment names.

TINYBERT_LAUNCHER="accelerate launch --num_processes 2" makes every training stage start itself anew under that
command. It is no part of params: how a stage is launched is no setting of the experiment, and changing it reruns
nothing.
"""

import os
import shlex
import shutil

from tinybert.pipeline.errors import UserError

VARIABLE = "TINYBERT_LAUNCHER"
LAUNCHED = "TINYBERT_LAUNCHED"  # set for the processes that a launcher starts: not each launcher leaves a mark


def is_main_process() -> bool:
    """Whether this process writes and reports: the only one, or the first of several."""
    return int(os.environ.get("RANK", "0")) == 0


def relaunch(script: str, arguments: list[str]) -> None:
    """Replaces this process by `script` (a module) under the launcher; returns where none is set or it runs already.

    UserError when the launcher is no command.
    """
    command = shlex.split(os.environ.get(VARIABLE, ""))
    if not command or LAUNCHED in os.environ:
        return
    if not shutil.which(command[0]):
        raise UserError(f"{VARIABLE}: {command[0]!r} is no command here; name a launcher such as accelerate launch")
    os.environ[LAUNCHED] = "1"
    os.execvp(command[0], [*command, "-m", script, *arguments])
