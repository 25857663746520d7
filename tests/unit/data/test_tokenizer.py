"""The tokenizer: trained twice the same, the same ids in transformers, brought from folders of every make."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, processors
from tokenizers.models import BPE, WordPiece
from tokenizers.normalizers import BertNormalizer

from tinybert.data.tokenizer import (
    SPECIAL_TOKENS,
    folder_tokenizer,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
)
from tinybert.pipeline.errors import UserError

TEXTS = [
    "The river flows north, past the old mill and the older bridge.",
    "Old mills stand by rivers; bridges cross the rivers and the mills grind flour.",
    "Unflowing, overflowing, flowing: the water of a café in Zürich.",
] * 3


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def trained(folder: Path) -> Tokenizer:
    folder.mkdir()
    save_tokenizer(train_tokenizer(TEXTS, vocabulary_size=100), folder)
    return load_tokenizer(folder)


def vocab_folder(folder: Path, pieces: list[str]) -> Path:
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *pieces]) + "\n", encoding="utf-8")
    return folder


def keep_accents(source: Path) -> None:
    """Adds a tokenizer.json that lower-cases but leaves accents."""
    pieces = (source / "vocab.txt").read_text(encoding="utf-8").split()
    tokenizer = train_tokenizer(["a"], vocabulary_size=10)
    tokenizer.model = WordPiece({piece: id for id, piece in enumerate(pieces)}, unk_token="[UNK]")
    tokenizer.normalizer = BertNormalizer(lowercase=True, strip_accents=False)
    tokenizer.save(str(source / "tokenizer.json"))


def test_training_twice_gives_the_same_bytes(tmp_path):
    many = [f"word{number} {number * 7919 % 1000}x{number}" for number in range(2000)]  # many ties
    for name, texts in {"a": many, "b": list(reversed(many))}.items():
        (tmp_path / name).mkdir()
        save_tokenizer(train_tokenizer(iter(texts), vocabulary_size=400), tmp_path / name)
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")
    assert set(bytes_of(tmp_path / "a")) == {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}


def test_special_tokens_come_first_and_text_is_normalized(tmp_path):
    tokenizer = trained(tmp_path / "t")
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3, 4]
    assert tokenizer.encode("CAFÉ Rivers").ids == tokenizer.encode("cafe rivers").ids
    assert "[UNK]" not in tokenizer.encode("Zürich café").tokens
    assert tokenizer.get_vocab_size() == 100


def test_frequent_words_and_mask_tokens_are_one_token(tmp_path):
    tokens = trained(tmp_path / "t").encode("the [MASK] flows €").tokens
    assert tokens[0] == "[CLS]" and tokens[1] == "the" and tokens[2] == "[MASK]" and tokens[-2:] == ["[UNK]", "[SEP]"]


def test_pairs_get_two_segments(tmp_path):
    encoding = trained(tmp_path / "t").encode("the", "the")
    assert encoding.tokens == ["[CLS]", "the", "[SEP]", "the", "[SEP]"]
    assert encoding.type_ids == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("kind", ["trained", "cased", "accented"])
def test_transformers_loads_the_folder_to_the_same_ids(tmp_path, kind):
    import transformers

    if kind == "trained":
        tokenizer = trained(tmp_path / "t")
    else:
        source = vocab_folder(tmp_path / "source", ["The", "river", "##s", "é", "e"])
        if kind == "accented":
            keep_accents(source)
        (tmp_path / "t").mkdir()
        save_tokenizer(folder_tokenizer(str(source)), tmp_path / "t")
        tokenizer = load_tokenizer(tmp_path / "t")
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "t"))
    for text in [*TEXTS, "é The RIVERS [MASK] 河", ""]:
        assert theirs(text)["input_ids"] == tokenizer.encode(text).ids
    pair = theirs("the river", "rivers")
    assert pair["token_type_ids"] == tokenizer.encode("the river", "rivers").type_ids
    assert (theirs.mask_token_id, theirs.pad_token_id) == (4, 0)


def test_vocabulary_too_small_for_the_alphabet_is_refused():
    # a, b, c, ##b, ##c and the 5 special tokens
    with pytest.raises(UserError, match=r"teacher\.synthetic\.vocabulary_size: 9 is too small; .* need 10"):
        train_tokenizer(["a b c ab ac"], vocabulary_size=9)


def test_a_corpus_without_words_is_refused():
    with pytest.raises(UserError, match="no words"):
        train_tokenizer(["  ", ""], vocabulary_size=100)


def test_truncation_and_padding_of_a_loaded_one_are_removed(tmp_path):
    tokenizer = trained(tmp_path / "source")
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "source" / "tokenizer.json"))
    (tmp_path / "t").mkdir()
    save_tokenizer(folder_tokenizer(str(tmp_path / "source")), tmp_path / "t")
    assert len(load_tokenizer(tmp_path / "t").encode("the the the the the the the the").ids) == 10
    stored = json.loads((tmp_path / "t" / "tokenizer.json").read_text(encoding="utf-8"))
    assert stored["truncation"] is None and stored["padding"] is None


@pytest.mark.parametrize(
    ("pieces", "config", "expected"),
    [
        (["the", "river"], None, ["the", "river"]),  # no capital letter in the vocabulary: lower-casing
        (["The", "river"], None, ["The", "river"]),
        (["The", "the", "river"], {"do_lower_case": True}, ["the", "river"]),
        (["the", "river"], {"do_lower_case": False}, ["[UNK]", "river"]),
    ],
)
def test_a_folder_with_only_a_vocabulary_tells_its_case(tmp_path, pieces, config, expected):
    source = vocab_folder(tmp_path / "source", pieces)
    if config:
        (source / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "t").mkdir()
    save_tokenizer(folder_tokenizer(str(source)), tmp_path / "t")
    assert load_tokenizer(tmp_path / "t").encode("The river").tokens == ["[CLS]", *expected, "[SEP]"]


def test_folders_without_a_bert_tokenizer_are_named(tmp_path):
    with pytest.raises(UserError, match=r"teacher\.local\.folder: not a folder \(got '.*absent'\)"):
        save_tokenizer(folder_tokenizer(str(tmp_path / "absent")), tmp_path)
    with pytest.raises(UserError, match=r"has neither tokenizer\.json nor vocab\.txt"):
        save_tokenizer(folder_tokenizer(str(tmp_path)), tmp_path)
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "vocab.txt").write_text("[PAD]\n[UNK]\nthe\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"the vocabulary lacks \[CLS\], \[SEP\], \[MASK\]"):
        save_tokenizer(folder_tokenizer(str(tmp_path / "v")), tmp_path)
    bpe = Tokenizer(BPE())
    bpe.add_special_tokens(list(SPECIAL_TOKENS))
    (tmp_path / "b").mkdir()
    bpe.save(str(tmp_path / "b" / "tokenizer.json"))
    with pytest.raises(UserError, match=r"no WordPiece tokenizer of a BERT \(got a BPE after a NoneType\)"):
        save_tokenizer(folder_tokenizer(str(tmp_path / "b")), tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "needed"),
    [
        ("tokenizer_config.json", {"tokenizer_class": "BertJapaneseTokenizer"}, "BertJapaneseTokenizer"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9": {"content": "userurl"}}}, "userurl"),
        ("added_tokens.json", {"userurl": 9}, "userurl"),
    ],
)
def test_a_vocabulary_that_is_not_all_of_its_tokenizer_is_refused(tmp_path, file, content, needed):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "the"]), encoding="utf-8")
    fitting = {"tokenizer_class": "BertTokenizerFast", "added_tokens_decoder": {"0": {"content": "[PAD]"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(fitting), encoding="utf-8")
    assert folder_tokenizer(tmp_path).encode("the").tokens == ["[CLS]", "the", "[SEP]"]
    (tmp_path / file).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match=rf"needs more than vocab\.txt \(got '{needed}'\); fix: add tokenizer\.json"):
        folder_tokenizer(tmp_path)


def test_load_tokenizer_names_absent_and_broken_files(tmp_path):
    with pytest.raises(UserError, match=r"tokenizer\.json: absent; fix: dvc repro"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer\.json: no tokenizer"):
        load_tokenizer(tmp_path)


def test_a_file_without_the_frame_gets_bert_s(tmp_path):
    tokenizer = trained(tmp_path / "source")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    tokenizer.save(str(tmp_path / "source" / "tokenizer.json"))
    encoding = folder_tokenizer(tmp_path / "source").encode("the", "the")
    assert encoding.tokens == ["[CLS]", "the", "[SEP]", "the", "[SEP]"]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("5", "not a JSON object"),
        ("[", "not JSON "),
        ('{"do_lower_case": "no"}', r"do_lower_case: neither true nor false \(got 'no'\)"),
        ('{"do_lower_case": null}', r"do_lower_case: neither true nor false \(got None\)"),
        ('{"strip_accents": 1}', r"strip_accents: neither true nor false \(got 1\)"),
    ],
)
def test_a_damaged_config_is_one_line(tmp_path, config, problem):
    folder = vocab_folder(tmp_path / "own", ["paris"])
    (folder / "tokenizer_config.json").write_text(config)
    with pytest.raises(UserError, match=rf"tokenizer_config\.json: {problem}"):
        folder_tokenizer(folder)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"do_lower_case": True}, ["uber", "straße"]),
        ({"do_lower_case": True, "strip_accents": None}, ["uber", "straße"]),
        ({"do_lower_case": True, "strip_accents": False}, ["über", "straße"]),  # as uncased German BERTs
        ({"do_lower_case": False}, ["Über", "Straße"]),
        ({"do_lower_case": False, "strip_accents": True}, ["Uber", "Straße"]),
    ],
)
def test_case_and_accents_are_those_of_the_config(tmp_path, config, expected):
    folder = vocab_folder(tmp_path / "own", ["uber", "über", "Uber", "Über", "straße", "Straße"])
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "t").mkdir()
    save_tokenizer(folder_tokenizer(folder), tmp_path / "t")
    assert load_tokenizer(tmp_path / "t").encode("Über Straße").tokens[1:-1] == expected
    from transformers import AutoTokenizer

    stored = AutoTokenizer.from_pretrained(str(tmp_path / "t"))
    assert stored.tokenize("Über Straße") == expected


@pytest.mark.parametrize(("splits", "expected"), [(True, ["北", "京"]), (False, ["北京"])])
def test_chinese_characters_are_split_as_the_config_says(tmp_path, splits, expected):
    folder = vocab_folder(tmp_path / "own", ["北", "京", "北京"])
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenize_chinese_chars": splits}), encoding="utf-8")
    assert folder_tokenizer(folder).encode("北京").tokens[1:-1] == expected


def test_a_vocabulary_with_a_piece_twice_is_refused(tmp_path):
    folder = vocab_folder(tmp_path / "own", ["paris", "rome", "paris"])
    with pytest.raises(UserError, match="lists 'paris' twice"):
        folder_tokenizer(folder)
