"""A masked LM's likeliest words in the place of hidden ones, for many sentences at once.

Nothing is computed twice, for padding, or for positions that nobody reads: each distinct query is asked once, the
tokens of a batch lie one behind the other and attend within their own query, and the last layer, the head and the
ranking see masked positions and whole words alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from tinybert.augment.words import Sentence, Word, is_plain_word
from tinybert.distill.precision import check_missing_bfloat16
from tinybert.distill.resume import Checkpoint
from tinybert.models.bert import Embeddings, Encoder, MaskedLM, SelfAttention
from tinybert.models.packed_linear import for_inference, linear
from tinybert.pipeline.process import progress_bar

Query = tuple[Sentence, Word]  # a sentence and the word that is hidden in it


@dataclass(frozen=True)
class Question:
    """What the masked LM reads: ids and segments (length,) int64, and the place of [MASK] among them."""

    ids: np.ndarray
    segments: np.ndarray
    masked: int


@dataclass(frozen=True)
class Packed:
    """Questions one behind the other, those of equal length in blocks.

    blocks: ids and segments (questions, length) int64. masked: (questions of all blocks,) int64, the places of
    [MASK] among all tokens.
    """

    blocks: list[tuple[Tensor, Tensor]]
    masked: Tensor

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(questions, length) of each block."""
        return [(ids.shape[0], ids.shape[1]) for ids, _ in self.blocks]

    def attend(self, attention: nn.Module, qkv: tuple[Tensor, Tensor, Tensor], scores: Tensor | None = None) -> Tensor:
        """Attention within each question, as RealTokens.attend; no token is padded, and scores are never given."""
        sizes = [rows * length for rows, length in self.shapes]
        read_sizes = sizes if len(qkv[0]) == len(qkv[1]) else [rows for rows, _ in self.shapes]
        parts = zip(self.shapes, *map(torch.split, qkv, (read_sizes, sizes, sizes)), strict=True)
        contexts = (attention(*(part.unflatten(0, (rows, -1)) for part in block), None) for (rows, _), *block in parts)
        return torch.cat([context.flatten(0, 1) for context in contexts])


class ShortRowAttention(SelfAttention):
    """Self-attention for inference on short rows without padding.

    On a CPU the plain products take half the time of the fused kernel there, and softmax in float32 a third of that in
    bfloat16 (16 tokens and more).
    """

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scores: Tensor | None = None
    ) -> Tensor:
        """As SelfAttention's; mask and scores are never given."""
        scores = self.scores(query, key)
        weights = scores.softmax(-1, dtype=torch.float32).to(scores.dtype)
        return (weights @ self.split(value)).transpose(1, 2).flatten(2)


def likely_words(
    queries: Sequence[Query],
    *,
    settings,
    masked_lm: MaskedLM,
    tokenizer: Tokenizer,
    checkpoint: Checkpoint | None = None,
) -> Iterator[list[str]]:
    """For each query the `settings.top_k` likeliest whole words, in the order of the queries.

    settings.keep_word: whether the hidden word may be among them. settings.precision: float32, or bfloat16 for the
    layers' arithmetic; the ranking is always float32. settings.batch_tokens: of one forward pass. With a `checkpoint`
    an interrupted run goes on where it was. UserError where the hardware lacks bfloat16.
    """
    asked: dict[tuple[bytes, int], Query] = {}
    for query in queries:
        asked.setdefault(_key(query), query)
    found = _answers(
        list(asked.values()), settings=settings, masked_lm=masked_lm.eval(), tokenizer=tokenizer, checkpoint=checkpoint
    )
    answers = dict(zip(asked, found, strict=True))
    return (answers[_key(query)] for query in queries)


def _key(query: Query) -> tuple[bytes, int]:
    """Sentences that differ in spaces or capitals only are one to the masked LM."""
    sentence, word = query
    return sentence.ids.tobytes(), word.first_piece


@torch.no_grad()
def _answers(
    queries: list[Query], *, settings, masked_lm: MaskedLM, tokenizer: Tokenizer, checkpoint: Checkpoint | None
) -> list[list[str]]:
    device = next(masked_lm.parameters()).device
    pieces = [tokenizer.id_to_token(index) or "" for index in range(masked_lm.config.vocab_size)]
    is_word = torch.tensor([is_plain_word(piece) for piece in pieces], device=device)
    own = torch.tensor([sentence.ids[word.first_piece] for sentence, word in queries], dtype=torch.int64)
    count = max(0, min(settings.top_k, int(is_word.sum()) - (not settings.keep_word)))
    questions = [_question(query, tokenizer, settings.second_segment, masked_lm.config) for query in queries]
    encoder = in_precision(masked_lm.bert.encoder, settings.precision)
    score = _word_scorer(masked_lm, is_word)
    batches = list(batches_by_length([len(question.ids) for question in questions], settings.batch_tokens))
    answers, first = _resume(checkpoint, np.zeros((len(queries), count), dtype=np.int32))
    done = sum(map(len, batches[:first]))
    with progress_bar(total=len(queries), initial=done, desc="masked words", unit=" words") as progress:
        for number, indices in enumerate(batches[first:], start=first):
            if checkpoint and checkpoint.is_due:
                checkpoint.save({"answers": torch.from_numpy(answers)}, {"step": number})
            packed = pack([questions[index] for index in indices], device)
            hidden = masked_states(masked_lm.bert.embeddings, encoder, packed)
            hidden_words = None if settings.keep_word else own[indices].to(device)
            answers[indices] = best_words(score(hidden.float()), hidden_words, count).cpu().numpy()
            progress.update(len(indices))
    return [[pieces[index] for index in answer] for answer in answers]


