"""The teacher is asked once: over the epochs of fixed data its outputs are read from disk."""

import contextlib
import fcntl
import hashlib
import inspect
import json
import os
import sys
import weakref
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from tinybert.data.encoding import Encoded
from tinybert.distill import layer_map, objective
from tinybert.distill.loop import LiveTeacher
from tinybert.distill.objective import DistillationLoss
from tinybert.models import bert, outputs
from tinybert.models.checkpoints import Model
from tinybert.models.outputs import Batch, DistillationTargets, ModelOutput, RealTokens
from tinybert.pipeline import paths
from tinybert.pipeline.code_digest import normalized
from tinybert.pipeline.process import progress_bar

TOKEN_FIELDS = ("hidden", "queries", "keys", "values")  # one vector for each token
FILLING_BATCH_SIZE = 64
ENDING = ".rows"
CHECKSUM_BYTES = 4
UNCHECKED, VALID, ABSENT = 0, 1, 2  # what is known of a row


@dataclass(frozen=True)
class Layout:
    """What a record holds of a row: vectors of real tokens and scores in float16, logits in float32.

    Attributes:
        tokens: (field of ModelOutput, layer) of all that has a vector for each token.
        width: Of these vectors.
        scores: Layers whose attention scores are kept.
        heads: Of these layers.
        classes: Number of logits.
    """

    tokens: tuple[tuple[str, int], ...] = ()
    width: int = 0
    scores: tuple[int, ...] = ()
    heads: int = 0
    classes: int = 0

    def record_bytes(self, lengths: np.ndarray) -> np.ndarray:
        """The size of the records of rows of `lengths` tokens: (rows,) int64, checksums included."""
        vectors, squares = len(self.tokens) * self.width, len(self.scores) * self.heads
        return 2 * (lengths * vectors + lengths**2 * squares) + 4 * self.classes + CHECKSUM_BYTES

    def pack(self, teacher_outputs: ModelOutput, lengths: np.ndarray) -> Iterator[bytes | None]:
        """The content of each row of a batch; None for a row that float16 cannot hold."""
        vectors = [getattr(teacher_outputs, field)[layer] for field, layer in self.tokens]
        maps = [teacher_outputs.scores[layer] for layer in self.scores]
        tokens = torch.stack(vectors, dim=1).half().cpu().numpy() if vectors else None  # (tokens, fields, width)
        scores = torch.stack(maps, dim=1).half().cpu().numpy() if maps else None  # (batch, layers, heads, query, key)
        logits = teacher_outputs.required_logits.float().cpu().numpy() if self.classes else None
        for place, (length, end) in enumerate(zip(lengths, np.cumsum(lengths), strict=True)):
            parts = [] if tokens is None else [tokens[end - length : end]]
            parts += [] if scores is None else [scores[place, ..., :length, :length]]
            parts += [] if logits is None else [logits[place]]
            yield b"".join(part.tobytes() for part in parts) if all(np.isfinite(part).all() for part in parts) else None

    def unpack(self, records: Sequence[np.ndarray], places: np.ndarray, mask: Tensor) -> dict:
        """The fields of ModelOutput of a batch, zeros in the rows that have no record.

        Args:
            records: The contents of the rows `places` of the batch.
            places: (records,) int64.
            mask: Of the batch, (batch, length) bool; the fields are on its device.
        """
        batch, length = mask.shape
        ends = mask.sum(dim=1).cumsum(0).tolist()
        tokens = torch.zeros(ends[-1], len(self.tokens), self.width, dtype=torch.float16)
        scores = torch.zeros(batch, len(self.scores), self.heads, length, length, dtype=torch.float16)
        logits = torch.zeros(batch, self.classes)
        for record, place in zip(records, places, strict=True):
            own = ends[place] - (ends[place - 1] if place else 0)
            cuts = np.cumsum([2 * own * len(self.tokens) * self.width, 2 * own**2 * len(self.scores) * self.heads])
            vectors, squares, classes = map(torch.from_numpy, np.split(record, cuts))
            tokens[ends[place] - own : ends[place]] = vectors.view(torch.float16).view(
                own, len(self.tokens), self.width
            )
            scores[place, ..., :own, :own] = squares.view(torch.float16).view(len(self.scores), self.heads, own, own)
            logits[place] = classes.view(torch.float32)
        tokens, scores = tokens.to(mask.device), scores.to(mask.device)
        fields: dict = {field: {} for field, _ in self.tokens}
        for index, (field, layer) in enumerate(self.tokens):
            fields[field][layer] = tokens[:, index]
        fields["scores"] = {layer: scores[:, index] for index, layer in enumerate(self.scores)}
        return fields | ({"logits": logits.to(mask.device)} if self.classes else {})


