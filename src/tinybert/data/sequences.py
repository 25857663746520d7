"""Sequences of tokens: documents cut to what one forward pass reads, of different lengths, without padding.

On disk a folder with tokens.npy (all sequences one after the other) and offsets.npy (where each begins, and the end).
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO

import numpy as np
from tokenizers import Tokenizer

from tinybert.data.documents import DocumentBatch, map_documents
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_folder

# What remains of a document after its last full sequence is dropped below this length: it teaches next to nothing.
SMALLEST_REST_TOKENS = 8
# Long texts are encoded in parts that end at a space: 1 MB at a time would take 110 MB of memory, not 20.
PART_CHARACTERS = 2**14
PARTS = re.compile(rf"(?s).{{1,{PART_CHARACTERS}}}(?:[ \n]|\Z)|.+?(?:[ \n]|\Z)")


@dataclass(frozen=True)
class Sequences:
    """A folder of sequences, memory-mapped: tokens (all tokens,) uint16 or int32, offsets (sequences + 1,) int64."""

    tokens: np.ndarray
    offsets: np.ndarray

    @classmethod
    def open(cls, folder: str | Path) -> "Sequences":
        """Opens what write_sequences wrote; UserError if the files are absent or do not fit together."""
        try:
            tokens = np.load(Path(folder) / "tokens.npy", mmap_mode="r")
            offsets = np.load(Path(folder) / "offsets.npy")
        except OSError as error:
            raise UserError(f"{folder}: no sequences in it ({error}); run the stage tokenize") from None
        except Exception:  # NumPy also passes on the errors of Python's parser
            raise UserError(f"{folder}: its .npy files are damaged; run the stage tokenize again") from None
        are_whole = tokens.dtype in (np.uint16, np.int32) and offsets.dtype == np.int64
        are_flat = are_whole and tokens.ndim == offsets.ndim == 1 and len(offsets) >= 2
        if not are_flat or offsets[0] != 0 or offsets[-1] != len(tokens) or np.any(np.diff(offsets) <= 0):
            raise UserError(f"{folder}: tokens.npy and offsets.npy do not fit together; run the stage tokenize again")
        return cls(tokens=tokens, offsets=offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        """Sequence `index` (from 0) as a new (length,) int64 array, [CLS] and [SEP] included."""
        if not 0 <= index < len(self):
            raise IndexError(f"sequence {index} of {len(self)}")
        return self.tokens[self.offsets[index] : self.offsets[index + 1]].astype(np.int64)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sequence: (sequences,) int64."""
        return np.diff(self.offsets)


@contextmanager
def sequences_writer(folder: Path, token_type: np.dtype) -> Iterator[Callable[[np.ndarray, np.ndarray], None]]:
    """Yields a function that appends to the sequences in the existing `folder`: (tokens, lengths of the sequences)."""
    lengths: list[np.ndarray] = []

    def append(tokens: np.ndarray, more: np.ndarray) -> None:
        handle.write(tokens.astype(token_type, copy=False).data)
        lengths.append(more)

    with open(folder / "tokens.npy", "wb") as handle:
        _write_header(handle, token_type, 0)
        yield append
        offsets = np.cumsum(np.concatenate([np.zeros(1, dtype=np.int64), *lengths]))
        handle.seek(0)
        _write_header(handle, token_type, int(offsets[-1]))
    with open(folder / "offsets.npy", "wb") as handle:
        np.save(handle, offsets)