def _resume(checkpoint: Checkpoint | None, answers: np.ndarray) -> tuple[np.ndarray, int]:
    """The answers that an interrupted run had found, and the number of the first batch that it had not asked."""
    saved = checkpoint.load() if checkpoint else None
    if saved is None:
        return answers, 0
    tensors, facts = saved
    return tensors["answers"].numpy(), facts["step"]


def in_precision(encoder: Encoder, precision: str) -> Encoder:
    """A copy for inference in "float32" or "bfloat16"; UserError where the hardware lacks it."""
    if precision == "bfloat16":
        check_missing_bfloat16()
    encoder = for_inference(encoder, getattr(torch, precision))
    for layer in encoder.layers:
        layer.attention.self.__class__ = ShortRowAttention
    return encoder


def batches_by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[np.ndarray]:
    """Indices of all rows, shortest first, in batches of at most `batch_tokens` tokens, one row at least."""
    batch: list[np.intp] = []
    tokens = 0
    for index in np.argsort(lengths, kind="stable"):
        if batch and tokens + lengths[index] > batch_tokens:
            yield np.array(batch)
            batch, tokens = [], 0
        batch.append(index)
        tokens += lengths[index]
    if batch:
        yield np.array(batch)


def pack(questions: Sequence[Question], device: torch.device) -> Packed:
    """Questions in the order of their lengths, without padding."""
    starts = np.cumsum([0, *(len(question.ids) for question in questions[:-1])])
    masked = torch.from_numpy(starts + [question.masked for question in questions])
    blocks = []
    for _, group in groupby(questions, key=lambda question: len(question.ids)):
        alike = list(group)
        parts = ([question.ids for question in alike], [question.segments for question in alike])
        ids, segments = (torch.from_numpy(np.stack(part)).to(device) for part in parts)
        blocks.append((ids, segments))
    return Packed(blocks, masked.to(device))


def masked_states(embeddings: Embeddings, encoder: Encoder, packed: Packed) -> Tensor:
    """The last hidden states of the masked tokens alone: (questions, width), in the encoder's precision."""
    positions = torch.arange(max(length for _, length in packed.shapes), device=packed.masked.device)
    blocks = (embeddings(ids, segments, positions[: ids.shape[1]]) for ids, segments in packed.blocks)
    *lower, last = encoder.layers
    hidden = torch.cat([block.flatten(0, 1) for block in blocks]).to(last.output.LayerNorm.weight.dtype)
    for layer in lower:
        hidden = layer(hidden, packed).hidden
    return last(hidden, packed, rows=packed.masked).hidden


def _word_scorer(masked_lm: MaskedLM, is_word: Tensor) -> Callable[[Tensor], Tensor]:
    """A function from hidden states (questions, width) to logits (questions, vocabulary), -inf of other than words."""
    head, embeddings = masked_lm.cls.predictions, masked_lm.bert.embeddings.word_embeddings.weight
    bias = head.bias.masked_fill(~is_word, -torch.inf)
    return lambda hidden: linear(head.transform(hidden), embeddings, bias)


def best_words(logits: Tensor, excluded: Tensor | None, count: int) -> Tensor:
    """logits (questions, vocabulary), excluded (questions,) a word of each row -> (questions, count) words.

    The logits of those excluded become -inf in place.
    Sorted by number, not by likelihood: a draw among them then does not depend on the last bits of two close logits,
    which change with the batch.
    """
    if excluded is not None:
        logits.scatter_(1, excluded[:, None], -torch.inf)
    return logits.topk(count, dim=1).indices.sort(dim=1).values


def _question(query: Query, tokenizer: Tokenizer, second_segment: bool, config) -> Question:
    """[CLS] masked sentence [SEP], with `second_segment` followed by the unmasked sentence [SEP].

    The second segment ends where the model's positions do.
    """
    sentence, word = query
    cls, sep, mask = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]", "[MASK]"))
    first = np.array([cls, *sentence.ids, sep])
    masked = 1 + word.first_piece  # behind [CLS]
    first[masked] = mask
    room = config.max_position_embeddings - len(first) - 1
    second = np.array([*sentence.ids[:room], sep]) if second_segment and room > 0 else first[:0]
    return Question(np.concatenate([first, second]), np.repeat([0, 1], [len(first), len(second)]), masked)
