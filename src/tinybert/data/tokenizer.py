"""The WordPiece tokenizer: trained here, or brought from the Hub or a folder; teacher and students share it.

A tokenizer folder holds tokenizer.json (everything), tokenizer_config.json (for transformers) and vocab.txt.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer

from tinybert.config.fields import HubModel
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_file, printable, read_json, read_lines, write_json
from tinybert.pipeline.hub import hub_folder

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
MODEL_MAX_LENGTH_TOKENS = 512
TOKENIZER_FILES = ["tokenizer.json", "tokenizer_config.json", "vocab.txt"]


def train_tokenizer(texts: Iterable[str], *, vocabulary_size: int) -> Tokenizer:
    """Trains a lower-casing BERT tokenizer; the same texts in any order give the same one.

    Args:
        texts: May be a stream; memory holds its distinct words.
        vocabulary_size: Tokens at most; the special ones have ids 0 to 4.

    Raises:
        UserError: If there are no words, or more characters than tokens.
    """
    tokenizer = _bert_tokenizer({token: id for id, token in enumerate(SPECIAL_TOKENS)}, lowercase=True)
    words: Counter[str] = Counter()
    for text in texts:
        normalized = tokenizer.normalizer.normalize_str(text)
        words.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized))
    if not words:
        raise UserError("tokenizer: the corpus has no words to learn a vocabulary from; give a corpus with text")
    continuing = {CONTINUATION + character for word in words for character in word[1:]}
    # The trainer would number the characters in random order, which decides ties: number them for it.
    numbered = [*SPECIAL_TOKENS, *sorted({character for word in words for character in word}), *sorted(continuing)]
    if vocabulary_size < len(numbered):
        raise UserError(
            f"teacher.synthetic.vocabulary_size: {vocabulary_size} is too small; "
            f"the characters of this corpus alone need {len(numbered)}"
        )
    trainer = WordPieceTrainer(vocab_size=vocabulary_size, special_tokens=numbered, show_progress=False)
    tokenizer.train_from_iterator((" ".join([word] * count) for word, count in words.items()), trainer)
    return _bert_tokenizer(tokenizer.get_vocab(), lowercase=True)


def save_tokenizer(tokenizer: Tokenizer, folder: str | Path, *, max_length_tokens: int | None = None) -> None:
    """Writes tokenizer.json, tokenizer_config.json and vocab.txt into the existing `folder`.

    Args:
        tokenizer: Is left without truncation and padding.
        folder: Where to.
        max_length_tokens: Readers of the files cut rows to it, as data.encoding does, and pad a batch to its longest
            row; None: they neither cut nor pad.
    """
    folder = Path(folder)
    _neither_cut_nor_pad(tokenizer)
    if max_length_tokens:
        tokenizer.enable_truncation(max_length_tokens, strategy="longest_first")
        tokenizer.enable_padding(pad_id=tokenizer.token_to_id("[PAD]"), pad_token="[PAD]")
    with atomic_file(folder / "tokenizer.json") as handle:
        handle.write(tokenizer.to_str(pretty=True) + "\n")
    _neither_cut_nor_pad(tokenizer)
    vocabulary = tokenizer.get_vocab()
    with atomic_file(folder / "vocab.txt") as handle:
        handle.writelines(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.__getitem__))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": tokenizer.normalizer.lowercase,
        "strip_accents": tokenizer.normalizer.strip_accents,
        "tokenize_chinese_chars": tokenizer.normalizer.handle_chinese_chars,
        "model_max_length": max_length_tokens or MODEL_MAX_LENGTH_TOKENS,
    }
    write_json(folder / "tokenizer_config.json", settings | dict(zip(names, SPECIAL_TOKENS, strict=True)))


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Loads the tokenizer in `folder`, without truncation and padding; UserError if it is absent or unreadable."""
    path = Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"{path}: absent; run the stage prepare_tokenizer, which writes it")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions, which quote the file
        reason = f"no tokenizer ({printable(str(error)):.200})"
        raise UserError(f"{path}: {reason}; remove the folder and run prepare_tokenizer again") from None
    _neither_cut_nor_pad(tokenizer)
    return tokenizer


