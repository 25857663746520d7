"""The teacher cache: on fixed data the teacher runs once, and all epochs read its outputs from disk."""

import contextlib
import fcntl
import hashlib
import inspect
import itertools
import os
import sys
import weakref
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from tinybert.config.tasks import Task
from tinybert.data.encoding import Encoded
from tinybert.distill import losses, objective
from tinybert.distill.batches import Batches, predict
from tinybert.distill.loop import LiveTeacher
from tinybert.distill.objective import DistillationLoss
from tinybert.models import bert, foreign, outputs, packed_linear
from tinybert.models.foreign import ForeignConfig
from tinybert.models.model_folders import TaskModel
from tinybert.models.outputs import Batch, DistillationTargets, ModelOutput, OutputSpec
from tinybert.pipeline.code_digest import normalized
from tinybert.pipeline.process import progress_bar

LAYER_FIELDS = tuple(OutputSpec().layers)  # of ModelOutput, by layer
FILLING_BATCH_SIZE = 64
ENDING = ".rows"
CHECKSUM_BYTES = 4


class OutputFile:
    """One teacher output of every row: a record for each, in the data's order, then a checksum of name and records.

    Logits are stored in float32, the others in float16; scores without their padding. Records are read one by one and
    not memory-mapped: mapped pages count as this process's memory.

    Args:
        field: "logits", or one of LAYER_FIELDS.
        layer: Of the field; 0 for logits.
        width: Classes of logits, heads of scores, otherwise the width of a token's vector.
        lengths: Tokens of each row, (rows,) int64.
    """

    def __init__(self, path: Path, field: str, layer: int, width: int, lengths: np.ndarray) -> None:
        self.path, self.partial = path, path.with_suffix(".partial")
        self.field, self.layer, self.width, self.lengths = field, layer, width, lengths
        self.dtype = torch.float32 if field == "logits" else torch.float16
        vectors = lengths ** {"logits": 0, "scores": 2}.get(field, 1)
        self.offsets = np.concatenate([[0], np.cumsum(vectors * width * self.dtype.itemsize)]).tolist()
        self.size_bytes = self.offsets[-1] + CHECKSUM_BYTES

    def open(self) -> bool:
        """Opens the file, now the most recently used one; False if it is missing or damaged."""
        try:
            self._open(self.path, os.O_RDONLY)
            os.utime(self.path)
        except OSError:
            return False
        checksum = self._pread(self.offsets[-1], self.size_bytes)
        return os.fstat(self.descriptor).st_size == self.size_bytes and checksum == self._checksum()

    def create(self) -> None:
        """Creates the file under the name `partial`; OSError if the disk is full."""
        self._open(self.partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.posix_fallocate(self.descriptor, 0, self.size_bytes)

    def write(self, rows: np.ndarray, output: Tensor) -> None:
        """Writes the records of a batch, whose output is as in ModelOutput; OverflowError if float16 cannot hold it."""
        values, lengths = output.to(self.dtype).cpu(), self.lengths[rows].tolist()
        if not values.isfinite().all():
            raise OverflowError(f"{self.field} of layer {self.layer}: beyond the range of float16")
        if self.field == "scores":
            records = [square[:, :length, :length] for square, length in zip(values, lengths, strict=True)]
        else:
            records = list(values if self.field == "logits" else values.split(lengths))
        for row, record in zip(rows, records, strict=True):
            os.pwrite(self.descriptor, record.numpy().tobytes(), self.offsets[row])

    def finish(self) -> None:
        """Puts the written file in place; it stays open."""
        os.pwrite(self.descriptor, self._checksum(), self.offsets[-1])
        os.fsync(self.descriptor)
        os.replace(self.partial, self.path)

    def read(self, rows: list[int]) -> Tensor:
        """The output of a batch of rows, as in ModelOutput."""
        records = [self._pread(self.offsets[row], self.offsets[row + 1]) for row in rows]
        if self.field != "scores":
            return torch.frombuffer(bytearray().join(records), dtype=self.dtype).view(-1, self.width)
        lengths = self.lengths[rows].tolist()
        scores = torch.zeros(len(rows), self.width, max(lengths), max(lengths), dtype=self.dtype)
        for square, record, length in zip(scores, records, lengths, strict=True):
            values = torch.frombuffer(bytearray(record), dtype=self.dtype)
            square[:, :length, :length] = values.view(self.width, length, length)
        return scores

    def _open(self, path: Path, flags: int) -> None:
        self.descriptor = os.open(path, flags, 0o644)
        weakref.finalize(self, os.close, self.descriptor)

    def _pread(self, start: int, end: int) -> bytes:
        return os.pread(self.descriptor, end - start, start)

    def _checksum(self) -> bytes:
        """CRC-32 of the file's name and its records."""
        total = zlib.crc32(self.path.name.encode())
        for start, end in itertools.pairwise([*range(0, self.offsets[-1], 1 << 20), self.offsets[-1]]):
            total = zlib.crc32(self._pread(start, end), total)
        return total.to_bytes(CHECKSUM_BYTES, "little")


@dataclass(frozen=True)
class TeacherCache:
    """The folder of cached outputs and how much it may hold; the least recently used files are removed first."""

    folder: Path
    limit_bytes: int

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

    def make_room(self, files: Sequence[OutputFile]) -> None:
        """Removes the least recently used files until `files` fit, of which some may be there already."""
        needed = sum(file.size_bytes for file in files)
        if needed > self.limit_bytes:
            limit = f"{self.limit_bytes / 1e9:g} GB (tasks.teacher_cache_gb)"
            raise OSError(f"too small ({needed / 1e9:.3g} GB are needed); allowed: {limit}")
        for leftover in self.folder.glob("*.partial"):
            leftover.unlink()
        others = set(self.folder.glob(f"*{ENDING}")) - {file.path for file in files}
        held = sum(path.stat().st_size for path in others)
        for path in sorted(others, key=lambda path: path.stat().st_mtime):
            if held + needed <= self.limit_bytes:
                break
            held -= path.stat().st_size
            path.unlink()


class CachedTeacher(LiveTeacher):
    """A teacher whose outputs for fixed data are computed once and then read from files.

    Cached are the logits and what else the losses read: under a fixed layer map the float32 average, otherwise all
    layers of its groups. If they do not fit, the teacher runs at every step. A cached output differs from a
    live one by the rounding to float16 of all but the logits.

    Args:
        examples: All rows as the teacher reads them, maybe with its own tokenizer, in the order of Batch.numbers.
    """

    model: TaskModel

    def __init__(self, model: TaskModel, loss: DistillationLoss, examples: Encoded, cache: TeacherCache) -> None:
        super().__init__(model, loss)
        if isinstance(model, bert.SequenceClassifier):
            model.skips_unread = False  # the same logits whether a loss reads the last layer or not
        self.examples, self.cache = examples, cache
        self.files: list[OutputFile] = []  # empty: the teacher is asked live

    def check_length(self, batches: Batches) -> None:
        """Raises UserError if rows as the teacher reads them, or their padded length, exceed its positions."""
        tokens = max(int(self.examples.lengths.max()), self.loss.padded_tokens)
        self.model.config.check_length(tokens, batches.length_key)

    def student_batches(self, rows: Encoded, task: Task, *, batch_size: int, seed: int) -> Batches:
        """The rows as the student reads them; for `hard`, augmented and unlabeled ones get the teacher's prediction.

        The gold label of the original row may be wrong for its variation (Tang et al. 2019, sec. 3.3).
        """
        if "hard" in self.loss.weights and rows.varied is not None and rows.varied.any():
            varied = rows.varied[:, None] if task.is_multilabel else rows.varied
            labels = np.where(varied, predict(self.model, self.examples, task), rows.gold)
            rows = replace(rows, labels=labels.astype(rows.gold.dtype))
        return Batches(rows, batch_size=batch_size, seed=seed)

    def begin(self, accelerator: Accelerator, *, epochs: float = 1.0) -> None:
        """Fills the cache, unless its limit is 0 or the run is too short to read all rows (less than an epoch).

        Padding is not cached, so losses that read padding use the live teacher.
        """
        self.accelerator = accelerator
        self.model.to(accelerator.device).eval()
        if epochs < 1 or not self.cache.limit_bytes or self.loss.padded_tokens:
            return
        files = self._files()
        is_open = accelerator.is_local_main_process and self._fill(files)
        accelerator.wait_for_everyone()
        if is_open or all(file.open() for file in files):
            self.files = files

    def __call__(self, batch: Batch) -> ModelOutput:
        """The cached outputs, as targets if the layer map is fixed; without a cache, the live teacher's outputs."""
        assert batch.numbers is not None
        rows = batch.numbers.tolist()
        if not self.files:
            return super().__call__(self.examples.batch(rows).to(self.accelerator.device))
        fields: dict = {name: {} for name in (*LAYER_FIELDS, "logits")}
        for file in self.files:
            fields[file.field][file.layer] = file.read(rows).to(batch.mask.device)
        logits = fields.pop("logits")[0]
        return (DistillationTargets if self.loss.map.is_fixed else ModelOutput)(**fields, logits=logits)

    @torch.no_grad()
    def ask(self, batch: Batch, spec: OutputSpec) -> ModelOutput:
        """The teacher's outputs by autocast, the same whether the cache stores them or not."""
        with self.accelerator.autocast():
            return self.model(batch, spec)

    def _compute(self, batch: Batch) -> dict[tuple[str, int], Tensor]:
        """All that is cached of a batch, by field and layer; logits last."""
        spec = replace(self.loss.teacher_spec(at_any_step=True), logits=True)
        found = self.ask(batch.to(self.accelerator.device), spec)
        found = self.loss.targets(found) if self.loss.map.is_fixed else found
        fields = {name: getattr(found, name) for name in LAYER_FIELDS} | {"logits": {0: found.required_logits}}
        return {(name, layer): parts[layer] for name, parts in fields.items() for layer in sorted(parts)}

    def _files(self) -> list[OutputFile]:
        """A file for each output, named by all that it depends on; every run shares the logits."""
        first = self._compute(self.examples.batch([0]))
        inputs = self._digest()
        # A pass that exposes other layers rounds differently; which run fills the cache must not change a result.
        # Logits are shared: on a CPU they are equal below FUSED_FROM_TOKENS tokens a row, otherwise up to rounding.
        of_layers = f"{inputs} {list(first)} {self.loss.map.layers if self.loss.map.is_fixed else 'not averaged'}"
        files, lengths = [], self.examples.lengths
        if isinstance(self.model.config, ForeignConfig):  # its states are those of each row's first token
            lengths = np.ones_like(lengths)
        for (name, layer), part in first.items():
            key = hashlib.sha256((inputs if name == "logits" else of_layers).encode()).hexdigest()[:24]
            path = self.cache.folder / f"{name}_{layer}-{key}{ENDING}"
            files.append(OutputFile(path, name, layer, part.shape[1], lengths))
        return files

    def _fill(self, files: list[OutputFile]) -> bool:
        """Creates what is missing of `files` and opens all while no other stage can remove them; whether it could."""
        try:
            with self.cache.lock():
                self.cache.make_room(files)
                if missing := [file for file in files if not file.open()]:
                    self._create(missing)
                return True
        except (OSError, OverflowError) as error:
            print(f"teacher cache: training continues without it, {self.cache.folder}: {error}", file=sys.stderr)
            return False

    def _create(self, files: list[OutputFile]) -> None:
        """Runs the teacher on all rows, those of similar length together."""
        try:
            for file in files:
                file.create()
            with progress_bar(total=len(self.examples), desc="teacher cache", unit="row") as progress:
                for rows, batch in self.examples.batches(FILLING_BATCH_SIZE):
                    teacher_outputs = self._compute(batch)
                    for file in files:
                        file.write(rows, teacher_outputs[file.field, file.layer])
                    progress.update(len(rows))
            for file in files:
                file.finish()
        finally:  # under the lock: another process may then create the same files
            for file in files:
                file.partial.unlink(missing_ok=True)

    def _digest(self) -> str:
        """Of all that any output depends on: teacher, precision, rows, and code, whose older outputs would be wrong."""
        # Other families are computed by transformers.
        library = version("transformers") if isinstance(self.model.config, ForeignConfig) else ""
        digest = hashlib.sha256(f"{self.model.config} {self.accelerator.mixed_precision} {library}".encode())
        for name, tensor in self.model.state_dict().items():
            digest.update(name.encode() + tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        for rows in (self.examples.input_ids, self.examples.token_type_ids, [self.examples.lengths]):
            digest.update(np.concatenate(rows).tobytes())
        for module in (outputs, bert, packed_linear, foreign, losses, objective, sys.modules[__name__]):
            digest.update(normalized(Path(inspect.getfile(module))).encode())
        return digest.hexdigest()
