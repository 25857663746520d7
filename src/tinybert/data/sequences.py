"""Sequences of word pieces: documents cut to what one forward pass reads, ragged, without padding.

On disk a folder with tokens.npy (all sequences one after the other) and offsets.npy (where each begins, and the end).
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from tinybert.data.parallel import map_in_order, processes_for
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_folder
from tinybert.pipeline.process import text_progress_bar
from tinybert.pipeline.text_lines import CHUNK_BYTES, Chunk, read_chunks

# The rest of a document behind its last full block is dropped below this length: it teaches next to nothing.
SMALLEST_REST_PIECES = 8
# Long texts are encoded in parts that end at a space: a single one of 1 MB would take 110 MB of memory, not 20.
PART_CHARACTERS = 2**14
PARTS = re.compile(rf"(?s).{{1,{PART_CHARACTERS}}}(?:[ \n]|\Z)|.+?(?:[ \n]|\Z)")


@dataclass(frozen=True)
class Sequences:
    """A folder of blocks, memory-mapped: tokens (all tokens,) uint16 or int32, offsets (blocks + 1,) int64."""

    tokens: np.ndarray
    offsets: np.ndarray

    @classmethod
    def open(cls, folder: str | Path) -> "Sequences":
        """Opens what write_sequences wrote; UserError when the files are absent or do not fit together."""
        try:
            tokens = np.load(Path(folder) / "tokens.npy", mmap_mode="r")
            offsets = np.load(Path(folder) / "offsets.npy")
        except OSError as error:
            raise UserError(f"{folder}: no blocks in it ({error}); run the stage tokenize") from None
        except Exception:  # beside its own, NumPy passes on those of Python's parser
            raise UserError(f"{folder}: its .npy files are damaged; run the stage tokenize again") from None
        are_whole = tokens.dtype in (np.uint16, np.int32) and offsets.dtype == np.int64
        are_flat = are_whole and tokens.ndim == offsets.ndim == 1 and len(offsets) >= 2
        if not are_flat or offsets[0] != 0 or offsets[-1] != len(tokens) or np.any(np.diff(offsets) <= 0):
            raise UserError(f"{folder}: tokens.npy and offsets.npy do not fit together; run the stage tokenize again")
        return cls(tokens=tokens, offsets=offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        """Block `index` (from 0) as a new (length,) int64 array, [CLS] and [SEP] included."""
        if not 0 <= index < len(self):
            raise IndexError(f"block {index} of {len(self)}")
        return self.tokens[self.offsets[index] : self.offsets[index + 1]].astype(np.int64)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each block: (blocks,) int64."""
        return np.diff(self.offsets)


@contextmanager
def blocks_writer(folder: Path, token_type: np.dtype) -> Iterator[Callable[[np.ndarray, np.ndarray], None]]:
    """Yields a function that appends to the blocks in the existing `folder`: (tokens, lengths of the blocks)."""
    end = 0

    def append(tokens: np.ndarray, lengths: np.ndarray) -> None:
        nonlocal end
        append_tokens(tokens)
        append_offsets(end + np.cumsum(lengths))
        end += len(tokens)

    with (
        _growing_array(folder / "tokens.npy", token_type) as append_tokens,
        _growing_array(folder / "offsets.npy", np.dtype(np.int64)) as append_offsets,
    ):
        append_offsets(np.zeros(1, dtype=np.int64))
        yield append


@contextmanager
def _growing_array(path: Path, dtype: np.dtype) -> Iterator[Callable[[np.ndarray], None]]:
    """Yields a function that appends to a one-dimensional .npy file, whose header is completed at the end."""
    count = 0

    def write_header() -> None:  # NumPy pads it, so that it has the same size whatever the length in it
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(handle, header)

    def append(values: np.ndarray) -> None:
        nonlocal count
        handle.write(values.astype(dtype, copy=False).data)
        count += len(values)

    with open(path, "wb") as handle:
        write_header()
        yield append
        handle.seek(0)
        write_header()


@dataclass(frozen=True)
class Cut:
    """Sequences one behind the other, [CLS] and [SEP] included: tokens (all tokens,), lengths (blocks,); and counts."""

    tokens: np.ndarray
    lengths: np.ndarray
    documents: int
    dropped_pieces: int
    unknown_pieces: int


