"""Augmentation by substituting words (TinyBERT, Jiao et al. 2020, algorithm 1).

For words of one token a masked LM proposes likely replacements; for longer words, word vectors propose near ones. Each
distinct query of the masked LM runs once; its last layer, head and ranking see masked positions and plain words only.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from tinybert.augment.word_vectors import LEXICON, WordVectors, is_plain_word, match_case
from tinybert.config.schema import Substitution
from tinybert.config.tasks import Task
from tinybert.data.encoding import CHUNK_ROWS, Encoded
from tinybert.distill.resume import Checkpoint
from tinybert.models.bert import Embeddings, MaskedLM, Parts
from tinybert.models.outputs import Batch, best_device, check_bfloat16
from tinybert.models.packed_linear import for_inference, linear
from tinybert.pipeline import paths
from tinybert.pipeline.engine import ordered_map
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_lines
from tinybert.pipeline.process import progress_bar, stream

ENGLISH_STOP_WORDS = frozenset(LEXICON["stop_words"].split())
BATCH_TOKENS = 2048  # of the masked LM; among the fastest of those tried on a CPU; changes nothing else


class Query(NamedTuple):
    """A sentence's token ids (tokens,) int64 without special tokens, and the index of the one to mask."""

    ids: np.ndarray
    masked: int


@dataclass(frozen=True)
class WordPredictor:
    """A masked LM that proposes words for masked ones. Each process moves it to its own device.

    Attributes:
        precision: of the layers' arithmetic, "float32" or "bfloat16"; the ranking is always float32.
        batch_tokens: tokens of a forward pass at most, or one query.
    """

    masked_lm: MaskedLM
    tokenizer: Tokenizer
    precision: str = "float32"
    batch_tokens: int = BATCH_TOKENS

    def likely_words(
        self, queries: Sequence[Query], settings: Substitution, checkpoint: Checkpoint | None = None
    ) -> list[list[str]]:
        """For each query the `settings.candidates` likeliest plain words other than the masked one.

        A checkpoint lets a run resume after its last saved batch. UserError if the hardware lacks the precision.
        """
        if self.precision == "bfloat16":
            check_bfloat16()
        # Sentences that differ in spaces or capitals only are the same to an uncased masked LM.
        keys = [(query.ids.tobytes(), query.masked) for query in queries]
        distinct = dict(zip(keys, queries, strict=True))
        words = dict(zip(distinct, self._rank(list(distinct.values()), settings, checkpoint), strict=True))
        return [words[key] for key in keys]

    def _rank(self, queries: list[Query], settings: Substitution, checkpoint: Checkpoint | None) -> list[list[str]]:
        tokens = [self.tokenizer.id_to_token(index) or "" for index in range(self.masked_lm.config.vocab_size)]
        # The lengths of the rows of `_masked_batch`: all rows at once would take much memory.
        masked = np.array([len(query.ids) for query in queries], dtype=np.int64) + 2
        room = self.masked_lm.config.max_position_embeddings - masked - 1
        second = np.where(room > 0, np.minimum(masked - 2, room) + 1, 0)
        batches = list(batches_by_length(masked + second, self.batch_tokens))
        count = max(0, min(settings.candidates, sum(map(is_plain_word, tokens)) - 1))
        best, first = np.zeros((len(queries), count), dtype=np.int32), 0
        if saved := checkpoint.load() if checkpoint else None:
            best, first = saved["candidates"].numpy(), saved["step"]
        done, left = sum(map(len, batches[:first])), batches[first:]
        ranked = ordered_map(partial(self._best, count=count), ([queries[index] for index in part] for part in left))
        with progress_bar(total=len(queries), initial=done, desc="masked words", unit=" words") as progress:
            for number, (indices, found) in enumerate(zip(left, ranked, strict=True), start=first + 1):
                best[indices] = found
                if checkpoint and checkpoint.is_due:
                    checkpoint.save({"step": number, "candidates": torch.from_numpy(best)})
                progress.update(len(indices))
        return [[tokens[index] for index in row] for row in best]

    @torch.no_grad()
    def _best(self, queries: list[Query], count: int) -> np.ndarray:
        """The ids of the best words for each query of a batch: (queries, count)."""
        (encoder, bias), embeddings = self._prepared, self.masked_lm.bert.embeddings
        masked_ids = torch.tensor([query.ids[query.masked] for query in queries], device=bias.device)
        places = torch.tensor([1 + query.masked for query in queries], device=bias.device)  # after [CLS]
        states = masked_states(embeddings, encoder, self._masked_batch(queries).to(bias.device), places)
        hidden = self.masked_lm.cls.predictions.transformed(states.float())
        logits = linear(hidden, embeddings.word_embeddings.weight, bias)
        return best_words(logits, masked_ids, count).cpu().numpy()

    @cached_property
    def _prepared(self) -> tuple[Parts, Tensor]:
        """The encoder in its precision, and the bias of the logits, -inf for tokens that are not plain words."""
        masked_lm = self.masked_lm.eval().to(best_device())
        bias = masked_lm.cls.predictions.bias.detach()
        words = [is_plain_word(self.tokenizer.id_to_token(index) or "") for index in range(len(bias))]
        encoder = for_inference(masked_lm.bert.encoder, getattr(torch, self.precision))
        return encoder, bias.masked_fill(~torch.tensor(words, device=bias.device), -torch.inf)

    def _masked_batch(self, queries: list[Query]) -> Batch:
        """[CLS] masked sentence [SEP] unmasked sentence [SEP] (Jiao et al.'s code), cut where the positions end."""
        cls, sep, mask = (self.tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]", "[MASK]"))
        ids, segments = [], []
        for query in queries:
            first = np.array([cls, *query.ids, sep])
            first[1 + query.masked] = mask
            room = self.masked_lm.config.max_position_embeddings - len(first) - 1
            second = np.array([*query.ids[:room], sep]) if room > 0 else first[:0]
            ids.append(np.concatenate([first, second]))
            segments.append(np.repeat([0, 1], [len(first), len(second)]))
        return Encoded(ids, segments, labels=None).batch(range(len(queries)))