def _write_header(handle: IO[bytes], token_type: np.dtype, count: int) -> None:
    """The header of a one-dimensional .npy file; NumPy pads it to the same size whatever the count."""
    header = {"descr": np.lib.format.dtype_to_descr(token_type), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(handle, header)


@dataclass(frozen=True)
class Cut:
    """The sequences of one batch: tokens (all tokens,), lengths (sequences,), [CLS] and [SEP] included; and counts."""

    tokens: np.ndarray
    lengths: np.ndarray
    documents: int
    dropped_tokens: int
    unknown_tokens: int


class Cutter:
    """Cuts the documents of a batch into sequences, as write_sequences says."""

    def __init__(self, tokenizer: Tokenizer, sequence_tokens: int, packing: str) -> None:
        self.encoder = Tokenizer.from_str(tokenizer.to_str())
        self.encoder.no_truncation()
        self.encoder.no_padding()
        self.encoder.encode_special_tokens = True  # "[MASK]" in a text is the six characters it is
        self.body, self.packing = sequence_tokens - 2, packing
        ids = self.encoder.get_vocab()
        self.first, self.last, self.unknown = ids["[CLS]"], ids["[SEP]"], ids["[UNK]"]
        largest = max(ids.values())
        self.token_type = np.dtype(np.uint16 if largest <= np.iinfo(np.uint16).max else np.int32)

    def __call__(self, batch: DocumentBatch) -> Cut:
        texts = batch.texts.to_pylist()
        if self.packing == "paragraphs":
            texts = [line for text in texts for line in text.split("\n") if line.strip()]
        encoded = self._encode_starts(texts) if self.packing == "truncate" else self._encode(texts)
        tokens: list[int] = []
        lengths: list[int] = []
        documents = dropped = unknown = 0
        for found in encoded:
            bodies = self._cut(found)
            kept = sum(map(len, bodies))
            documents += bool(bodies)
            dropped += len(found) - kept if self.packing != "truncate" else 0
            unknown += found[:kept].count(self.unknown)
            lengths += [len(body) + 2 for body in bodies]
            for body in bodies:
                tokens += [self.first, *body, self.last]
        return Cut(
            np.array(tokens, dtype=self.token_type), np.array(lengths, dtype=np.int64), documents, dropped, unknown
        )

    def _cut(self, tokens: list[int]) -> list[list[int]]:
        """The bodies of a document's sequences."""
        most = self.body if self.packing == "truncate" else len(tokens)
        bodies = [tokens[start : start + self.body] for start in range(0, most, self.body)] if tokens else []
        is_small = len(bodies) > 1 and len(bodies[-1]) < min(SMALLEST_REST_TOKENS, self.body)
        return bodies[:-1] if is_small else bodies

    def _encode(self, texts: list[str]) -> Iterator[list[int]]:
        """The tokens of each text: those of its parts one after the other, for no token reaches over a space."""
        parts = [PARTS.findall(text) for text in texts]
        encodings = iter(self.encoder.encode_batch_fast(list(chain.from_iterable(parts)), add_special_tokens=False))
        for found in parts:
            yield list(chain.from_iterable(encoding.ids for encoding in islice(encodings, len(found))))

    def _encode_starts(self, texts: list[str]) -> Iterator[list[int]]:
        """The first `body` tokens or more of each text, reading no more of it than its first `body` words.

        Nearly every word is one token or more; if too many are none (control characters), the entire text is read.
        """
        starts = [" ".join(text.split(" ", self.body)[: self.body]) for text in texts]
        for text, start, tokens in zip(texts, starts, self._encode(starts), strict=True):
            is_enough = len(tokens) >= self.body or len(start) == len(text)
            yield tokens if is_enough else next(self._encode([text]))


def write_sequences(
    source: str | Path, tokenizer: Tokenizer, folder: str | Path, *, sequence_tokens: int, packing: str
) -> dict:
    """Tokenizes the JSON-lines file `source` into sequences that never mix documents.

    Neither the number of threads nor the size of a batch changes a result; memory holds a few batches for each thread.

    Args:
        source: Documents, as prepare_corpus or filter_corpus writes them.
        tokenizer: Its truncation and padding are ignored.
        folder: Replaced as a whole.
        sequence_tokens: Longest sequence, with [CLS] and [SEP].
        packing: "pack" cuts a document into sequences, the last one shorter, or dropped if it would hold fewer than 8
            tokens and is not the only one; "paragraphs" does so with each line of a document; "truncate" keeps a
            document's first sequence.

    Returns:
        Counts: documents (or paragraphs) with a sequence, blocks (sequences), tokens (with [CLS] and [SEP]),
        dropped_pieces (in dropped rests), unknown_share (of the tokens without [CLS] and [SEP]).

    Raises:
        UserError: If there is no text, or `source` is damaged.
    """
    cutter = Cutter(tokenizer, sequence_tokens, packing)
    counts = {"documents": 0, "blocks": 0, "tokens": 0, "dropped_pieces": 0}
    unknown_tokens = 0
    with atomic_folder(folder) as target:
        with sequences_writer(target, cutter.token_type) as append:
            for cut in map_documents(cutter, source, title="tokenize"):
                append(cut.tokens, cut.lengths)
                counts["documents"] += cut.documents
                counts["blocks"] += len(cut.lengths)
                counts["tokens"] += len(cut.tokens)
                counts["dropped_pieces"] += cut.dropped_tokens
                unknown_tokens += cut.unknown_tokens
        if not counts["blocks"]:
            raise UserError("tokenize: there is no text to tokenize; the corpus, or what the filter kept, is empty")
    return counts | {"unknown_share": unknown_tokens / (counts["tokens"] - 2 * counts["blocks"])}
