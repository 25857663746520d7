"""The likeliest words of a masked LM for masked words, for many sentences in one batch.

Each distinct query runs once, the tokens of a batch are concatenated without padding, and the last layer, the head and
the ranking process masked positions and plain words only.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from tinybert.augment.word_vectors import is_plain_word
from tinybert.config.schema import Substitution
from tinybert.distill.resume import Checkpoint
from tinybert.models.bert import Embeddings, MaskedLM, Parts, SelfAttention
from tinybert.models.outputs import check_bfloat16
from tinybert.models.packed_linear import for_inference, linear
from tinybert.pipeline.process import progress_bar

BATCH_TOKENS = 2048  # among the fastest of those tried on a CPU; changes nothing else


class Query(NamedTuple):
    """A sentence's token ids (tokens,) int64 without special tokens, and the index of the one that is hidden."""

    ids: np.ndarray
    hidden: int


class MaskedInput(NamedTuple):
    """What the masked LM reads: ids and segments (length,) int64, and the index of [MASK] among them."""

    ids: np.ndarray
    segments: np.ndarray
    masked: int


@dataclass(frozen=True)
class Packed:
    """Concatenated masked inputs, those of equal length in one tensor.

    Attributes:
        blocks: ids and segments (rows, length) int64.
        masked: (rows of all blocks,) int64, the indices of [MASK] among all tokens.
    """

    blocks: list[tuple[Tensor, Tensor]]
    masked: Tensor

    def attend(
        self, attention: SelfAttention, qkv: tuple[Tensor, Tensor, Tensor], scores: Tensor | None = None
    ) -> Tensor:
        """Attention within each row, as RealTokens.attend; no token is padded, and scores are never given."""
        rows, sizes = [len(ids) for ids, _ in self.blocks], [ids.numel() for ids, _ in self.blocks]
        read_sizes = sizes if len(qkv[0]) == len(qkv[1]) else rows
        contexts = []
        for count, *parts in zip(rows, *map(torch.split, qkv, (read_sizes, sizes, sizes)), strict=True):
            query, key, value = (part.unflatten(0, (count, -1)) for part in parts)
            # On a CPU these products take half the time of the fused kernel on rows this short, and softmax in float32
            # a third of that in bfloat16.
            weights = attention.scores(query, key).softmax(-1, dtype=torch.float32).to(value.dtype)
            context = weights @ attention.split(value)  # (rows, heads, queries, head width)
            contexts.append(context.transpose(1, 2).flatten(2).flatten(0, 1))
        return torch.cat(contexts)


