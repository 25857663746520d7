"""Progress of long work: count, rate and remaining time, on the terminal's error stream."""

import sys

from tqdm import tqdm


def progress_bar(*args, **settings) -> tqdm:
    """A tqdm bar that redraws in place on a terminal and prints few lines into a log file."""
    interactive = sys.stderr.isatty()
    return tqdm(*args, **settings, mininterval=0.2 if interactive else 20, dynamic_ncols=interactive, leave=interactive)
