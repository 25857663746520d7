"""The Hugging Face Hub from a distance: no long retries when it is out of reach, one line when it fails."""

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException

from tinybert.errors import UserError

PROBE_TIMEOUT_S = 10
REASON_CHARACTERS = 200


@contextmanager
def hub_access(key: str, name: str, *, fix: str) -> Iterator[None]:
    """Runs a block that loads `name` from the Hub; whatever fails in it becomes a UserError naming `key` and `fix`.

    Import the Hub's libraries inside the block. Where the Hub cannot be reached they are put into offline mode
    for the rest of the process: what is cached still loads, and what is not fails at once, without retries.
    """
    obstacle = ""
    if not _offline_is_set() and not _is_reachable():
        obstacle = f"no connection to {_endpoint()}: "
        _go_offline()
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = obstacle + _first_line(error)
        raise UserError(f"{key}: {name} cannot be loaded from the Hub ({reason}); {fix}") from error


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _offline_is_set() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def _is_reachable() -> bool:
    """Whether the endpoint answers at all, through the proxy of the environment where there is one."""
    request = urllib.request.Request(_endpoint(), method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=PROBE_TIMEOUT_S).close()
    except urllib.error.HTTPError:
        return True  # an answer, if not a kind one
    except urllib.error.URLError as error:
        return "SSL" in type(error.reason).__name__  # the libraries bring certificates of their own
    except (OSError, ValueError, HTTPException):
        return False
    return True


def _go_offline() -> None:
    """Sets offline mode for libraries not imported yet, and in those that read it already."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    for module in ("huggingface_hub.constants", "datasets.config"):
        if module in sys.modules:
            sys.modules[module].HF_HUB_OFFLINE = True


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".")[:REASON_CHARACTERS] if lines else type(error).__name__
