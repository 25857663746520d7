"""The teacher is asked once: over the epochs of fixed data its answers are kept on disk."""

import contextlib
import fcntl
import hashlib
import inspect
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tinybert.data.encoding import Encoded
from tinybert.distill import cache_file as answer_file
from tinybert.distill import layer_map as layer_weights
from tinybert.distill import objective
from tinybert.distill.cache_file import TOKEN_FIELDS, CacheFile, Form
from tinybert.distill.teacher import LiveTeacher
from tinybert.models import bert
from tinybert.models import outputs as activations
from tinybert.models.outputs import Batch, DistillationTargets, ModelOutput, RealTokens
from tinybert.pipeline.process import progress_bar

CODE = (activations, bert, layer_weights, objective, answer_file)  # what answers depend on beside weights and data
ASKING_BATCH_SIZE = 64
ENDING = ".safetensors"
HEAD_BYTES = 2048  # of a file, at most, beside its form


@dataclass(frozen=True)
class TeacherCache:
    """The folder in which answers are kept, and how much it may hold; of files in the way the oldest used go first."""

    folder: Path
    limit_bytes: int

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """One process at a time makes answers; another that wants the same finds them there when it is let in."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / ".lock", "a", encoding="utf-8") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("teacher's answers: waits for another stage that is making its own", file=sys.stderr)
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def make_room(self, size_bytes: int, *, keep: set[Path]) -> None:
        """Removes files, those used longest ago first, until `size_bytes` more fit; never those of `keep`."""
        for leftover in self.folder.glob("*.partial"):
            leftover.unlink()
        files = sorted(self.folder.glob(f"*{ENDING}"), key=lambda path: path.stat().st_mtime)
        held = sum(path.stat().st_size for path in files)
        for path in (path for path in files if path not in keep):
            if held + size_bytes <= self.limit_bytes:
                break
            held -= path.stat().st_size
            path.unlink()


class CachedTeacher:
    """Answers as a live teacher does: from the files where an answer is kept, by asking where none is.

    Kept are the logits, and what else the objective reads: after a fixed layer map, averaged in float32, else all
    layers of its blocks. Where the store is too small, the first rows are kept. The files are keyed by the teacher's
    weights, the data, the map, what is kept, and the code; a broken or foreign one is made anew. An answer from a file
    differs from a live one by the rounding to float16 (hidden states, scores), and by nothing in the logits.
    """

    def __init__(self, live: LiveTeacher, store: TeacherCache, examples: Encoded) -> None:
        self.live, self.store, self.examples = live, store, examples
        files = self._files()
        is_open = live.accelerator.is_local_main_process and (_opened(files) or self._made(files))
        live.accelerator.wait_for_everyone()
        self.files = files if is_open or _opened(files) else []

    def __call__(self, batch: Batch) -> ModelOutput:
        """Targets where the layer map is fixed, else the teacher's activations; on the device of the batch."""
        assert batch.numbers is not None  # rows of a data set have numbers
        rows = batch.numbers.cpu().numpy()
        kept = np.logical_and.reduce([file.has(rows) for file in self.files]) if self.files else np.zeros(1, bool)
        if not kept.any():
            return self._targets(self.live(batch))
        answer = self._read(rows, kept, batch.mask)
        if not kept.all():
            missing = torch.from_numpy(np.flatnonzero(~kept)).to(batch.mask.device)
            answer = _filled(answer, missing, self._targets(self.live(batch.rows(missing))), batch.real)
        return answer

    def _read(self, rows: np.ndarray, kept: np.ndarray, mask: Tensor) -> ModelOutput:
        places = np.flatnonzero(kept)
        fields: dict = {}
        for file in self.files:
            fields |= file.read(rows[places], places, mask)
        return (DistillationTargets if self._is_mapped else ModelOutput)(**fields)

    @property
    def _is_mapped(self) -> bool:
        return self.live.objective.map.is_fixed

    def _targets(self, answer: ModelOutput) -> ModelOutput:
        return self.live.objective.targets(answer) if self._is_mapped else answer

    def _answer(self, batch: Batch) -> ModelOutput:
        """All that is kept of a batch."""
        wanted = replace(self.live.objective.teacher_full_spec, logits=True)
        return self._targets(self.live.ask(batch.to(self.live.accelerator.device), wanted))

    def _files(self) -> list[CacheFile]:
        """A file of logits, and one of all else if anything else is read: phases that differ in it share the logits."""
        answer = self._answer(self.examples.batch([0]))
        asked = {"teacher": _digest_teacher(self.live), "data": _digest_examples(self.examples), "code": _digest_code()}
        wanted = self.live.objective.teacher_full_spec
        # Of a map that is not fixed all layers are kept as they are, which the form names.
        averaged = {"averaged": str(self.live.objective.map.layers)} if self._is_mapped else {}
        logits = self._file("logits", Form.of_logits(answer), asked, room=self.store.limit_bytes)
        rest = Form.of_layers(answer)
        if not (rest.tokens or rest.scores):
            return [logits] if wanted.logits else []
        room = self.store.limit_bytes - logits.size_bytes
        return [logits, self._file("layers", rest, asked | averaged, room=room)]

    def _file(self, name: str, form: Form, facts: dict[str, str], *, room: int) -> CacheFile:
        lengths, facts = self.examples.lengths, facts | {"form": json.dumps(asdict(form))}
        room -= HEAD_BYTES + len(facts["form"])
        rows = int(np.searchsorted(np.cumsum(form.row_bytes(lengths)), room, side="right"))
        facts["rows"] = str(rows)
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
        return CacheFile(self.store.folder / f"{name}-{key}{ENDING}", form, lengths[:rows], facts)

    def _made(self, files: list[CacheFile]) -> bool:
        """Makes what is missing of `files` and opens all, before another stage may remove them; whether it could."""
        try:
            with self.store.lock():
                missing = [file for file in files if not file.is_valid]
                self.store.make_room(sum(file.size_bytes for file in missing), keep={file.path for file in files})
                self._make(missing)
                return _opened(files)
        except OSError as error:
            print(f"teacher's answers: goes on without keeping them, {self.store.folder}: {error}", file=sys.stderr)
            return False

    def _make(self, files: list[CacheFile]) -> None:
        """Asks the teacher about all rows that go into `files`, rows of like length together."""
        partial = [CacheFile(file.path.with_suffix(".partial"), file.form, file.lengths, file.facts) for file in files]
        try:
            for file in partial:
                file.create()
            self._ask_into(partial)
            for file, made in zip(files, partial, strict=True):
                made.finish()
                os.replace(made.path, file.path)
        finally:
            for made in partial:
                made.path.unlink(missing_ok=True)

    def _ask_into(self, files: list[CacheFile]) -> None:
        rows, lengths = max((len(file.lengths) for file in files), default=0), self.examples.lengths
        with progress_bar(total=rows, desc="teacher's answers", unit="row") as progress:
            for numbers, batch in self.examples.first(rows).batches(ASKING_BATCH_SIZE):
                answer = self._answer(batch)
                for file in files:
                    file.write(numbers, lengths[numbers], answer)
                progress.update(len(numbers))


