"""The teacher's answers to the rows of one data set, in one safetensors file: real tokens only, in half precision."""

import json
import os
import struct
import weakref
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tinybert.models.outputs import ModelOutput

TOKEN_FIELDS = ("hidden", "queries", "keys", "values")  # one vector for each token
UNKNOWN, SOUND, ABSENT = 0, 1, 2  # what is known of a row
DTYPES = {"F16": np.float16, "F32": np.float32, "U32": np.uint32}


@dataclass(frozen=True)
class Form:
    """What is kept of each row.

    tokens: (field of ModelOutput, layer) of all that has a vector of `width` for each token. scores: the layers whose
    attention scores are kept, `heads` in each. classes: logits of a row, 0 where they are not kept.
    """

    tokens: tuple[tuple[str, int], ...] = ()
    width: int = 0
    scores: tuple[int, ...] = ()
    heads: int = 0
    classes: int = 0

    @classmethod
    def of_layers(cls, answer: ModelOutput) -> "Form":
        """That of all but the logits of an answer."""
        tokens = tuple((field, layer) for field in TOKEN_FIELDS for layer in sorted(getattr(answer, field)))
        width = getattr(answer, tokens[0][0])[tokens[0][1]].shape[-1] if tokens else 0
        heads = next(iter(answer.scores.values())).shape[1] if answer.scores else 0
        return cls(tokens, width, tuple(sorted(answer.scores)), heads)

    @classmethod
    def of_logits(cls, answer: ModelOutput) -> "Form":
        """That of the logits of an answer."""
        return cls(classes=answer.required_logits.shape[-1])

    def row_bytes(self, lengths: np.ndarray) -> np.ndarray:
        """(rows,) int64: what rows of `lengths` tokens take."""
        vectors, squares = len(self.tokens) * self.width, len(self.scores) * self.heads
        return 2 * (lengths * vectors + lengths**2 * squares) + 4 * (self.classes + 1)


