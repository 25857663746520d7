"""Documents, and the sequences of tokens that they are cut into, of different lengths and without padding.

Documents are JSON lines. Sequences are a folder with tokens.npy (all sequences one after the other) and offsets.npy
(where each begins, and the end).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import chain, islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from tinybert.config.schema import Tokenize
from tinybert.pipeline.engine import ordered_map
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_folder, read_documents

BATCH_DOCUMENTS = 16  # tokenized together; without Ray on all CPUs
# What remains of a document after its last full sequence is dropped below this length: it teaches next to nothing.
SMALLEST_REST_TOKENS = 8
# Long texts are encoded in parts that end at a space: 1 MB at a time would take 110 MB of memory, not 20.
PARTS = re.compile(r"(?s).{1,16384}(?:[ \n]|\Z)|.+?(?:[ \n]|\Z)")


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
            raise UserError(f"{folder}: no sequences in it ({error}); fix: run the stage tokenize") from None
        except Exception:  # NumPy also passes on the errors of Python's parser
            raise UserError(f"{folder}: its .npy files are damaged; fix: run the stage tokenize again") from None
        types_fit = tokens.dtype in (np.uint16, np.int32) and offsets.dtype == np.int64
        fits = types_fit and tokens.ndim == offsets.ndim == 1 and len(offsets) >= 2
        if not fits or offsets[0] != 0 or offsets[-1] != len(tokens) or np.any(np.diff(offsets) <= 0):
            raise UserError(f"{folder}: tokens.npy and offsets.npy do not match; fix: run the stage tokenize again")
        return cls(tokens, offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        """Sequence `index` (from 0) as a new (length,) int64 array, [CLS] and [SEP] included."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]].astype(np.int64)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sequence: (sequences,) int64."""
        return np.diff(self.offsets)


@contextmanager
def sequences_writer(folder: Path, token_type: np.dtype) -> Iterator[Callable[[np.ndarray, np.ndarray], None]]:
    """Yields a function that appends to the sequences in the existing `folder`: (tokens, lengths of the sequences)."""
    lengths = [np.zeros(1, dtype=np.int64)]
    header = {"descr": token_type.str, "fortran_order": False, "shape": (0,)}

    def append(tokens: np.ndarray, more: np.ndarray) -> None:
        handle.write(tokens.astype(token_type, copy=False).data)
        lengths.append(more)

    with open(folder / "tokens.npy", "wb") as handle:
        np.lib.format.write_array_header_1_0(handle, header)
        yield append
        offsets = np.cumsum(np.concatenate(lengths))
        handle.seek(0)
        # NumPy pads the header to the same size whatever the shape.
        np.lib.format.write_array_header_1_0(handle, header | {"shape": (int(offsets[-1]),)})
    buffer = BytesIO()
    np.save(buffer, offsets)  # np.save to a file hides the reason of a failure
    (folder / "offsets.npy").write_bytes(buffer.getbuffer())


class Cutter:
    """Cuts texts into sequences, as `write_sequences` describes."""

    def __init__(self, tokenizer: Tokenizer, settings: Tokenize) -> None:
        self.settings, self.encoder = settings, Tokenizer.from_str(tokenizer.to_str())
        self.encoder.no_truncation()
        self.encoder.no_padding()
        self.encoder.encode_special_tokens = True  # "[MASK]" in a text is the six characters it is
        self.body, self.packing = settings.sequence_tokens - 2, settings.packing
        ids = self.encoder.get_vocab()
        self.first, self.last, self.unknown = ids["[CLS]"], ids["[SEP]"], ids["[UNK]"]
        self.token_type = np.dtype(np.uint16 if max(ids.values()) <= np.iinfo(np.uint16).max else np.int32)

    def __reduce__(self) -> tuple:
        return Cutter, (self.encoder, self.settings)  # pickling a tokenizer loses encode_special_tokens

    def __call__(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray, Counter[str]]:
        """Returns all tokens (tokens,) and the lengths (sequences,), [CLS] and [SEP] included, and counts."""
        if self.packing == "paragraphs":
            texts = [line for text in texts for line in text.split("\n") if line.strip()]
        sequences, counts = list[list[int]](), Counter[str]()
        for tokens in self._encode_starts(texts) if self.packing == "truncate" else self._encode(texts):
            bodies = [tokens[start : start + self.body] for start in range(0, len(tokens), self.body)]
            if len(bodies) > 1 and len(bodies[-1]) < min(SMALLEST_REST_TOKENS, self.body):
                counts["dropped_tokens"] += len(bodies.pop())
            counts["documents"] += bool(bodies)
            counts["unknown"] += sum(body.count(self.unknown) for body in bodies)
            sequences += [[self.first, *body, self.last] for body in bodies]
        lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
        counts.update(sequences=len(lengths), tokens=int(lengths.sum()))
        return np.fromiter(chain.from_iterable(sequences), self.token_type, counts["tokens"]), lengths, counts

    def _encode(self, texts: list[str]) -> Iterator[list[int]]:
        """The tokens of each text: those of its parts in order, because no token spans a space."""
        parts = [PARTS.findall(text) for text in texts]
        encodings = iter(self.encoder.encode_batch_fast(list(chain.from_iterable(parts)), add_special_tokens=False))
        for found in parts:
            yield list(chain.from_iterable(encoding.ids for encoding in islice(encodings, len(found))))

    def _encode_starts(self, texts: list[str]) -> Iterator[list[int]]:
        """The first `body` tokens of each text, or all. Nearly every word is one or more: so many words are read."""
        starts = [" ".join(text.split(" ", self.body)[: self.body]) for text in texts]
        for text, start, tokens in zip(texts, starts, self._encode(starts), strict=True):
            if len(tokens) < self.body and len(start) < len(text):  # too many words are no tokens: control characters
                (tokens,) = self._encode([text])
            yield tokens[: self.body]


def write_sequences(source: str | Path, tokenizer: Tokenizer, folder: Path, settings: Tokenize) -> dict[str, float]:
    """Tokenizes the documents of `source` into sequences of one document each; holds one batch of texts, with Ray some.

    Args:
        source: JSON lines, as prepare_corpus or filter_corpus writes them.
        tokenizer: Its truncation and padding are ignored.
        folder: Is replaced.
        settings: The longest sequence, with [CLS] and [SEP], and how to cut. "pack" cuts a document into sequences, the
            last one shorter, or dropped if it would hold fewer than 8 tokens and is not the only one; "paragraphs"
            does so with each line of a document; "truncate" keeps a document's first sequence.

    Returns:
        Counts: documents (or paragraphs) that gave a sequence, sequences, tokens (with [CLS] and [SEP]),
        dropped_tokens (in dropped rests), unknown_share (of the tokens without [CLS] and [SEP]).
    """
    cutter = Cutter(tokenizer, settings)
    texts = (document["text"] for document in read_documents(source, "tokenize"))
    counts = Counter(documents=0, sequences=0, tokens=0, dropped_tokens=0, unknown=0)
    with atomic_folder(folder) as target:
        with sequences_writer(target, cutter.token_type) as append:
            batches = iter(lambda: list(islice(texts, BATCH_DOCUMENTS)), [])
            for tokens, lengths, found in ordered_map(cutter, batches):
                append(tokens, lengths)
                counts.update(found)
        if not counts["sequences"]:
            raise UserError("tokenize: there is no text to tokenize; the corpus, or what the filter kept, is empty")
    unknown_share = counts.pop("unknown") / (counts["tokens"] - 2 * counts["sequences"])
    return {**counts, "unknown_share": unknown_share}