class RowFile:
    """One record for each of the first rows of a data set, behind a line of JSON that says what the file holds.

    A record is checked when it is first read; a damaged or missing one counts as absent. The file is read row by row
    and not memory-mapped: mapped pages count as this process's memory, and a file that is cut short would kill it.

    Args:
        path: Of the file.
        layout: Of the records.
        lengths: Tokens of each row, (rows,) int64.
        facts: All that the records depend on.
    """

    def __init__(self, path: Path, layout: Layout, lengths: np.ndarray, facts: dict[str, str]) -> None:
        self.path, self.layout = path, layout
        self.header = json.dumps(facts, sort_keys=True).encode() + b"\n"
        self.offsets = len(self.header) + np.concatenate([[0], np.cumsum(layout.record_bytes(lengths))]).astype(int)
        self.size_bytes = int(self.offsets[-1])
        self.known = np.full(len(lengths), UNCHECKED, dtype=np.uint8)
        self.partial = path.with_suffix(".partial")
        self.descriptor = -1

    @property
    def is_valid(self) -> bool:
        """Whether the file exists, is complete, and holds what it should."""
        try:
            with open(self.path, "rb") as handle:
                return handle.read(len(self.header)) == self.header and self.path.stat().st_size == self.size_bytes
        except OSError:
            return False

    def create(self) -> None:
        """Creates the file, under the name `partial`, with all rows absent; OSError if the disk is full."""
        self.partial.write_bytes(self.header)
        self._open(self.partial, os.O_RDWR)
        os.posix_fallocate(self.descriptor, 0, self.size_bytes)

    def finish(self) -> None:
        """Puts the created file in place."""
        os.fsync(self.descriptor)
        os.replace(self.partial, self.path)

    def open(self) -> None:
        """Opens the file to read, as the most recently used one."""
        self._open(self.path, os.O_RDONLY)
        os.utime(self.path)

    def _open(self, path: Path, flags: int) -> None:
        self.descriptor = os.open(path, flags)
        weakref.finalize(self, os.close, self.descriptor)

    def write(self, row: int, content: bytes | None) -> None:
        """Writes a row's record; rows behind the last one, and those without content, stay absent."""
        if content is not None and row < len(self.known):
            os.pwrite(self.descriptor, content + _checksum(content), self.offsets[row])

    def read(self, row: int) -> np.ndarray | None:
        """The content of a row's record, uint8; None if it is absent."""
        if row >= len(self.known) or self.known[row] == ABSENT:
            return None
        record = np.zeros(self.offsets[row + 1] - self.offsets[row], np.uint8)
        count = os.preadv(self.descriptor, [record.data], self.offsets[row])
        content, checksum = record[:-CHECKSUM_BYTES], record[-CHECKSUM_BYTES:]
        if self.known[row] == UNCHECKED:
            self.known[row] = VALID if checksum.tobytes() == _checksum(content.data) else ABSENT
        return content if self.known[row] == VALID and count == len(record) else None


@dataclass(frozen=True)
class TeacherCache:
    """The folder of cached outputs and how much it may hold; the least recently used files are removed first."""

    folder: Path
    limit_bytes: int

    @classmethod
    def of(cls, gigabytes: float) -> "TeacherCache":
        """The project's cache; with 0 GB nothing is cached."""
        return cls(paths.teacher_cache(), int(gigabytes * 1e9))

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lets one process at a time fill the cache; the next finds there what it needs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / ".lock", "a", encoding="utf-8") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("teacher cache: waiting for another stage that fills it", file=sys.stderr)
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def make_room(self, size_bytes: int, *, keep: set[Path]) -> None:
        """Removes the least recently used files until `size_bytes` more fit; never those of `keep`."""
        for leftover in self.folder.glob("*.partial"):
            leftover.unlink()
        files = sorted(self.folder.glob(f"*{ENDING}"), key=lambda path: path.stat().st_mtime)
        held = sum(path.stat().st_size for path in files)
        for path in (path for path in files if path not in keep):
            if held + size_bytes <= self.limit_bytes:
                break
            held -= path.stat().st_size
            path.unlink()