def hub_tokenizer(hub: HubModel) -> Tokenizer:
    """Loads the BERT tokenizer of a model on the Hub; UserError if it cannot be had or is no BERT WordPiece."""
    fix = "check teacher.hub.model and teacher.hub.revision, or set teacher.source to local with teacher.local.folder"
    folder = hub_folder(hub, TOKENIZER_FILES, key="teacher", fix=fix)
    return _require_bert(_from_folder(folder, key="teacher.hub.model"), hub.model)


def folder_tokenizer(folder: str | Path) -> Tokenizer:
    """Loads the BERT tokenizer of a folder with tokenizer.json or vocab.txt.

    Raises:
        UserError: If the folder or the files are absent, or it is no BERT WordPiece.
    """
    if not Path(folder).is_dir():
        raise UserError(f"teacher.local.folder: {folder} is no folder; correct the path")
    return _require_bert(_from_folder(Path(folder), key="teacher.local.folder"), str(folder))


def _bert_tokenizer(vocabulary: dict[str, int], *, lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]", continuing_subword_prefix=CONTINUATION))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def _neither_cut_nor_pad(tokenizer: Tokenizer) -> None:
    tokenizer.no_truncation()
    tokenizer.no_padding()


def _from_folder(source: Path, *, key: str) -> Tokenizer:
    if (source / "tokenizer.json").is_file():
        return load_tokenizer(source)
    if not (source / "vocab.txt").is_file():
        raise UserError(f"{key}: {source} has neither tokenizer.json nor vocab.txt; add one of them")
    tokens = [line for _, line in read_lines(source / "vocab.txt", key=key)]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    if missing := [token for token in SPECIAL_TOKENS if token not in vocabulary]:
        raise UserError(f"{key}: {source}/vocab.txt lacks {', '.join(missing)}; give BERT's vocabulary")
    if doubled := [token for id, token in enumerate(tokens) if vocabulary[token] != id]:
        raise UserError(f"{key}: {source}/vocab.txt lists {doubled[0]!r:.40} twice; get it again")
    return _bert_tokenizer(vocabulary, lowercase=_lowercases(source, tokens))


def _lowercases(source: Path, tokens: list[str]) -> bool:
    """What tokenizer_config.json says; without it, whether the vocabulary has no token with a capital letter.

    A wrong guess turns every capitalized word into [UNK], so a fixed default would not do.
    """
    config = source / "tokenizer_config.json"
    guess = not any(token != token.lower() for token in tokens if not token.startswith("["))
    try:
        found = read_json(config).get("do_lower_case", guess) if config.is_file() else guess
    except (ValueError, AttributeError):
        found = None
    if not isinstance(found, bool):
        raise UserError(f"{config}: no JSON object whose do_lower_case, if it has one, is true or false; correct it")
    return found


def _require_bert(tokenizer: Tokenizer, name: str) -> Tokenizer:
    """The tokenizer itself; UserError if it is no BERT WordPiece tokenizer."""
    missing = [token for token in SPECIAL_TOKENS if tokenizer.token_to_id(token) is None]
    if missing:
        found = f"lacks {', '.join(missing)}"
    elif not isinstance(tokenizer.model, WordPiece):
        found = f"is a {type(tokenizer.model).__name__}"
    elif not isinstance(tokenizer.normalizer, normalizers.BertNormalizer):
        found = f"normalizes with {type(tokenizer.normalizer).__name__}"
    elif not _frames_texts(tokenizer):
        found = "does not put [CLS] and [SEP] around a text"
    else:
        return tokenizer
    raise UserError(f"teacher: the tokenizer of {name} {found}; a BERT WordPiece tokenizer is needed")


def _frames_texts(tokenizer: Tokenizer) -> bool:
    """Whether [CLS] and [SEP] stand around one text and around two."""
    try:
        frames = tokenizer.encode("").tokens, tokenizer.encode("", "").tokens
    except BaseException as error:  # a file that names absent tokens makes the library panic, which is no Exception
        if type(error).__name__ != "PanicException":
            raise
        return False
    return frames == (["[CLS]", "[SEP]"], ["[CLS]", "[SEP]", "[SEP]"])
