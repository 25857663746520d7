"""Progress of long work: count, rate and remaining time, on the terminal's error stream."""

import sys
from typing import Any

from tqdm import tqdm


def progress_bar(**settings: Any) -> tqdm:
    """A tqdm bar that redraws in place on a terminal and prints few lines into a log file."""
    return tqdm(**_manner(), **settings)


def _manner() -> dict[str, Any]:
    interactive = sys.stderr.isatty()
    return {"mininterval": 0.2 if interactive else 20, "dynamic_ncols": interactive, "leave": interactive}


class TextBar(tqdm):
    """A bar of bytes that also shows documents a second."""

    documents = 0

    def advance(self, size_bytes: int, *, documents: int) -> None:
        """Counts what was done since the last call."""
        self.documents += documents
        self.update(size_bytes)

    @property
    def format_dict(self) -> dict:
        shown = super().format_dict
        rate = self.documents / shown["elapsed"] if shown["elapsed"] else 0
        return {**shown, "postfix": f"{rate:,.0f} documents/s"}


def text_progress_bar(title: str, total_bytes: int | None = None) -> TextBar:
    """A bar of MB/s, documents/s and, where the total is known, the remaining time; shown after a second."""
    return TextBar(desc=title, total=total_bytes, unit="B", unit_scale=True, delay=1, **_manner())
