"""The teacher is asked once: over the epochs of fixed data its answers are kept on disk."""

import contextlib
import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tinybert.glue.encoding import Encoded
from tinybert.models.activations import Activations, Batch, Targets
from tinybert.progress import progress_bar
from tinybert.training.answer_file import TOKEN_FIELDS, AnswerFile, Form
from tinybert.training.live_teacher import LiveTeacher

VERSION = "1"  # to be raised when what is kept, or how, changes
ASKING_BATCH_SIZE = 64
ENDING = ".safetensors"


@dataclass(frozen=True)
class AnswerStore:
    """The folder in which answers are kept, and how much it may hold; of files in the way the oldest used go first."""

    folder: Path
    limit_bytes: int

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """One process at a time makes answers; another that wants the same finds them there when it is let in."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / ".lock", "a", encoding="utf-8") as handle:
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


class KeptTeacher:
    """Answers as a live teacher does: from the files where an answer is kept, by asking where none is.

    Kept are the logits, and what else the objective reads: after a fixed layer map, averaged in float32, else all
    layers of its blocks. Where the store is too small, the first rows are kept. The files are keyed by the teacher's
    weights, the data, the map and what is kept; a broken or foreign one is made anew. An answer from a file differs
    from a live one by the rounding to float16 (hidden states, scores), and by nothing in the logits.
    """

    def __init__(self, live: LiveTeacher, store: AnswerStore, examples: Encoded) -> None:
        self.live, self.store, self.examples = live, store, examples
        self.files = self._files()
        if live.accelerator.is_local_main_process:
            self._make_missing()
        live.accelerator.wait_for_everyone()
        self.files = [file for file in self.files if file.is_valid]
        for file in self.files:
            file.open()

    def __call__(self, batch: Batch) -> Activations:
        """Targets where the layer map is fixed, else the teacher's activations; on the device of the batch."""
        rows = batch.numbers.cpu().numpy()
        kept = np.logical_and.reduce([file.has(rows) for file in self.files]) if self.files else np.zeros(1, bool)
        if not kept.any():
            return self._targets(self.live(batch))
        answer = self._read(rows, kept, batch.mask)
        if not kept.all():
            missing = torch.from_numpy(np.flatnonzero(~kept)).to(batch.mask.device)
            _fill(answer, missing, self._targets(self.live(batch.rows(missing))))
        return answer

    def _read(self, rows: np.ndarray, kept: np.ndarray, mask: Tensor) -> Activations:
        places = np.flatnonzero(kept)
        fields = {}
        for file in self.files:
            fields |= file.read(rows[places], places, mask)
        return (Targets if self._is_mapped else Activations)(**fields)

    @property
    def _is_mapped(self) -> bool:
        return self.live.objective.map.is_fixed

    def _targets(self, answer: Activations) -> Activations:
        return self.live.objective.targets(answer) if self._is_mapped else answer

    def _answer(self, batch: Batch) -> Activations:
        """All that is kept of a batch."""
        wanted = self.live.objective.teacher_may_want
        return self._targets(self.live.ask(batch, replace(wanted, logits=True)))

    def _files(self) -> list[AnswerFile]:
        """A file of logits, and one of all else if anything else is read: phases that differ in it share the logits."""
        answer = self._answer(self.examples.batch([0]))
        asked = {"teacher": _digest_teacher(self.live), "data": _digest_examples(self.examples)}
        wanted = self.live.objective.teacher_may_want
        layers = {"layers": str(self.live.objective.map.layers), "map": self.live.objective.map.kind}
        logits = self._file("logits", Form.of_logits(answer), asked, room=self.store.limit_bytes)
        rest = Form.of_layers(answer)
        if not (rest.tokens or rest.scores):
            return [logits] if wanted.logits else []
        room = self.store.limit_bytes - logits.size_bytes
        return [logits, self._file("layers", rest, asked | layers, room=room)]

    def _file(self, name: str, form: Form, facts: dict[str, str], *, room: int) -> AnswerFile:
        lengths = self.examples.lengths
        rows = int(np.searchsorted(np.cumsum(form.row_bytes(lengths)), room, side="right"))
        facts = facts | {"version": VERSION, "form": json.dumps(asdict(form)), "rows": str(rows)}
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
        return AnswerFile(self.store.folder / f"{name}-{key}{ENDING}", form, lengths[:rows], facts)

    def _make_missing(self) -> None:
        try:
            with self.store.lock():
                for file in self.files:
                    if file.is_valid:
                        os.utime(file.path)  # used now
                missing = [file for file in self.files if not file.is_valid and len(file.lengths)]
                if missing:
                    self.store.make_room(sum(f.size_bytes for f in missing), keep={file.path for file in self.files})
                    self._make(missing)
        except OSError as error:
            print(f"teacher's answers: goes on without keeping them, {self.store.folder}: {error}", file=sys.stderr)

    def _make(self, files: list[AnswerFile]) -> None:
        """Asks the teacher about all rows that go into `files`, rows of like length together."""
        partial = [AnswerFile(file.path.with_suffix(".partial"), file.form, file.lengths, file.facts) for file in files]
        try:
            for file in partial:
                file.create()
            self._ask_into(partial)
            for file, made in zip(files, partial, strict=True):
                made.close()
                os.replace(made.path, file.path)
        finally:
            for made in partial:
                made.path.unlink(missing_ok=True)

    def _ask_into(self, files: list[AnswerFile]) -> None:
        rows = max(len(file.lengths) for file in files)
        with progress_bar(total=rows, desc="teacher's answers", unit="row") as progress:
            for numbers, batch in self.examples.first(rows).batches(ASKING_BATCH_SIZE):
                answer = self._answer(batch.to(self.live.accelerator.device))
                for file in files:
                    file.write(numbers, answer)
                progress.update(len(numbers))


def _fill(answer: Activations, places: Tensor, live: Activations) -> None:
    """Puts the rows of a live answer, padded less, at their places of a whole one."""
    for field in (*TOKEN_FIELDS, "scores"):
        for layer, part in getattr(live, field).items():
            if layer in getattr(answer, field):
                whole = getattr(answer, field)[layer]
                length = part.shape[-2]
                inner = (slice(None), slice(length)) if field == "scores" else ()
                whole[(places, *inner, slice(length))] = part.to(whole.dtype)
    if live.logits is not None:
        answer.logits[places] = live.logits.to(answer.logits.dtype)


def _digest_teacher(live: LiveTeacher) -> str:
    """Of weights, configuration and the arithmetic they are used with."""
    digest = hashlib.sha256(f"{live.model.config} {live.accelerator.mixed_precision}".encode())
    for name, tensor in live.model.state_dict().items():
        digest.update(name.encode() + tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _digest_examples(examples: Encoded) -> str:
    digest = hashlib.sha256(examples.lengths.tobytes())
    for rows in (examples.input_ids, examples.token_type_ids):
        digest.update(np.concatenate(rows).tobytes())
    return digest.hexdigest()