@dataclass(frozen=True)
class WordPredictor:
    """A masked LM, on its device, that proposes words for hidden ones.

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
        """For each query the `settings.candidates` likeliest plain words other than the hidden one.

        With `settings.second_segment` the model also reads the sentence unmasked. With a checkpoint an interrupted run
        resumes after its last saved batch. UserError if the hardware lacks the precision.
        """
        if self.precision == "bfloat16":
            check_bfloat16()
        # Sentences that differ in spaces or capitals only are the same to an uncased masked LM.
        keys = [(query.ids.tobytes(), query.hidden) for query in queries]
        distinct = dict(zip(keys, queries, strict=True))
        words = dict(zip(distinct, self._rank(list(distinct.values()), settings, checkpoint), strict=True))
        return [words[key] for key in keys]

    @torch.no_grad()
    def _rank(self, queries: list[Query], settings: Substitution, checkpoint: Checkpoint | None) -> list[list[str]]:
        masked_lm, device = self.masked_lm.eval(), next(self.masked_lm.parameters()).device
        tokens = [self.tokenizer.id_to_token(index) or "" for index in range(masked_lm.config.vocab_size)]
        is_word = torch.tensor([is_plain_word(token) for token in tokens], device=device)
        embeddings, head = masked_lm.bert.embeddings, masked_lm.cls.predictions
        bias = head.bias.masked_fill(~is_word, -torch.inf)
        encoder = for_inference(masked_lm.bert.encoder, getattr(torch, self.precision))
        hidden_ids = torch.tensor([query.ids[query.hidden] for query in queries], dtype=torch.int64)
        inputs = [self._masked_input(query, settings.second_segment) for query in queries]
        batches = list(batches_by_length([len(each.ids) for each in inputs], self.batch_tokens))
        count = max(0, min(settings.candidates, int(is_word.sum()) - 1))
        best, first = np.zeros((len(queries), count), dtype=np.int32), 0
        if saved := checkpoint.load() if checkpoint else None:
            best, first = saved["answers"].numpy(), saved["step"]
        done = sum(map(len, batches[:first]))
        with progress_bar(total=len(queries), initial=done, desc="masked words", unit=" words") as progress:
            for number, indices in enumerate(batches[first:], start=first):
                if checkpoint and checkpoint.is_due:
                    checkpoint.save({"step": number, "answers": torch.from_numpy(best)})
                states = masked_states(embeddings, encoder, pack([inputs[index] for index in indices], device))
                logits = linear(head.transformed(states.float()), embeddings.word_embeddings.weight, bias)
                best[indices] = best_words(logits, hidden_ids[indices].to(device), count).cpu().numpy()
                progress.update(len(indices))
        return [[tokens[index] for index in row] for row in best]

    def _masked_input(self, query: Query, second_segment: bool) -> MaskedInput:
        """[CLS] masked sentence [SEP], with `second_segment` followed by the unmasked sentence [SEP]."""
        cls, sep, mask = (self.tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]", "[MASK]"))
        first = np.array([cls, *query.ids, sep])
        masked = 1 + query.hidden  # after [CLS]
        first[masked] = mask
        # The second segment ends where the model's positions do.
        room = self.masked_lm.config.max_position_embeddings - len(first) - 1
        second = np.array([*query.ids[:room], sep]) if second_segment and room > 0 else first[:0]
        return MaskedInput(np.concatenate([first, second]), np.repeat([0, 1], [len(first), len(second)]), masked)


def batches_by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[np.ndarray]:
    """Indices of all rows, shortest first, in batches of at most `batch_tokens` tokens, or of one row."""
    order = np.argsort(lengths, kind="stable")
    ends = np.cumsum([lengths[index] for index in order])
    start = taken = 0
    while start < len(order):
        stop = max(start + 1, int(np.searchsorted(ends, taken + batch_tokens, side="right")))
        yield order[start:stop]
        start, taken = stop, ends[stop - 1]


def pack(inputs: Sequence[MaskedInput], device: torch.device) -> Packed:
    """Inputs in the order of their lengths, without padding."""
    starts = np.cumsum([0, *(len(each.ids) for each in inputs[:-1])])
    masked = torch.from_numpy(starts + [each.masked for each in inputs])
    blocks = []
    for _, group in groupby(inputs, key=lambda each: len(each.ids)):
        ids, segments, _ = map(np.stack, zip(*group, strict=True))
        blocks.append((torch.from_numpy(ids).to(device), torch.from_numpy(segments).to(device)))
    return Packed(blocks, masked.to(device))


def masked_states(embeddings: Embeddings, encoder: Parts, packed: Packed) -> Tensor:
    """The last hidden states of the masked tokens only: (rows, width), in the encoder's precision."""
    positions = torch.arange(max(ids.shape[1] for ids, _ in packed.blocks), device=packed.masked.device)
    blocks = (embeddings(ids, segments, positions[: ids.shape[1]]) for ids, segments in packed.blocks)
    *lower, last = encoder.layer
    hidden = torch.cat([block.flatten(0, 1) for block in blocks]).to(last.output.LayerNorm.weight.dtype)
    for layer in lower:
        hidden = layer(hidden, packed)["hidden"]
    return last(hidden, packed, rows=packed.masked)["hidden"]


def best_words(logits: Tensor, excluded: Tensor, count: int) -> Tensor:
    """The `count` words of highest logits in each row, in the order of their ids: (rows, count) int64.

    Ordered by likelihood, a draw among them would depend on the last bits of two close logits, which change with the
    batch. logits: (rows, vocabulary); the `excluded` word of each row, (rows,) int64, becomes -inf in place.
    """
    logits.scatter_(1, excluded[:, None], -torch.inf)
    return logits.topk(count, dim=1).indices.sort(dim=1).values
