"""The WordPiece tokenizer: trained here, or loaded from the Hub or a folder; teacher and students share it.

A tokenizer folder holds tokenizer.json (everything), tokenizer_config.json (for transformers) and vocab.txt.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer

from tinybert.config.fields import ModelSource, read_config, source_folder
from tinybert.config.schema import TeacherSettings
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import printable, read_lines, write_file, write_json

BERT_TOKENIZERS = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")  # of transformers; vocab.txt is enough
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def train_tokenizer(texts: Iterable[str], *, vocabulary_size: int) -> Tokenizer:
    """Trains a lower-casing BERT tokenizer of at most `vocabulary_size` tokens; the order of the texts has no effect.

    The special tokens have ids 0 to 4. Memory holds the distinct words.
    """
    lowercase = normalizers.BertNormalizer(lowercase=True)
    tokenizer = _bert_tokenizer({token: id for id, token in enumerate(SPECIAL_TOKENS)}, lowercase)
    words: Counter[str] = Counter()
    for text in texts:
        normalized = tokenizer.normalizer.normalize_str(text)
        words.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized))
    if not words:
        raise UserError("tokenizer: the corpus has no words to learn a vocabulary from; fix: give a corpus with text")
    continuing = {"##" + character for word in words for character in word[1:]}
    # The trainer would number the characters in random order, which decides ties: number them for it.
    numbered = [*SPECIAL_TOKENS, *sorted({character for word in words for character in word}), *sorted(continuing)]
    if vocabulary_size < len(numbered):
        wanted = f"the characters of this corpus alone need {len(numbered)}"
        raise UserError(f"teacher.synthetic.vocabulary_size: {vocabulary_size} is too small; {wanted}")
    trainer = WordPieceTrainer(vocab_size=vocabulary_size, special_tokens=numbered, show_progress=False)
    parts = ((word, min(count - done, 1000)) for word, count in words.items() for done in range(0, count, 1000))
    tokenizer.train_from_iterator((" ".join([word] * count) for word, count in parts), trainer)
    return _framed(_bert_tokenizer(tokenizer.get_vocab(), lowercase))


def save_tokenizer(tokenizer: Tokenizer, folder: str | Path, *, max_length_tokens: int | None = None) -> None:
    """Writes a tokenizer without truncation and padding into the existing `folder`, in three files.

    With `max_length_tokens`, readers of the files cut rows to it, as data.encoding does, and pad batches.
    """
    folder = Path(folder)
    stored = Tokenizer.from_str(tokenizer.to_str())
    if max_length_tokens:
        stored.enable_truncation(max_length_tokens, strategy="longest_first")
        stored.enable_padding(pad_id=tokenizer.token_to_id("[PAD]"), pad_token="[PAD]")
    write_file(folder / "tokenizer.json", stored.to_str(pretty=True) + "\n")
    vocabulary = tokenizer.get_vocab()
    write_file(folder / "vocab.txt", "".join(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.__getitem__)))
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": tokenizer.normalizer.lowercase,
        "strip_accents": tokenizer.normalizer.strip_accents,
        "tokenize_chinese_chars": tokenizer.normalizer.handle_chinese_chars,
        "model_max_length": max_length_tokens or 512,
    }
    names = {f"{token.strip('[]').lower()}_token": token for token in SPECIAL_TOKENS}
    write_json(folder / "tokenizer_config.json", settings | names)


def load_tokenizer(folder: str | Path, *, fix: str = "dvc repro, which writes it") -> Tokenizer:
    """Loads the tokenizer in `folder`, without truncation and padding; UserError if it is absent or unreadable."""
    path = Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"{path}: absent; fix: {fix}")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions, which quote the file
        fix = "get the file again; if a stage wrote it, run that stage again"
        raise UserError(f"{path}: no tokenizer ({printable(str(error)):.200}); fix: {fix}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def trimmed_tokenizer(tokenizer: Tokenizer, kept: Sequence[int]) -> Tokenizer:
    """The tokenizer with the tokens `kept` only, which are numbered in their order; words may fall into more tokens."""
    state = json.loads(tokenizer.to_str())
    numbers = {tokenizer.id_to_token(old): new for new, old in enumerate(kept)}
    state["model"]["vocab"] = numbers
    added = [token | {"id": numbers[name]} for token in state["added_tokens"] if (name := token["content"]) in numbers]
    return _framed(Tokenizer.from_str(json.dumps(state | {"added_tokens": added, "post_processor": None})))


def teacher_tokenizer(teacher: TeacherSettings) -> Tokenizer | None:
    """Loads the BERT tokenizer of a teacher from the Hub or a folder; None for a synthetic one, whose is trained.

    UserError if it cannot be loaded or is no WordPiece of a BERT.
    """
    if teacher.source != "hub":
        return folder_tokenizer(paths.resolve(teacher.local.folder)) if teacher.source == "local" else None
    files = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
    folder = source_folder(ModelSource(hub=teacher.hub), key="teacher", files=files)
    return _bert_from(folder, f"teacher.hub.model: {teacher.hub.model}")


def folder_tokenizer(folder: str | Path, key: str = "teacher.local.folder") -> Tokenizer:
    """Loads the BERT tokenizer of a folder with tokenizer.json or vocab.txt, which `key` names; UserError if none."""
    if not Path(folder).is_dir():
        raise UserError(f"{key}: not a folder (got {str(folder)!r}); fix: correct the path, or add it")
    return _bert_from(Path(folder), f"{key}: {folder}")


def _bert_from(folder: Path, where: str) -> Tokenizer:
    """The tokenizer of a third-party folder; `where` begins the error line if it is no BERT WordPiece."""
    if (folder / "tokenizer.json").is_file():
        tokenizer = load_tokenizer(folder)
    elif (folder / "vocab.txt").is_file():
        tokens = [line for _, line in read_lines(folder / "vocab.txt", key=where)]
        vocabulary = {token: id for id, token in enumerate(tokens)}
        if doubled := [token for id, token in enumerate(tokens) if vocabulary[token] != id]:
            raise UserError(f"{where}: vocab.txt lists {doubled[0]!r:.40} twice; fix: get the file again")
        _check_is_all(folder, vocabulary, where)
        tokenizer = _bert_tokenizer(vocabulary, _normalizer(folder, tokens))
    else:
        raise UserError(f"{where} has neither tokenizer.json nor vocab.txt; fix: add one of them")
    check_wordpiece(tokenizer, where)
    return _framed(tokenizer)


def _check_is_all(folder: Path, vocabulary: Mapping[str, int], where: str) -> None:
    """Raises UserError if a folder's tokenizer has more than vocab.txt: words split before, or added tokens."""
    stated, file = tokenizer_settings(folder), "added_tokens.json"
    kind, more = str(stated.get("tokenizer_class") or BERT_TOKENIZERS[0]), stated.get("added_tokens_decoder")
    added = list(read_config(folder, file)) if (folder / file).is_file() else []
    for token in more.values() if isinstance(more, dict) else ():
        added += [str(token["content"])] if isinstance(token, dict) and "content" in token else []
    needed = [kind] if kind.removesuffix("Fast") not in BERT_TOKENIZERS else [*{*added} - vocabulary.keys()]
    if needed:
        fix = "add tokenizer.json, by save_pretrained of a fast tokenizer of transformers"
        raise UserError(f"{where}: its tokenizer needs more than vocab.txt (got {min(needed)!r:.40}); fix: {fix}")


