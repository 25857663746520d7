"""Which words of a sentence may be replaced, and where they stand in its text and in its word pieces."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from tokenizers import Encoding, Tokenizer

# Words that carry grammar rather than content: another word in their place breaks the sentence or turns its meaning.
STOP_WORDS = frozenset(
    """
    a an the this that these those some any no none every each either neither both all such another other others same
    own few fewer less least many more most much several enough half one ones
    i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers
    herself it its itself they them their theirs themselves oneself somebody someone something anybody anyone anything
    nobody nothing everybody everyone everything
    who whom whose which what whoever whatever whichever when whenever where wherever why how however
    am is are was were be been being have has had having do does did doing done will would shall should can cannot
    could may might must ought
    ain aren couldn didn doesn don hadn hasn haven isn mightn mustn needn shan shouldn wasn weren won wouldn
    ve re ll
    about above across after against along alongside amid among around as at before behind below beneath beside
    besides between beyond by despite down during except for from in inside into near of off on onto out outside over
    past per since through throughout till to toward towards under underneath until unto up upon via with within
    without
    and or but nor so yet if unless because although though while whereas whether than lest once
    not never ever there here then thus hence also too very just only even still quite rather almost already again now
    """.split()  # noqa: SIM905 (a list literal would fill two pages)
)


@dataclass(frozen=True)
class Word:
    """A replaceable word: its spelling after the tokenizer's normalisation, its characters in the sentence
    (text[start:end]), its first word piece (index into the sentence's ids) and the number of its pieces.
    """

    spelling: str
    start: int
    end: int
    first_piece: int
    pieces: int


@dataclass(frozen=True)
class Sentence:
    """A text, its word-piece ids (pieces,) int64 without special tokens, and its replaceable words in order."""

    text: str
    ids: np.ndarray
    words: list[Word]


def is_plain_word(word: str) -> bool:
    """Whether it consists of at least two letters a-z, small or capital.

    Single letters are initials, list marks and the ends of contractions ("don't"), so they count as no words.
    """
    return len(word) > 1 and word.isascii() and word.isalpha()


def is_replaceable(word: str) -> bool:
    """Whether it is a plain word and no stop word."""
    return is_plain_word(word) and word.lower() not in STOP_WORDS


def in_case_of(word: str, replacement: str) -> str:
    """The replacement with a capital where `word` begins with one."""
    return replacement.capitalize() if word[0].isupper() else replacement


def read_sentences(texts: Iterable[str], tokenizer: Tokenizer, *, max_pieces: int) -> list[Sentence]:
    """The sentences of `texts`, in order, each cut to its first `max_pieces` word pieces.

    What is cut off keeps its place in `Sentence.text`, but none of its words are replaceable.
    """
    tokenizer.no_padding()
    tokenizer.no_truncation()
    texts = list(texts)
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    return [
        Sentence(text, np.asarray(encoding.ids[:max_pieces], dtype=np.int64), _replaceable_words(encoding, max_pieces))
        for text, encoding in zip(texts, encodings, strict=True)
    ]


def _replaceable_words(encoding: Encoding, max_pieces: int) -> list[Word]:
    tokens, offsets, word_ids = encoding.tokens, encoding.offsets, encoding.word_ids
    words = []
    for _, group in groupby(range(len(tokens)), key=word_ids.__getitem__):
        first, *rest = group
        last = rest[-1] if rest else first
        spelling = tokens[first] + "".join(tokens[index].removeprefix("##") for index in rest)
        if last < max_pieces and is_replaceable(spelling):
            words.append(Word(spelling, offsets[first][0], offsets[last][1], first, last - first + 1))
    return words