class CacheFile:
    """The answers to the first `len(lengths)` rows of a data set.

    Hidden states and scores are float16, logits float32; each row has a checksum, 0 where it has no answer. A row is
    checked when it is first read: a damaged one counts as absent. `facts` are kept with the tensors; a file with other
    facts, of another size or damaged at its head is not `is_valid`.

    Logits and checksums are held in memory, the rest is read row by row. It is not mapped: pages of a mapped file
    count as this process's memory, and one that is cut short meanwhile would end it without a word.
    """

    def __init__(self, path: Path, form: Form, lengths: np.ndarray, facts: dict[str, str]) -> None:
        self.path, self.form, self.lengths, self.facts = path, form, lengths.astype(np.int64), facts
        squares = self.lengths**2 * len(form.scores) * form.heads
        self.first_token = np.concatenate([[0], np.cumsum(self.lengths)])
        self.first_value = self.first_token * len(form.tokens) * form.width
        self.first_score = np.concatenate([[0], np.cumsum(squares)])
        rows = len(lengths)
        self.parts = {
            "logits": ("F32", (rows, form.classes)),
            "checksums": ("U32", (rows,)),
            "tokens": ("F16", (int(self.first_token[-1]), len(form.tokens), form.width)),
            "scores": ("F16", (int(self.first_score[-1]),)),
        }
        self.header = _header(self.parts, facts)
        ends = np.cumsum([len(self.header), *(_size(*part) for part in self.parts.values())]).tolist()
        self.offsets, self.size_bytes = dict(zip(self.parts, ends, strict=False)), ends[-1]
        self.logits = np.zeros((rows, form.classes), np.float32)
        self.checksums = np.zeros(rows, np.uint32)
        self.state = np.full(rows, UNKNOWN, dtype=np.uint8)

    @property
    def is_valid(self) -> bool:
        """Whether the file is there, whole, and of these facts."""
        try:
            with open(self.path, "rb") as handle:
                head = handle.read(len(self.header))
            return head == self.header and self.path.stat().st_size == self.size_bytes
        except OSError:
            return False

    def create(self) -> None:
        """Makes the file with all rows absent; OSError where the disk has no room for it."""
        with open(self.path, "wb") as handle:
            handle.write(self.header)
            handle.flush()
            os.posix_fallocate(handle.fileno(), 0, self.size_bytes)
        self._open(os.O_RDWR)

    def open(self) -> None:
        """Opens the file for reading."""
        self._open(os.O_RDONLY)
        self._read("logits", 0, self.logits)
        self._read("checksums", 0, self.checksums)

    def finish(self) -> None:
        """Hands all that was written to the disk."""
        self._write("logits", 0, self.logits)
        self._write("checksums", 0, self.checksums)
        os.fsync(self.descriptor)

    def _open(self, flags: int) -> None:
        self.descriptor = os.open(self.path, flags)
        weakref.finalize(self, os.close, self.descriptor)

    def write(self, rows: np.ndarray, lengths: np.ndarray, answer: ModelOutput) -> None:
        """Keeps the answers to `rows`, a batch in their order; a row that float16 cannot hold stays absent.

        lengths: (rows,) tokens of each.
        """
        vectors = [getattr(answer, field)[layer] for field, layer in self.form.tokens]
        maps = [answer.scores[layer] for layer in self.form.scores]
        tokens = torch.stack(vectors, dim=1).half().cpu() if vectors else None  # (tokens, fields, width)
        scores = torch.stack(maps, dim=1).half().cpu() if maps else None  # (batch, layers, heads, query, key)
        logits = answer.required_logits.float().cpu()
        ends = np.cumsum(lengths)
        for place, (row, length, end) in enumerate(zip(rows, lengths, ends, strict=True)):
            if row >= len(self.lengths):
                continue
            mine = self._empty_row(row)
            if tokens is not None:
                mine[0][:] = tokens[end - length : end].numpy()
            if scores is not None:
                mine[1][:] = scores[place, ..., :length, :length].reshape(-1).numpy()
            if self.form.classes:
                mine[2][:] = logits[place].numpy()
            if all(np.isfinite(part).all() for part in mine):
                self._write("tokens", self.first_value[row], mine[0])
                self._write("scores", self.first_score[row], mine[1])
                self.checksums[row] = _checksum(mine)

    def has(self, rows: np.ndarray) -> np.ndarray:
        """(rows,) bool: whose answers are here and sound."""
        is_inside = rows < len(self.lengths)
        inside = rows[is_inside]
        for row in inside[self.state[inside] == UNKNOWN]:
            stored = self.checksums[row]
            self.state[row] = SOUND if stored and stored == _checksum(self._row(row)) else ABSENT
        is_inside[is_inside] = self.state[inside] == SOUND
        return is_inside

    def read(self, rows: np.ndarray, places: np.ndarray, mask: Tensor) -> dict:
        """The fields of ModelOutput of a batch with this mask (batch, length), whose row places[i] is rows[i] here.

        All other rows hold zeros.
        """
        batch, length = mask.shape
        form = self.form
        ends = mask.sum(dim=1).cumsum(0).tolist()
        tokens = torch.zeros(ends[-1], len(form.tokens), form.width, dtype=torch.float16)
        scores = torch.zeros(batch, len(form.scores), form.heads, length, length, dtype=torch.float16)
        logits = torch.zeros(batch, form.classes)
        for row, place in zip(rows, places, strict=True):
            own = int(self.lengths[row])
            its_tokens, its_scores, its_logits = map(torch.from_numpy, self._row(row))
            tokens[ends[place] - own : ends[place]] = its_tokens
            scores[place, ..., :own, :own] = its_scores.view(len(form.scores), form.heads, own, own)
            logits[place] = its_logits
        device = mask.device
        tokens, scores = tokens.to(device), scores.to(device)
        fields: dict = {field: {} for field, _ in form.tokens}
        for index, (field, layer) in enumerate(form.tokens):
            fields[field][layer] = tokens[:, index]
        if form.scores:
            fields["scores"] = {layer: scores[:, index] for index, layer in enumerate(form.scores)}
        if form.classes:
            fields["logits"] = logits.to(device)
        return fields

    def _row(self, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The tokens (length, fields, width), the scores, flat, and the logits of a row."""
        found = self._empty_row(row)
        self._read("tokens", self.first_value[row], found[0])
        self._read("scores", self.first_score[row], found[1])
        return found

    def _empty_row(self, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Zeros for tokens and scores, and the place of the logits."""
        tokens = np.zeros((self.lengths[row], len(self.form.tokens), self.form.width), np.float16)
        return tokens, np.zeros(self.first_score[row + 1] - self.first_score[row], np.float16), self.logits[row]

    def _read(self, part: str, first: int, into: np.ndarray) -> None:
        """Fills `into` from element `first` of a part on; of a file that ends before, what is there."""
        offset, view = self._place(part, first, into)
        while view and (count := os.preadv(self.descriptor, [view], offset)):
            offset, view = offset + count, view[count:]

    def _write(self, part: str, first: int, values: np.ndarray) -> None:
        offset, view = self._place(part, first, values)
        while view:
            count = os.pwrite(self.descriptor, view, offset)
            offset, view = offset + count, view[count:]

    def _place(self, part: str, first: int, values: np.ndarray) -> tuple[int, memoryview]:
        """The byte where element `first` of a part lies, and the contiguous `values` as bytes."""
        return self.offsets[part] + int(first) * values.itemsize, values.reshape(-1).view(np.uint8).data


def _checksum(parts: tuple[np.ndarray, ...]) -> int:
    total = 0
    for part in parts:
        total = zlib.crc32(np.ascontiguousarray(part).view(np.uint8).reshape(-1).data, total)
    return total


def _size(dtype: str, shape: tuple[int, ...]) -> int:
    return int(np.prod(shape)) * np.dtype(DTYPES[dtype]).itemsize


def _header(parts: dict[str, tuple[str, tuple]], facts: dict[str, str]) -> bytes:
    """The head of a safetensors file: its length, then JSON, padded to eight bytes."""
    described: dict[str, object] = {"__metadata__": facts}
    offset = 0
    for name, (dtype, shape) in parts.items():
        described[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [offset, offset := offset + _size(dtype, shape)],
        }
    text = json.dumps(described, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