def check_wordpiece(tokenizer: Tokenizer, where: str) -> None:
    """Raises UserError, which begins with `where`, if it is no WordPiece tokenizer of a BERT."""
    if not isinstance(tokenizer.model, WordPiece) or not isinstance(tokenizer.normalizer, normalizers.BertNormalizer):
        found = f"a {type(tokenizer.model).__name__} after a {type(tokenizer.normalizer).__name__}"
        raise UserError(f"{where}: no WordPiece tokenizer of a BERT (got {found}); fix: use the tokenizer of a BERT")
    if missing := [token for token in SPECIAL_TOKENS if tokenizer.token_to_id(token) is None]:
        raise UserError(f"{where}: the vocabulary lacks {', '.join(missing)}; fix: use the vocabulary of a BERT")


def _bert_tokenizer(vocabulary: dict[str, int], normalizer: normalizers.BertNormalizer) -> Tokenizer:
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _framed(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer itself, which now puts [CLS] and [SEP] around one text and two; a file's own rule may not."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def tokenizer_settings(folder: Path) -> dict[str, Any]:
    """The content of tokenizer_config.json, empty without the file; UserError if it is not a JSON object."""
    name = "tokenizer_config.json"
    return read_config(folder, name) if (folder / name).is_file() else {}


def _normalizer(folder: Path, tokens: list[str]) -> normalizers.BertNormalizer:
    """What tokenizer_config.json says of case, accents and Chinese characters; UserError if it is damaged.

    Without do_lower_case, texts are lower-cased if the vocabulary has no token with a capital letter: a wrong guess
    turns every capitalized word into [UNK]. Without strip_accents, they go where capitals go.
    """
    is_lower = all(token == token.lower() for token in tokens if not token.startswith("["))
    default: dict[str, Any] = {"do_lower_case": is_lower, "strip_accents": None, "tokenize_chinese_chars": True}
    stated = tokenizer_settings(folder)
    found = {key: stated.get(key, value) for key, value in default.items()}
    for key, value in found.items():
        if not isinstance(value, bool) and (value is not None or default[key] is not None):
            where = f"{folder}/tokenizer_config.json: {key}"
            raise UserError(f"{where}: neither true nor false (got {value!r:.40}); fix: correct it")
    lowercase, accents, chinese = found.values()
    return normalizers.BertNormalizer(lowercase=lowercase, strip_accents=accents, handle_chinese_chars=chinese)
