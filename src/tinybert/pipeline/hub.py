"""The Hugging Face Hub from a distance: passing faults are waited out, damaged files go, one line when it fails."""

import hashlib
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, responses
from pathlib import Path
from typing import TypeVar

from tinybert.pipeline.errors import UserError

PROBE_TIMEOUT_S = 10
REASON_CHARACTERS = 200
RETRY_WAITS_S = (2, 8)
CHECKSUM = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")

Loaded = TypeVar("Loaded")

# What the libraries' errors say takes several lines, or nothing of what to do. A gated repository is also not found.
REASONS = {
    "GatedRepoError": "it is gated: accept its conditions on its page, then set HF_TOKEN to a token of yours",
    "RepositoryNotFoundError": "there is no such repository, or it is private and HF_TOKEN holds no token for it",
    "RevisionNotFoundError": "the repository has no such revision",
    "TimeoutException": "no answer in time; HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT, in seconds, grant more",
}
TORN = {"NetworkError", "RemoteProtocolError"}


class DamagedFileError(Exception):
    """A downloaded file is not what its checksum says."""


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
        reason = obstacle + _reason(error)
        raise UserError(f"{key}: {name} cannot be loaded from the Hub ({reason}); {fix}") from error


def hub_folder(hub, files: list[str], *, key: str, fix: str) -> Path:
    """Downloads those of `files` that the model `hub` (its model, its revision) has; the folder in the Hub's cache.

    UserError that names the section `key` of params, which has `hub`, and `fix` when that fails.
    """
    with hub_access(f"{key}.hub.model", f"{hub.model} ({hub.revision})", fix=fix):
        from huggingface_hub import snapshot_download

        def load() -> str:
            return snapshot_download(hub.model, revision=hub.revision, allow_patterns=files)

        return Path(load_whole(load, "models", hub.model))


def load_whole(load: Callable[[], Loaded], kind: str, repository: str) -> Loaded:
    """What `load` returns; it downloads files of a Hub repository (`kind`: models or datasets) into the Hub's cache.

    A server's error, a connection torn off and a file that is not what its checksum says are met by loading again,
    twice at most; a damaged file leaves the cache. The libraries check sizes alone, and do not retry all of these.
    """
    for wait_s in RETRY_WAITS_S:
        try:
            return _load_checked(load, kind, repository)
        except Exception as error:
            if not _may_pass(error):
                raise
        time.sleep(wait_s)
    return _load_checked(load, kind, repository)


def _load_checked(load: Callable[[], Loaded], kind: str, repository: str) -> Loaded:
    try:
        loaded = load()
    except Exception as error:
        _remove_damaged(kind, repository, cause=error)
        raise
    _remove_damaged(kind, repository)
    return loaded


def _remove_damaged(kind: str, repository: str, *, cause: Exception | None = None) -> None:
    """Takes the repository's damaged files out of the cache; DamagedFileError where there are any."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(HF_HUB_CACHE) / f"{kind}--{repository.replace('/', '--')}"
    names = {path.resolve(): path.name for path in folder.glob("snapshots/*/**/*")}
    blobs = [blob for blob in folder.glob("blobs/*") if blob.is_file()]
    damaged = {blob: names.get(blob.resolve(), blob.name) for blob in blobs if not _is_whole(blob)}
    for blob in damaged:
        blob.resolve().unlink()  # it may be a link to what all repositories share
        blob.unlink(missing_ok=True)
    if damaged:
        raise DamagedFileError(f"{min(damaged.values())} arrives damaged: its checksum is another") from cause


def _is_whole(blob: Path) -> bool:
    """Whether a file of the cache agrees with its name, the server's ETag, where that is a checksum.

    It is SHA-256 of a large file, git's object id of a small one; mirrors also give plain SHA-1.
    """
    if not CHECKSUM.fullmatch(blob.name):
        return True
    with open(blob, "rb") as handle:
        if len(blob.name) == 64:
            return hashlib.file_digest(handle, "sha256").hexdigest() == blob.name
        content = handle.read()
    git_object = b"blob %d\0" % len(content) + content
    return blob.name in (hashlib.sha1(git_object).hexdigest(), hashlib.sha1(content).hexdigest())


def _may_pass(error: Exception) -> bool:
    """Whether the same may succeed a little later."""
    for cause in _causes(error):
        if _kinds(cause) & (TORN | {"DamagedFileError"}):
            return True
        if status := _status(cause):
            return status >= 500
    return False


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
            vars(sys.modules[module])["HF_HUB_OFFLINE"] = True


def _reason(error: Exception) -> str:
    """What went wrong, from the error or the causes that the libraries wrap, in a line."""
    for cause in _causes(error):
        for kind, reason in REASONS.items():
            if kind in _kinds(cause):
                return reason
        if _status(cause) >= 500:
            return f"the server fails, {_status(cause)} {responses.get(_status(cause), '')}; try again later"
        if _kinds(cause) & TORN:
            return f"the connection breaks, {_first_line(cause)}"
    # The data sets' own wrapper says but that it failed.
    telling = (cause for cause in _causes(error) if "DatasetGenerationError" not in _kinds(cause))
    return _first_line(next(telling, error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int:
    """Of the answer that an HTTP error stands for; 0 for other errors."""
    return getattr(getattr(error, "response", None), "status_code", 0)


def _kinds(error: BaseException) -> set[str]:
    """The names of its classes: the libraries' own are imported late, and HTTP libraries change."""
    return {kind.__name__ for kind in type(error).__mro__}


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".")[:REASON_CHARACTERS] if lines else type(error).__name__
