"""The WordPiece tokenizer: trained here, or brought from the Hub or a folder; teacher and students share it.

A tokenizer folder holds tokenizer.json (everything), tokenizer_config.json (for transformers) and vocab.txt.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer

from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_file, printable, read_json, read_lines, write_json
from tinybert.pipeline.hub import hub_folder

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
MODEL_MAX_LENGTH_TOKENS = 512
TOKENIZER_FILES = ["tokenizer.json", "tokenizer_config.json", "vocab.txt"]


def train_tokenizer(texts: Iterable[str], *, vocabulary_size: int) -> Tokenizer:
    """A lower-casing BERT tokenizer of at most `vocabulary_size` pieces; the same texts give the same tokenizer.

    The special tokens have ids 0 to 4. `texts` may be a stream; memory holds its distinct words. UserError when
    there are no words, or more characters than pieces.
    """
    tokenizer = _bert_tokenizer({token: id for id, token in enumerate(SPECIAL_TOKENS)}, lowercase=True)
    words = _count_words(texts, tokenizer)
    alphabet = _alphabet(words)
    if not words:
        raise UserError("tokenizer: the corpus has no words to learn a vocabulary from; give a corpus with text")
    if vocabulary_size < len(SPECIAL_TOKENS) + len(alphabet):
        least = len(SPECIAL_TOKENS) + len(alphabet)
        raise UserError(
            f"teacher.synthetic.vocabulary_size: {vocabulary_size} is too small; "
            f"the characters of this corpus alone need {least}"
        )
    trainer = WordPieceTrainer(
        vocab_size=vocabulary_size,
        # The trainer numbers pieces of one character in a random order, which decides ties: number them for it.
        special_tokens=[*SPECIAL_TOKENS, *alphabet],
        show_progress=False,
    )
    tokenizer.train_from_iterator((" ".join([word] * count) for word, count in words.items()), trainer)
    return _bert_tokenizer(tokenizer.get_vocab(), lowercase=True)


def save_tokenizer(tokenizer: Tokenizer, folder: str | Path, *, max_length_tokens: int | None = None) -> None:
    """Writes tokenizer.json, tokenizer_config.json and vocab.txt into the existing `folder`.

    max_length_tokens: rows are cut to it, as `glue.encoding` does, and those of a batch padded to the longest, by
    whoever reads the files; without it nothing is cut or padded.
    """
    folder = Path(folder)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if max_length_tokens:
        tokenizer.enable_truncation(max_length_tokens, strategy="longest_first")
        tokenizer.enable_padding(pad_id=tokenizer.token_to_id("[PAD]"), pad_token="[PAD]")
    with atomic_file(folder / "tokenizer.json") as handle:
        handle.write(tokenizer.to_str(pretty=True) + "\n")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    vocabulary = tokenizer.get_vocab()
    with atomic_file(folder / "vocab.txt") as handle:
        handle.writelines(f"{piece}\n" for piece in sorted(vocabulary, key=vocabulary.__getitem__))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": tokenizer.normalizer.lowercase,
            "strip_accents": tokenizer.normalizer.strip_accents,
            "tokenize_chinese_chars": tokenizer.normalizer.handle_chinese_chars,
            "model_max_length": max_length_tokens or MODEL_MAX_LENGTH_TOKENS,
        }
        | dict(zip(names, SPECIAL_TOKENS, strict=True)),
    )


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer in `folder`, without truncation or padding. UserError when it is absent or unreadable."""
    path = Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"{path}: absent; run the stage prepare_tokenizer, which writes it")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        reason = printable(str(error))  # it quotes the file
        fix = "remove the folder and run prepare_tokenizer again"
        raise UserError(f"{path}: no tokenizer ({reason:.200}); {fix}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def hub_tokenizer(hub) -> Tokenizer:
    """The BERT tokenizer of the Hub model that `hub` (params: teacher.hub) names.

    UserError when it cannot be had, has neither tokenizer.json nor vocab.txt, or is no BERT WordPiece.
    """
    fix = "check teacher.hub.model and teacher.hub.revision, or set teacher.source to local with teacher.local.folder"
    folder = hub_folder(hub, TOKENIZER_FILES, key="teacher", fix=fix)
    return _require_bert(_from_folder(folder, key="teacher.hub.model"), hub.model)


def folder_tokenizer(folder: str | Path) -> Tokenizer:
    """The BERT tokenizer in a folder with tokenizer.json or vocab.txt; the Hub is never asked.

    UserError when the folder or the files are absent, or it is no BERT WordPiece.
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


def _count_words(texts: Iterable[str], tokenizer: Tokenizer) -> Counter[str]:
    words: Counter[str] = Counter()
    for text in texts:
        normalized = tokenizer.normalizer.normalize_str(text)
        words.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized))
    return words


def _alphabet(words: Iterable[str]) -> list[str]:
    """All pieces of one character: each character, and with ## those that continue a word."""
    words = list(words)
    continuing = {CONTINUATION + character for word in words for character in word[1:]}
    return sorted({character for word in words for character in word}) + sorted(continuing)


def _from_folder(source: Path, *, key: str) -> Tokenizer:
    if (source / "tokenizer.json").is_file():
        return load_tokenizer(source)
    if not (source / "vocab.txt").is_file():
        raise UserError(f"{key}: {source} has neither tokenizer.json nor vocab.txt; add one of them")
    pieces = [line for _, line in read_lines(source / "vocab.txt", key=key)]
    missing = [token for token in SPECIAL_TOKENS if token not in pieces]
    if missing:
        raise UserError(f"{key}: {source}/vocab.txt lacks {', '.join(missing)}; give BERT's vocabulary")
    if doubled := [piece for piece, count in Counter(pieces).items() if count > 1]:
        raise UserError(f"{key}: {source}/vocab.txt lists {doubled[0]!r:.40} twice; get it again")
    return _bert_tokenizer({piece: id for id, piece in enumerate(pieces)}, lowercase=_lowercases(source, pieces))


def _lowercases(source: Path, pieces: list[str]) -> bool:
    """What tokenizer_config.json says; without it, whether the vocabulary has no piece with a capital letter.

    Guessing the case wrong turns every capitalised word into [UNK], so a default would not do.
    """
    config = source / "tokenizer_config.json"
    if config.is_file():
        try:
            settings = read_json(config)
        except ValueError:
            settings = None
        says = settings.get("do_lower_case", True) if isinstance(settings, dict) else None
        if not isinstance(says, bool):
            raise UserError(f"{config}: no JSON object whose do_lower_case, if it has one, is true or false; mend it")
        if "do_lower_case" in settings:
            return says
    return not any(piece != piece.lower() for piece in pieces if not piece.startswith("["))


def _require_bert(tokenizer: Tokenizer, name: str) -> Tokenizer:
    missing = [token for token in SPECIAL_TOKENS if tokenizer.token_to_id(token) is None]
    if missing:
        found = f"lacks {', '.join(missing)}"
    elif not isinstance(tokenizer.model, WordPiece):
        found = f"is a {type(tokenizer.model).__name__}"
    elif not isinstance(tokenizer.normalizer, normalizers.BertNormalizer):
        found = f"normalizes with {type(tokenizer.normalizer).__name__}"
    elif _frames(tokenizer) != (["[CLS]", "[SEP]"], ["[CLS]", "[SEP]", "[SEP]"]):
        found = "does not put [CLS] and [SEP] around a text"
    else:
        return tokenizer
    raise UserError(f"teacher: the tokenizer of {name} {found}; a BERT WordPiece tokenizer is needed")


def _frames(tokenizer: Tokenizer) -> tuple[list[str], list[str]] | None:
    """What it puts around one and two texts without a piece; None where its file names pieces that it has not."""
    try:
        return tokenizer.encode("").tokens, tokenizer.encode("", "").tokens
    except BaseException as error:  # a panic of the library, which is no Exception
        if type(error).__name__ != "PanicException":
            raise
        return None
