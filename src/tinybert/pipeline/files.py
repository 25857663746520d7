"""Files that appear whole or not at all, and the plain formats the stages exchange."""

import errno
import glob
import json
import os
import secrets
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tinybert.pipeline.errors import UserError
from tinybert.pipeline.text_lines import json_object, parse_json

COMPRESSION_LEVEL = 6  # gzip's default
CHUNK_BYTES = 1 << 20
PARTIAL = ".partial"  # how the name of all ends that is not whole yet; git and DVC ignore it
FULL = (errno.ENOSPC, errno.EDQUOT)
TEMPORARY = os.environ.get("TMPDIR", "/tmp")  # tempfile.gettempdir() fails on full disks


@contextmanager
def atomic_file(path: str | Path, mode: str = "w") -> Iterator[IO]:
    """Opens a temporary file beside `path`; renames it to `path` when the block ends without error.

    Text is UTF-8 with "\\n" line ends. On an error nothing is left behind and an older `path` stays; what a killed
    writer of `path` left is removed. UserError where the disk is full.
    """
    path = Path(path)
    encoding, newline = (None, None) if "b" in mode else ("utf-8", "\n")
    with full_disk_told(path):
        temporary = _temporary(path)
        try:
            with open(temporary, mode, encoding=encoding, newline=newline) as handle:
                yield handle
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yields an empty temporary folder beside `path`; it becomes `path` when the block ends without error.

    An older folder at `path` is replaced as a whole. On an error nothing is left behind; what a killed writer of `path`
    left is removed. UserError where the disk is full.

    A kill just between the old folder and the new one leaves none. Nothing is lost: DVC removes the old one anyway
    before it runs a stage, and runs a stage again whose folder is absent.
    """
    path = Path(path)
    with full_disk_told(path):
        temporary = _temporary(path)
        try:
            temporary.mkdir()
            yield temporary
            _replace_folder(path, temporary)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextmanager
def full_disk_told(place: str | Path) -> Iterator[None]:
    """UserError where the block finds a disk full; it names the file that the system names, else `place`.

    Of what is written into a temporary folder the one who made that folder tells.
    """
    try:
        yield
    except Exception as error:  # safetensors and ONNX Runtime have errors of their own for it
        reasons = [os.strerror(number) for number in FULL if number == getattr(error, "errno", None)]
        reasons += [os.strerror(number) for number in FULL if os.strerror(number) in str(error)]
        if not reasons or isinstance(error, UserError) or PARTIAL in str(place):
            raise
        named = str(getattr(error, "filename", None) or place)
        raise UserError(
            f"{place if PARTIAL in named else named}: {reasons[0]}; free some space, and run it again"
        ) from error


def _temporary(path: Path) -> Path:
    """A free name beside `path`, on the same disk, which git and DVC ignore.

    Makes the folder for it, and removes what killed writers of `path` left there. A writer of `path` that is still
    at work, a stage whose `dvc repro` alone was killed, loses what it has and ends with an error when it renames it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in list(path.parent.glob(f".{glob.escape(path.name)}.????????{PARTIAL}")):
        doomed = _free_name(path)  # half removed it would pass for a whole one
        os.replace(leftover, doomed)
        shutil.rmtree(doomed) if doomed.is_dir() else doomed.unlink()
    return _free_name(path)


def _free_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}")


def _replace_folder(path: Path, new: Path) -> None:
    older = _free_name(path)
    if path.exists():
        os.replace(path, older)
    try:
        os.replace(new, path)
    except OSError:
        if older.exists():
            os.replace(older, path)
        raise
    shutil.rmtree(older, ignore_errors=True)


def write_json(path: str | Path, value) -> None:
    """Writes `value` as indented JSON, in the order given; NaN and infinity are refused (ValueError)."""
    with atomic_file(path) as handle:
        json.dump(value, handle, indent=2, ensure_ascii=False, allow_nan=False)
        handle.write("\n")


def read_json(path: str | Path):
    """Reads a JSON file; ValueError where it is none, or holds NaN or infinity, which are no JSON."""
    return parse_json(Path(path).read_text(encoding="utf-8"))


def write_jsonl(path: str | Path, rows: Iterable[dict]) -> int:
    """Writes one JSON object a line and returns how many; `rows` may be a stream of any length."""
    count = 0
    with atomic_file(path) as handle:
        for row in rows:
            handle.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count


def read_jsonl(path: str | Path) -> Iterator[dict]:
    """Yields the objects of a JSON-lines file one by one; a line that is none is a UserError."""
    with open(path, "rb") as handle:
        for number, line in enumerate(handle, start=1):
            yield json_object(line, f"{path}, line {number}")


def file_sizes_mb(path: str | Path) -> dict[str, float]:
    """Size of a file in MB (10^6 bytes): raw, and compressed as gzip does at its default level."""
    compressor = zlib.compressobj(COMPRESSION_LEVEL, wbits=31)  # 31: gzip format, time stamp 0
    compressed = 0
    with open(path, "rb") as handle:
        while chunk := handle.read(CHUNK_BYTES):
            compressed += len(compressor.compress(chunk))
    compressed += len(compressor.flush())
    return {"raw": Path(path).stat().st_size / 1e6, "compressed": compressed / 1e6}
