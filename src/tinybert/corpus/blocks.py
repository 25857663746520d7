"""Blocks of word pieces: documents cut to what one forward pass reads, ragged, without padding.

On disk a folder with tokens.npy (all blocks one behind the other) and offsets.npy (where each begins, and the end).
"""

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from tinybert.errors import UserError
from tinybert.files import atomic_folder

# The rest of a document behind its last full block is dropped below this length: it teaches next to nothing.
SMALLEST_REST_PIECES = 8
# Characters encoded at a time: enough to keep all threads busy, some 100 MB of encodings.
BATCH_CHARACTERS = 1_000_000


@dataclass(frozen=True)
class Blocks:
    """A folder of blocks, memory-mapped: tokens (all tokens,) uint16 or int32, offsets (blocks + 1,) int64."""

    tokens: np.ndarray
    offsets: np.ndarray

    @classmethod
    def open(cls, folder: str | Path) -> "Blocks":
        """Opens what write_blocks wrote; UserError when the files are absent or do not fit together."""
        try:
            tokens = np.load(Path(folder) / "tokens.npy", mmap_mode="r")
            offsets = np.load(Path(folder) / "offsets.npy")
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{folder}: no blocks in it ({error}); run the stage tokenize, which writes them") from None
        if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(tokens) or np.any(np.diff(offsets) <= 0):
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


def write_blocks(
    documents: Iterable[dict],
    tokenizer: Tokenizer,
    folder: str | Path,
    *,
    block_tokens: int,
    packing: str,
    batch_characters: int = BATCH_CHARACTERS,
) -> dict:
    """Tokenizes the texts of `documents` into blocks of at most `block_tokens` tokens, [CLS] and [SEP] included.

    packing "pack" cuts a whole document into blocks, the last one shorter, or dropped if it would hold fewer than 8
    pieces and is not the only one; "paragraphs" does so with each line of a document by itself; "truncate" keeps a
    document's first block. Blocks never mix documents. Returns counts: documents (or paragraphs) with a block,
    blocks, tokens (with [CLS] and [SEP]), dropped_pieces (in dropped rests), unknown_share (of the pieces in
    blocks). UserError when there is no text. `batch_characters` bounds memory and changes nothing else.
    """
    encoder, body = _plain_copy(tokenizer), block_tokens - 2
    encode, cut = PACKINGS[packing]
    first, last, unknown = (encoder.token_to_id(token) for token in ("[CLS]", "[SEP]", "[UNK]"))
    offsets = array("q", [0])
    counts = {"documents": 0, "blocks": 0, "tokens": 0, "dropped_pieces": 0}
    unknown_pieces = 0
    batches = _batches(_paragraphs(documents) if packing == "paragraphs" else documents, batch_characters)
    found = (pieces for batch in batches for pieces in encode(batch, encoder, body))
    with atomic_folder(folder) as target:
        with _growing_array(target / "tokens.npy", _token_type(encoder)) as append:
            for pieces in _with_progress(found):
                blocks, dropped = cut(pieces, body)
                for block in blocks:
                    append(np.concatenate(([first], block, [last])))
                    offsets.append(offsets[-1] + len(block) + 2)
                    unknown_pieces += int(np.count_nonzero(block == unknown))
                counts["documents"] += bool(blocks)
                counts["dropped_pieces"] += dropped
        counts["blocks"], counts["tokens"] = len(offsets) - 1, offsets[-1]
        if not counts["blocks"]:
            raise UserError("tokenize: there is no text to tokenize; the corpus, or what the filter kept, is empty")
        np.save(target / "offsets.npy", np.array(offsets, dtype=np.int64))
    return counts | {"unknown_share": unknown_pieces / (counts["tokens"] - 2 * counts["blocks"])}


def _plain_copy(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that cuts and pads nothing and reads a "[MASK]" in a text as the six characters it is."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    copy.encode_special_tokens = True
    return copy


def _paragraphs(documents: Iterable[dict]) -> Iterator[dict]:
    return ({"text": line} for document in documents for line in document["text"].split("\n") if line.strip())


def _batches(documents: Iterable[dict], batch_characters: int) -> Iterator[list[str]]:
    batch, size = [], 0
    for document in documents:
        batch.append(document["text"])
        size += len(document["text"])
        if size >= batch_characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _encode(texts: list[str], encoder: Tokenizer) -> Iterator[np.ndarray]:
    for encoding in encoder.encode_batch_fast(texts, add_special_tokens=False):
        yield np.asarray(encoding.ids, dtype=np.int32)


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


def _pack(pieces: np.ndarray, body: int) -> tuple[list[np.ndarray], int]:
    """All of a document's blocks, without [CLS] and [SEP], and how many pieces its dropped rest had."""
    blocks = [pieces[start : start + body] for start in range(0, len(pieces), body)]
    if len(blocks) > 1 and len(blocks[-1]) < min(SMALLEST_REST_PIECES, body):
        return blocks[:-1], len(blocks[-1])
    return blocks, 0


def _truncate(pieces: np.ndarray, body: int) -> tuple[list[np.ndarray], int]:
    return ([pieces[:body]] if len(pieces) else []), 0


PACKINGS = {
    "pack": (_encode_whole, _pack),
    "paragraphs": (_encode_whole, _pack),
    "truncate": (_encode_start, _truncate),
}


def _token_type(encoder: Tokenizer) -> np.dtype:
    fits = max(encoder.get_vocab().values()) <= np.iinfo(np.uint16).max
    return np.dtype(np.uint16 if fits else np.int32)


@contextmanager
def _growing_array(path: Path, dtype: np.dtype) -> Iterator[Callable[[np.ndarray], None]]:
    """Yields a function that appends to a one-dimensional .npy file, whose header is completed at the end."""
    count = 0

    def write_header() -> None:  # NumPy pads it, so that it has the same size whatever the length in it
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(handle, header)

    def append(values: np.ndarray) -> None:
        nonlocal count
        handle.write(values.astype(dtype).tobytes())
        count += len(values)

    with open(path, "wb") as handle:
        write_header()
        yield append
        handle.seek(0)
        write_header()


def _with_progress(found: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    with tqdm(desc="tokenize", unit=" pieces", unit_scale=True, mininterval=2.0, file=sys.stderr) as progress:
        for pieces in found:
            yield pieces
            progress.update(len(pieces))