def _opened(files: list[CacheFile]) -> bool:
    """Opens all files, now used last; False where one is missing, broken, or just being removed by another stage."""
    try:
        if not all(file.is_valid for file in files):
            return False
        for file in files:
            file.open()
            os.utime(file.path)
    except OSError:
        return False
    return True


def _filled(answer: ModelOutput, places: Tensor, live: ModelOutput, real: RealTokens) -> ModelOutput:
    """The answer with the rows of a live one, whose scores are padded less, at their places.

    In float32: what exceeds float16 is among the rows that are not kept.
    """
    found = {}
    tokens = torch.isin(real.rows, places)
    for field in (*TOKEN_FIELDS, "scores"):
        found[field] = {layer: whole.float() for layer, whole in getattr(answer, field).items()}
        for layer, part in getattr(live, field).items():
            inside = slice(part.shape[-1])
            where = (places, slice(None), inside, inside) if field == "scores" else tokens
            found[field][layer][where] = part.float()
    if answer.logits is not None and live.logits is not None:
        answer.logits[places] = live.logits.float()
    return type(answer)(**found, logits=answer.logits)


def _digest_teacher(live: LiveTeacher) -> str:
    """Of weights, configuration and the arithmetic they are used with."""
    digest = hashlib.sha256(f"{live.model.config} {live.accelerator.mixed_precision}".encode())
    for name, tensor in live.model.state_dict().items():
        digest.update(name.encode() + tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _digest_code() -> str:
    """Answers of older code would be wrong ones, and nobody would notice."""
    return hashlib.sha256(b"".join(Path(inspect.getfile(module)).read_bytes() for module in CODE)).hexdigest()


def _digest_examples(examples: Encoded) -> str:
    digest = hashlib.sha256(examples.lengths.tobytes())
    for rows in (examples.input_ids, examples.token_type_ids):
        digest.update(np.concatenate(rows).tobytes())
    return digest.hexdigest()