class BlockCutter:
    """Cuts the documents of a chunk into blocks, as write_sequences says."""

    def __init__(self, tokenizer: Tokenizer, sequence_tokens: int, packing: str) -> None:
        self.encoder, self.sequence_tokens, self.packing = _plain_copy(tokenizer), sequence_tokens, packing
        self.token_type = _token_type(self.encoder)
        self.first, self.last, self.unknown = map(self.encoder.token_to_id, ("[CLS]", "[SEP]", "[UNK]"))

    def __reduce__(self):  # a pickled Tokenizer reads special tokens in texts again: the plain copy is made anew
        return BlockCutter, (self.encoder, self.sequence_tokens, self.packing)

    def __call__(self, chunk: Chunk) -> Cut:
        read, encode, keep = PACKINGS[self.packing]
        body = self.sequence_tokens - 2
        documents = list(encode(list(read(chunk)), self.encoder, body))
        sizes, dropped = keep(np.array([len(pieces) for pieces in documents], dtype=np.int64), body)
        kept = [pieces[:size] for pieces, size in zip(documents, sizes, strict=True)]
        pieces = np.concatenate([np.empty(0, dtype=np.int32), *kept])
        lengths = _block_lengths(sizes, body)
        return Cut(
            tokens=self._framed(pieces, lengths),
            lengths=lengths + 2,
            documents=int(np.count_nonzero(sizes)),
            dropped_pieces=dropped,
            unknown_pieces=int(np.count_nonzero(pieces == self.unknown)),
        )

    def _framed(self, pieces: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The pieces of blocks of these lengths with [CLS] before and [SEP] behind each block."""
        ends = np.cumsum(lengths + 2)
        starts = ends - lengths - 2
        tokens = np.empty(len(pieces) + 2 * len(lengths), dtype=self.token_type)
        is_piece = np.ones(len(tokens), dtype=bool)
        is_piece[starts] = is_piece[ends - 1] = False
        tokens[starts], tokens[ends - 1], tokens[is_piece] = self.first, self.last, pieces
        return tokens


def write_sequences(
    source: str | Path,
    tokenizer: Tokenizer,
    folder: str | Path,
    *,
    sequence_tokens: int,
    packing: str,
    processes: int | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> dict:
    """Tokenizes the JSON-lines file `source` into blocks of at most `sequence_tokens` tokens, [CLS] and [SEP] included.

    packing "pack" cuts a whole document into blocks, the last one shorter, or dropped if it would hold fewer than 8
    pieces and is not the only one; "paragraphs" does so with each line of a document by itself; "truncate" keeps a
    document's first block. Sequences never mix documents. Returns counts: documents (or paragraphs) with a block,
    blocks, tokens (with [CLS] and [SEP]), dropped_pieces (in dropped rests), unknown_share (of the pieces in
    blocks). UserError when there is no text. Neither `processes` (None: as many as the size is worth) nor
    `chunk_bytes` changes a result; memory holds a few chunks for each process.
    """
    size_bytes = Path(source).stat().st_size
    cutter, chunks = BlockCutter(tokenizer, sequence_tokens, packing), read_chunks(source, chunk_bytes=chunk_bytes)
    results = map_in_order(cutter, chunks, processes=processes or processes_for(size_bytes))
    counts = {"documents": 0, "blocks": 0, "tokens": 0, "dropped_pieces": 0}
    unknown_pieces = 0
    with atomic_folder(folder) as target:
        with blocks_writer(target, cutter.token_type) as append, text_progress_bar("tokenize", size_bytes) as progress:
            for chunk, cut in results:
                append(cut.tokens, cut.lengths)
                counts["documents"] += cut.documents
                counts["blocks"] += len(cut.lengths)
                counts["tokens"] += len(cut.tokens)
                counts["dropped_pieces"] += cut.dropped_pieces
                unknown_pieces += cut.unknown_pieces
                progress.advance(len(chunk.data), documents=chunk.data.count(b"\n"))
        if not counts["blocks"]:
            raise UserError("tokenize: there is no text to tokenize; the corpus, or what the filter kept, is empty")
    return counts | {"unknown_share": unknown_pieces / (counts["tokens"] - 2 * counts["blocks"])}


def _plain_copy(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that cuts and pads nothing and reads a "[MASK]" in a text as the six characters it is."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    copy.encode_special_tokens = True
    return copy


def _texts(chunk: Chunk) -> Iterator[str]:
    return (text for _, text in chunk.texts())


def _paragraphs(chunk: Chunk) -> Iterator[str]:
    return (line for text in _texts(chunk) for line in text.split("\n") if line.strip())


def _encode(texts: list[str], encoder: Tokenizer) -> Iterator[np.ndarray]:
    """The pieces of each text: those of its parts, one behind the other, for a piece never reaches over a space."""
    parts = [PARTS.findall(text) for text in texts]
    encodings = iter(encoder.encode_batch_fast(list(chain.from_iterable(parts)), add_special_tokens=False))
    for found in parts:
        ids = [encoding.ids for encoding in islice(encodings, len(found))]
        yield np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=sum(map(len, ids)))


def _encode_whole(texts: list[str], encoder: Tokenizer, body: int) -> Iterator[np.ndarray]:
    return _encode(texts, encoder)


def _encode_start(texts: list[str], encoder: Tokenizer, body: int) -> Iterator[np.ndarray]:
    """The first `body` pieces or more of each text, reading no more of it than its first `body` words.

    Nearly every word is one piece or more; where too many are none (control characters), the whole text is read.
    """
    starts = [" ".join(text.split(" ", body)[:body]) for text in texts]
    for text, start, pieces in zip(texts, starts, _encode(starts, encoder), strict=True):
        is_enough = len(pieces) >= body or len(start) == len(text)
        yield pieces if is_enough else next(_encode([text], encoder))


def _without_small_rests(sizes: np.ndarray, body: int) -> tuple[np.ndarray, int]:
    """How many pieces of each document to keep (documents,), and how many that drops."""
    rests = sizes % body
    dropped = np.where((sizes > body) & (rests < min(SMALLEST_REST_PIECES, body)), rests, 0)
    return sizes - dropped, int(dropped.sum())


def _first_blocks(sizes: np.ndarray, body: int) -> tuple[np.ndarray, int]:
    return np.minimum(sizes, body), 0


# packing -> what is a document, its pieces, how many of them are kept
PACKINGS = {
    "pack": (_texts, _encode_whole, _without_small_rests),
    "paragraphs": (_paragraphs, _encode_whole, _without_small_rests),
    "truncate": (_texts, _encode_start, _first_blocks),
}


def _block_lengths(sizes: np.ndarray, body: int) -> np.ndarray:
    """Pieces of each block (blocks,) when documents of so many pieces (documents,) are cut after every `body`."""
    sizes = sizes[sizes > 0]
    blocks = -(-sizes // body)
    lengths = np.full(blocks.sum(), body, dtype=np.int64)
    lengths[np.cumsum(blocks) - 1] = sizes - (blocks - 1) * body  # each document's last one
    return lengths


def _token_type(encoder: Tokenizer) -> np.dtype:
    fits = max(encoder.get_vocab().values()) <= np.iinfo(np.uint16).max
    return np.dtype(np.uint16 if fits else np.int32)