class CachedTeacher(LiveTeacher):
    """A teacher whose outputs for fixed data are computed once and then read from files.

    Cached are the logits and what else the losses read: under a fixed layer map the float32 average, otherwise all
    layers of its groups. If the cache is too small, the first rows are cached and the teacher is asked for the others.
    Files are keyed by the teacher's weights, the data, the map, the layout and the code. A cached output differs from a
    live one by the rounding of hidden states and scores to float16; logits do not differ.

    Args:
        model: The teacher.
        loss: What reads its outputs.
        examples: All rows of the data, in the order of Batch.numbers.
        cache: Where the files are.
    """

    def __init__(self, model: Model, loss: DistillationLoss, examples: Encoded, cache: TeacherCache) -> None:
        super().__init__(model, loss)
        self.examples, self.cache = examples, cache
        self.files: list[RowFile] = []

    def begin(self, accelerator: Accelerator, *, epochs: float = 1.0) -> None:
        """Fills the cache, unless the run takes less than an epoch: then fewer rows are read than would be cached."""
        super().begin(accelerator)
        if epochs < 1 or not self.cache.limit_bytes:
            return
        files = self._files()
        is_open = accelerator.is_local_main_process and (_open(files) or self._fill(files))
        accelerator.wait_for_everyone()
        self.files = files if is_open or _open(files) else []

    def __call__(self, batch: Batch) -> ModelOutput:
        """Distillation targets if the layer map is fixed, otherwise the teacher's outputs."""
        assert batch.numbers is not None
        records: list[list] = [[file.read(row) for file in self.files] for row in batch.numbers.tolist()]
        cached = np.array([bool(found) and all(part is not None for part in found) for found in records])
        if not cached.any():
            return self._reduced(super().__call__(batch))
        places = np.flatnonzero(cached)
        fields: dict = {}
        for index, file in enumerate(self.files):
            fields |= file.layout.unpack([records[place][index] for place in places], places, batch.mask)
        teacher_outputs = (DistillationTargets if self._is_reduced else ModelOutput)(**fields)
        if not cached.all():
            missing = torch.from_numpy(np.flatnonzero(~cached)).to(batch.mask.device)
            live = self._reduced(super().__call__(batch.rows(missing)))
            teacher_outputs = _merged(teacher_outputs, missing, live, batch.real)
        return teacher_outputs

    @property
    def _is_reduced(self) -> bool:
        return self.loss.map.is_fixed

    def _reduced(self, teacher_outputs: ModelOutput) -> ModelOutput:
        return self.loss.targets(teacher_outputs) if self._is_reduced else teacher_outputs

    def _compute(self, batch: Batch) -> ModelOutput:
        """All that is cached of a batch."""
        spec = replace(self.loss.teacher_full_spec, logits=True)
        return self._reduced(self.ask(batch.to(self.accelerator.device), spec))

    def _files(self) -> list[RowFile]:
        """A file of logits and one of all else: phases that read other layers share the logits."""
        first = self._compute(self.examples.batch([0]))
        facts = {"teacher": self._digest_teacher(), "data": _digest_examples(self.examples), "code": _digest_code()}
        tokens = tuple((field, layer) for field in TOKEN_FIELDS for layer in sorted(getattr(first, field)))
        width = getattr(first, tokens[0][0])[tokens[0][1]].shape[-1] if tokens else 0
        heads = next(iter(first.scores.values())).shape[1] if first.scores else 0
        layers = Layout(tokens, width, tuple(sorted(first.scores)), heads)
        logits = self._file("logits", Layout(classes=first.required_logits.shape[-1]), facts, self.cache.limit_bytes)
        if not (layers.tokens or layers.scores):
            return [logits] if self.loss.teacher_full_spec.logits else []
        if self._is_reduced:
            facts |= {"averaged": str(self.loss.map.layers)}
        return [logits, self._file("layers", layers, facts, self.cache.limit_bytes - logits.size_bytes)]

    def _file(self, name: str, layout: Layout, facts: dict[str, str], limit_bytes: int) -> RowFile:
        lengths = self.examples.lengths
        facts = facts | {"layout": json.dumps(asdict(layout))}
        header_bytes = len(json.dumps(facts)) + 100
        ends = np.cumsum(layout.record_bytes(lengths))
        rows = int(np.searchsorted(ends, limit_bytes - header_bytes, side="right"))
        facts["rows"] = str(rows)
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
        return RowFile(self.cache.folder / f"{name}-{key}{ENDING}", layout, lengths[:rows], facts)

    def _fill(self, files: list[RowFile]) -> bool:
        """Creates what is missing of `files` and opens all while no other stage can remove them; whether it could."""
        try:
            with self.cache.lock():
                missing = [file for file in files if not file.is_valid]
                self.cache.make_room(sum(file.size_bytes for file in missing), keep={file.path for file in files})
                try:
                    self._create(missing)
                finally:
                    for file in missing:
                        file.partial.unlink(missing_ok=True)
                return _open(files)
        except OSError as error:
            print(f"teacher cache: training continues without it, {self.cache.folder}: {error}", file=sys.stderr)
            return False

    def _create(self, files: list[RowFile]) -> None:
        """Asks the teacher about all rows that go into `files`, rows of similar length together."""
        for file in files:
            file.create()
        rows, lengths = max((len(file.known) for file in files), default=0), self.examples.lengths
        with progress_bar(total=rows, desc="teacher cache", unit="row") as progress:
            for numbers, batch in self.examples.first(rows).batches(FILLING_BATCH_SIZE):
                teacher_outputs = self._compute(batch)
                for file in files:
                    contents = file.layout.pack(teacher_outputs, lengths[numbers])
                    for row, content in zip(numbers, contents, strict=True):
                        file.write(row, content)
                progress.update(len(numbers))
        for file in files:
            file.finish()

    def _digest_teacher(self) -> str:
        """Of weights, configuration and precision."""
        digest = hashlib.sha256(f"{self.model.config} {self.accelerator.mixed_precision}".encode())
        for name, tensor in self.model.state_dict().items():
            content = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
            digest.update(name.encode() + content.tobytes())
        return digest.hexdigest()