def batches_by_length(lengths: np.ndarray, batch_tokens: int) -> Iterator[np.ndarray]:
    """Indices of all rows, shortest first, in batches of at most `batch_tokens` tokens, or of one row."""
    order = np.argsort(lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    start = taken = 0
    while start < len(order):
        stop = max(start + 1, int(np.searchsorted(ends, taken + batch_tokens, side="right")))
        yield order[start:stop]
        start, taken = stop, ends[stop - 1]


def masked_states(embeddings: Embeddings, encoder: Parts, batch: Batch, masked: Tensor) -> Tensor:
    """The last hidden states of the tokens `masked` (rows,) only: (rows, width), in the encoder's precision."""
    *lower, last = encoder.layer
    hidden = embeddings.of(batch, batch.real).to(last.output.LayerNorm.weight.dtype)
    for layer in lower:
        hidden = layer(hidden, batch.real)["hidden"]
    places = torch.arange(len(masked), device=masked.device) * batch.mask.shape[1] + masked
    return last(hidden, batch.real, only=batch.real.tokens_at(places))["hidden"]


def best_words(logits: Tensor, excluded: Tensor, count: int) -> Tensor:
    """The `count` words of highest logits in each row, in the order of their ids: (rows, count) int64.

    Ordered by likelihood, a draw among them would depend on the last bits of two close logits, which change with the
    batch. logits: (rows, vocabulary); the `excluded` word of each row, (rows,) int64, becomes -inf in place.
    """
    logits.scatter_(1, excluded[:, None], -torch.inf)
    return logits.topk(count, dim=1).indices.sort(dim=1).values


class Word(NamedTuple):
    """A replaceable word: its spelling after normalization, its characters, its first token and their number."""

    spelling: str
    written: str  # as in the text, in lower case: tokenizers may strip accents, stop words and vectors have them
    start: int
    end: int
    first_token: int
    tokens: int


class Sentence(NamedTuple):
    """A text, its token ids (tokens,) int64 without special tokens, and its replaceable words in order."""

    text: str
    ids: np.ndarray
    words: list[Word]


Candidates = Mapping[str, tuple[Sentence, list[list[str]]]]  # text -> its sentence, and candidates for each word


def replacement_candidates(
    sentences: Sequence[Sentence],
    settings: Substitution,
    predictor: WordPredictor,
    vectors: WordVectors,
    checkpoint: Checkpoint | None = None,
) -> Candidates:
    """Finds the words that may replace each word: likely ones for a word of one token, near ones for a longer word.

    A word is not its own candidate. (The paper's code keeps it, so a "replaced" word is often unchanged.) A word has
    `settings.candidates` at most, a longer one without a vector none. The sentences are distinct.
    """
    single = [Query(each.ids, word.first_token) for each in sentences for word in each.words if word.tokens == 1]
    several = {word.written for sentence in sentences for word in sentence.words if word.tokens > 1}
    likely = iter(predictor.likely_words(single, settings, checkpoint))
    near = vectors.nearest(sorted(several), settings.candidates)

    def of_word(word: Word) -> list[str]:
        if word.tokens == 1:
            return next(likely)
        # Vectors have lower-case words only; a tokenizer that keeps capitals needs them back.
        return [match_case(word.spelling, candidate) for candidate in near[word.written]]

    return {sentence.text: (sentence, [of_word(word) for word in sentence.words]) for sentence in sentences}


def substitute(
    rows: Sequence[dict], task: Task, candidates: Candidates, *, probability: float, copies: int, seed: int
) -> list[dict]:
    """Augments the rows of a task, which have its columns and "idx".

    In each of the `copies` of a sentence (N_a), each word is replaced by a random candidate with `probability` (p_t).
    In a pair, first one sentence is varied, then the other, while its partner stays the original. A row's variations
    depend only on its text, its idx and the seed, not on batch size or other rows (except that bfloat16 may swap
    candidates that are almost equally likely).

    Returns:
        Each row as it is, followed by its distinct variations, which have its keys and "augmented": True.
    """
    augmented = []
    for row in rows:
        rng = stream(seed, "augmentation", row["idx"])
        augmented.append(row)
        for column in task.columns:
            texts = variations(*candidates[row[column]], probability, copies, rng)
            augmented += [row | {column: text, "augmented": True} for text in texts]
    return augmented


def variations(
    sentence: Sentence, candidates: Sequence[Sequence[str]], probability: float, copies: int, rng: np.random.Generator
) -> list[str]:
    """The distinct texts among `copies` draws, in the order drawn, without the original.

    Only the characters of the replaced words change: spacing, punctuation and all other words stay as they are.
    """
    slots = [(word, choices) for word, choices in zip(sentence.words, candidates, strict=True) if choices]
    if not slots:
        return []
    replaced = rng.random((copies, len(slots))) < probability
    drawn = rng.integers([len(choices) for _, choices in slots], size=replaced.shape)
    texts: dict[str, None] = {}  # a dict keeps the order of the draws
    for is_replaced, numbers in zip(replaced, drawn, strict=True):
        text = sentence.text
        for slot in np.flatnonzero(is_replaced)[::-1]:  # from the end, so that the characters before keep their places
            word, choices = slots[slot]
            text = text[: word.start] + choices[numbers[slot]] + text[word.end :]
        texts[text] = None
    texts.pop(sentence.text, None)
    return list(texts)


def stop_words(source: str) -> frozenset[str]:
    """The words that are not replaced: "english", none for "off", or the lines of a file; UserError if it has none."""
    if source in ("english", "off"):
        return ENGLISH_STOP_WORDS if source == "english" else frozenset()
    key = "augmentation.substitution.stop_words"
    path = paths.resolve(source)
    if not (words := frozenset(word for _, line in read_lines(path, key=key) for word in line.lower().split())):
        allowed = "english, off, or a file of words"
        raise UserError(f"{key}: no words (got {path}); allowed: {allowed}; fix: correct the path")
    return words


def read_sentences(
    texts: Iterable[str], tokenizer: Tokenizer, *, max_tokens: int, unchanged: Container[str] = ENGLISH_STOP_WORDS
) -> list[Sentence]:
    """Tokenizes texts; words of `unchanged` and words after the first `max_tokens` tokens are not replaced."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    texts, sentences = list(texts), []
    for start in range(0, len(texts), CHUNK_ROWS):  # encodings take much memory
        chunk = texts[start : start + CHUNK_ROWS]
        for text, encoding in zip(chunk, tokenizer.encode_batch(chunk, add_special_tokens=False), strict=True):
            words = [word for word in _replaceable_words(text, encoding, max_tokens) if word.written not in unchanged]
            sentences.append(Sentence(text, np.asarray(encoding.ids[:max_tokens], dtype=np.int64), words))
    return sentences


def _replaceable_words(text: str, encoding: Encoding, max_tokens: int) -> list[Word]:
    tokens, offsets, word_ids = encoding.tokens, encoding.offsets, encoding.word_ids
    words = []
    for _, group in groupby(range(len(tokens)), key=word_ids.__getitem__):
        first, *rest = group
        last = rest[-1] if rest else first
        spelling = tokens[first] + "".join(tokens[index].removeprefix("##") for index in rest)
        if last < max_tokens and is_plain_word(spelling):
            start, end = offsets[first][0], offsets[last][1]
            words.append(Word(spelling, text[start:end].lower(), start, end, first, last - first + 1))
    return words
