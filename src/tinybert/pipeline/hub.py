"""The Hub: downloads retry transient errors, work offline from the cache, and fail with one line."""

import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPException, responses
from typing import Any

from tinybert.pipeline.errors import UserError

PROBE_TIMEOUT_S = 10
REASON_CHARACTERS = 200
RETRY_WAITS_S = (2, 8)
COMMIT = re.compile("[0-9a-f]{40}")

# The libraries' own texts take several lines, or do not say what to do. A gated repository is also "not found".
REASONS = {
    "GatedRepoError": "it is gated: accept its conditions on its page, then set HF_TOKEN to a token of yours",
    "RepositoryNotFoundError": "there is no such repository, or it is private and HF_TOKEN holds no token for it",
    "RevisionNotFoundError": "the repository has no such revision",
    "TimeoutException": "no answer in time; raise HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT (seconds)",
}
BROKEN_CONNECTION = {"NetworkError", "RemoteProtocolError"}
UNREACHABLE: set[str] = set()  # endpoints that this process could not reach


@contextmanager
def hub_access(key: str, name: str, *, fix: str, action: str = "loaded from") -> Iterator[None]:
    """Runs a block that loads `name` from the Hub; any error in it becomes a UserError with `key`, reason and `fix`.

    Import the Hub's libraries inside the block. If the Hub cannot be reached, they are put into offline mode for the
    rest of the process: cached files still load, and others fail without retries.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() not in {"1", "ON", "YES", "TRUE"} and not _is_reachable():
        UNREACHABLE.add(_endpoint())
        os.environ["HF_HUB_OFFLINE"] = "1"
        for module in ("huggingface_hub.constants", "datasets.config"):
            if module in sys.modules:  # it has read the variable already
                vars(sys.modules[module])["HF_HUB_OFFLINE"] = True
    obstacle = f"no connection to {_endpoint()}: " if _endpoint() in UNREACHABLE else ""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason, _ = _diagnose(error)
        raise UserError(f"{key}: {name} cannot be {action} the Hub ({obstacle}{reason}); fix: {fix}") from error


def hub_dataset(name: str, config: str | None, revision: str, **options: Any) -> Any:
    """Calls `datasets.load_dataset`, with retries. Call it inside `hub_access`."""
    from datasets import load_dataset

    loaded = with_retries(partial(load_dataset, name, config, revision=revision, **options))
    # After most errors the library takes what it cached last of this dataset, of whatever revision.
    files = str(getattr(loaded, "cache_files", ""))  # their folders are named after the commit
    if "filename" in files and COMMIT.fullmatch(revision) and revision not in files:  # streams and memory have none
        raise FileNotFoundError("the cache holds another revision only")
    return loaded


def with_retries(load: Callable[[], Any]) -> Any:
    """Calls `load`, and up to twice more after a server error or a broken connection.

    The library itself retries only some of these errors.
    """
    for wait_s in (*RETRY_WAITS_S, None):
        try:
            return load()
        except Exception as error:
            _, is_transient = _diagnose(error)
            if wait_s is None or not is_transient:
                raise
            time.sleep(wait_s)


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _is_reachable() -> bool:
    """Whether the endpoint answers at all, through the environment's proxy if there is one."""
    try:
        urllib.request.urlopen(urllib.request.Request(_endpoint(), method="HEAD"), timeout=PROBE_TIMEOUT_S).close()
    except urllib.error.HTTPError:
        return True  # it answers, if only with an error
    except urllib.error.URLError as error:
        return "SSL" in type(error.reason).__name__  # the libraries bring certificates of their own
    except (OSError, ValueError, HTTPException):
        return False
    return True


def _diagnose(error: Exception) -> tuple[str, bool]:
    """Returns the reason in one line, and whether a retry may succeed.

    The libraries wrap the cause in other errors. Classes are compared by name, because the libraries are imported late.
    """
    causes: list[BaseException] = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    for cause in causes:
        kinds = {kind.__name__ for kind in type(cause).__mro__}
        status = getattr(getattr(cause, "response", None), "status_code", 0)
        for kind, reason in REASONS.items():
            if kind in kinds:
                return reason, False
        if status in (401, 403):
            return f"access refused ({status}): HF_TOKEN holds no token that allows it", False
        if status >= 500:
            return f"server error {status} {responses.get(status, '')}; try again later", True
        if kinds & BROKEN_CONNECTION:
            return f"connection error: {_first_line(cause)}", True
    # The wrapper of `datasets` only says that it failed.
    informative = (cause for cause in causes if type(cause).__name__ != "DatasetGenerationError")
    return _first_line(next(informative, error)), False


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".")[:REASON_CHARACTERS] if lines else type(error).__name__