def _open(files: list[RowFile]) -> bool:
    """Opens all files, now the most recently used; False if one is missing, damaged, or just being removed."""
    try:
        if not all(file.is_valid for file in files):
            return False
        for file in files:
            file.open()
    except OSError:
        return False
    return True


def _merged(cached: ModelOutput, places: Tensor, live: ModelOutput, real: RealTokens) -> ModelOutput:
    """The cached outputs with those of a live teacher, whose scores are padded less, in the rows `places`.

    In float32, because what float16 cannot hold is among the rows that are not cached.
    """
    fields: dict = {}
    tokens = torch.isin(real.rows, places)
    for field in (*TOKEN_FIELDS, "scores"):
        fields[field] = {layer: values.float() for layer, values in getattr(cached, field).items()}
        for layer, part in getattr(live, field).items():
            inside = slice(part.shape[-1])
            where = (places, slice(None), inside, inside) if field == "scores" else tokens
            fields[field][layer][where] = part.float()
    if cached.logits is not None and live.logits is not None:
        cached.logits[places] = live.logits.float()
    return type(cached)(**fields, logits=cached.logits)


def _checksum(content: bytes | memoryview) -> bytes:
    """CRC-32, never 0: that is what a record holds that was not written."""
    return (zlib.crc32(content) or 1).to_bytes(CHECKSUM_BYTES, "little")


def _digest_examples(examples: Encoded) -> str:
    digest = hashlib.sha256(examples.lengths.tobytes())
    for rows in (examples.input_ids, examples.token_type_ids):
        digest.update(np.concatenate(rows).tobytes())
    return digest.hexdigest()


def _digest_code() -> str:
    """Of the modules that outputs depend on: outputs of older code would be wrong, and nobody would notice."""
    modules = (outputs, bert, layer_map, objective, sys.modules[__name__])
    return hashlib.sha256("".join(normalized(Path(inspect.getfile(module))) for module in modules).encode()).hexdigest()
