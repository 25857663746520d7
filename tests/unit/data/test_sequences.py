"""Sequences: documents cut with a vocabulary of a few letters, what is on disk, damaged folders."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from tinybert.data import sequences
from tinybert.data.sequences import Sequences, sequences_writer, write_sequences
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import write_jsonl

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PAD, UNK, CLS, SEP, MASK = range(5)
A = 5  # the id of "a"; "b" is 6, and so on


@pytest.fixture
def tokenizer() -> Tokenizer:
    return make_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS])


def make_tokenizer(pieces: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(WordPiece({piece: id for id, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", SEP), ("[CLS]", CLS))
    tokenizer.add_special_tokens(pieces[:5])
    return tokenizer


def write(tmp_path: Path, tokenizer, *texts: str, sequence_tokens=12, packing="pack") -> tuple[list, dict]:
    source, folder = tmp_path / "documents.jsonl", tmp_path / "blocks"
    write_jsonl(source, ({"title": "x y z", "text": text} for text in texts))
    settings = SimpleNamespace(sequence_tokens=sequence_tokens, packing=packing)
    counts = write_sequences(source, tokenizer, folder, settings)
    return [block.tolist() for block in Sequences.open(folder)], counts


def ids(letters: str) -> list[int]:
    return [LETTERS.index(letter) + A for letter in letters]


def spaced(letters: str) -> str:
    return " ".join(letters)


def test_packing_keeps_the_whole_document_and_never_mixes_two(tmp_path, tokenizer):
    blocks, counts = write(tmp_path, tokenizer, spaced("abcdefghijklmnopqr"), spaced("xyz"))
    assert blocks == [
        [CLS, *ids("abcdefghij"), SEP],
        [CLS, *ids("klmnopqr"), SEP],  # a rest of 8 pieces is kept
        [CLS, *ids("xyz"), SEP],  # a whole document is kept however short
    ]
    assert counts == {"documents": 2, "sequences": 3, "tokens": 12 + 10 + 5, "dropped_tokens": 0, "unknown_share": 0.0}


def test_paragraphs_have_blocks_of_their_own(tmp_path, tokenizer):
    text = f"{spaced('abcdefghijkl')}\n\n{spaced('xyz')}\n"
    blocks, counts = write(tmp_path, tokenizer, text, packing="paragraphs")
    assert blocks == [[CLS, *ids("abcdefghij"), SEP], [CLS, *ids("xyz"), SEP]]
    assert counts["documents"] == 2 and counts["dropped_tokens"] == 2


def test_a_rest_of_seven_pieces_is_dropped_and_counted(tmp_path, tokenizer):
    blocks, counts = write(tmp_path, tokenizer, spaced("abcdefghijklmnopq"))
    assert blocks == [[CLS, *ids("abcdefghij"), SEP]]
    assert counts["dropped_tokens"] == 7 and counts["sequences"] == 1


def test_short_sequences_keep_full_ones(tmp_path, tokenizer):
    for letters, dropped in {"abcdefgh": 0, "abcdefghi": 1}.items():
        blocks, counts = write(tmp_path, tokenizer, spaced(letters), sequence_tokens=6)
        assert blocks == [[CLS, *ids("abcd"), SEP], [CLS, *ids("efgh"), SEP]]
        assert counts["dropped_tokens"] == dropped


def test_truncation_keeps_each_documents_first_block(tmp_path, tokenizer):
    blocks, counts = write(tmp_path, tokenizer, spaced("abcdefghijklmnop"), spaced("xy"), packing="truncate")
    assert blocks == [[CLS, *ids("abcdefghij"), SEP], [CLS, *ids("xy"), SEP]]
    assert counts == {"documents": 2, "sequences": 2, "tokens": 16, "dropped_tokens": 0, "unknown_share": 0.0}


def test_truncation_reads_on_when_words_vanish_in_normalization(tmp_path, tokenizer):
    vanishing = "\x01 " * 50  # control characters are no pieces
    blocks, _ = write(tmp_path, tokenizer, vanishing + spaced("abcdefghijkl"), packing="truncate")
    assert blocks == [[CLS, *ids("abcdefghij"), SEP]]


def test_unknown_share_is_of_the_pieces(tmp_path, tokenizer):
    blocks, counts = write(tmp_path, tokenizer, "a 7 b 8")
    assert blocks == [[CLS, A, UNK, A + 1, UNK, SEP]] and counts["unknown_share"] == 0.5


def test_special_tokens_written_in_a_text_are_text(tmp_path, tokenizer):
    blocks, _ = write(tmp_path, tokenizer, "a [MASK] b [SEP]")
    assert MASK not in blocks[0] and blocks[0].count(SEP) == 1
    assert tokenizer.encode("[MASK]", add_special_tokens=False).ids == [MASK]  # the caller's is as it was


def test_the_callers_truncation_and_padding_do_not_matter(tmp_path, tokenizer):
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=50)
    blocks, _ = write(tmp_path, tokenizer, spaced("abcdef"))
    assert blocks == [[CLS, *ids("abcdef"), SEP]]


@pytest.mark.parametrize("packing", ["pack", "paragraphs", "truncate"])
def test_the_size_of_a_batch_changes_no_byte(tmp_path, monkeypatch, tokenizer, packing):
    random = np.random.default_rng(0)
    texts = [spaced("".join(random.choice(list(LETTERS), size=size))) for size in random.integers(1, 90, size=60)]
    texts += ["a [MASK] b\nc", "\x01"]
    results, files = [], []
    for documents in (1, 7, 100):
        monkeypatch.setattr(sequences, "BATCH_DOCUMENTS", documents)
        results.append(write(tmp_path, tokenizer, *texts, packing=packing))
        files.append([(tmp_path / "blocks" / name).read_bytes() for name in ("tokens.npy", "offsets.npy")])
    assert all(result == results[0] for result in results) and all(found == files[0] for found in files)
    assert results[0][1]["documents"] == (62 if packing == "paragraphs" else 61)  # "\x01" is none
    assert not any(MASK in block for block in results[0][0])


def test_long_texts_have_the_same_pieces_in_parts(tmp_path, tokenizer):
    random = np.random.default_rng(0)
    signs = np.array([*"abcAé.,你́\t\u00a0\x0b\x1c\x85\u2028 \n  ", "[MASK]"])
    texts = ["".join(random.choice(signs, size=size)) for size in (20_000, 40_000)]
    texts += ["ab " * 10_000, "a" * 20_000 + " b " + "c" * 40_000, "x" * (2**14 - 1) + " y", "x" * 2**14 + " y"]
    tokenizer.encode_special_tokens = True
    expected = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    found, counts = write(tmp_path, tokenizer, *texts, sequence_tokens=10**6)
    assert [block[1:-1] for block in found] == expected and counts["dropped_tokens"] == 0


def test_what_is_on_disk_is_flat_and_small(tmp_path, tokenizer):
    write(tmp_path, tokenizer, "a b", "c")
    tokens, offsets = (np.load(tmp_path / "blocks" / name) for name in ("tokens.npy", "offsets.npy"))
    assert tokens.dtype == np.uint16 and tokens.tolist() == [CLS, A, A + 1, SEP, CLS, A + 2, SEP]
    assert offsets.dtype == np.int64 and offsets.tolist() == [0, 4, 7]


def test_large_vocabularies_get_wider_numbers(tmp_path):
    fillers = [f"w{number}" for number in range(70_000)]
    large = make_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *fillers, "zz"])
    blocks, _ = write(tmp_path, large, "zz")
    assert blocks == [[CLS, 70_005, SEP]]
    assert np.load(tmp_path / "blocks" / "tokens.npy").dtype == np.int32


@pytest.mark.parametrize("texts", [(), ("\x01 \x02",)])
@pytest.mark.parametrize("packing", ["pack", "truncate"])
def test_no_text_is_an_error_and_leaves_nothing(tmp_path, tokenizer, texts, packing):
    with pytest.raises(UserError, match="no text to tokenize"):
        write(tmp_path, tokenizer, *texts, packing=packing)
    assert [path.name for path in tmp_path.iterdir()] == ["documents.jsonl"]


def write_two(folder: Path) -> None:
    """Two blocks, of 4 and of 3 tokens."""
    with sequences_writer(folder, np.dtype(np.uint16)) as append:
        append(np.array([2, 5, 6, 3]), np.array([4]))
        append(np.array([2, 7, 3]), np.array([3]))


def test_blocks_written_in_parts_are_plain_arrays(tmp_path):
    write_two(tmp_path)
    np.save(tmp_path / "whole.npy", np.array([0, 4, 7]))
    assert (tmp_path / "offsets.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    np.save(tmp_path / "whole.npy", np.array([2, 5, 6, 3, 2, 7, 3], dtype=np.uint16))
    assert (tmp_path / "tokens.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_blocks_are_a_sequence_of_int64_copies(tmp_path):
    write_two(tmp_path)
    blocks = Sequences.open(tmp_path)
    assert len(blocks) == 2 and blocks.lengths.tolist() == [4, 3] and isinstance(blocks.tokens, np.memmap)
    block = blocks[1]
    block[0] = 99
    assert block.dtype == np.int64 and blocks[1].tolist() == [2, 7, 3]
    with pytest.raises(IndexError):
        blocks[2]


def test_absent_and_damaged_folders_are_named(tmp_path):
    with pytest.raises(UserError, match=r"no sequences in it .*run the stage tokenize"):
        Sequences.open(tmp_path / "absent")
    write_two(tmp_path)
    np.save(tmp_path / "offsets.npy", np.array([0, 4, 8]))
    with pytest.raises(UserError, match="do not match"):
        Sequences.open(tmp_path)


def test_numpys_long_complaints_become_one_line(tmp_path):
    write_two(tmp_path)
    header = b" " * 20_000  # more than NumPy reads by default
    (tmp_path / "offsets.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(ValueError, match="\n"):
        np.load(tmp_path / "offsets.npy")
    with pytest.raises(UserError, match=r"its .npy files are damaged; fix: run the stage tokenize again$") as caught:
        Sequences.open(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("offsets", [np.array(4), np.array([[0, 4]]), np.array([0])])
def test_arrays_of_another_shape_are_no_offsets(tmp_path, offsets):
    write_two(tmp_path)
    np.save(tmp_path / "offsets.npy", offsets)
    with pytest.raises(UserError, match="do not match"):
        Sequences.open(tmp_path)
