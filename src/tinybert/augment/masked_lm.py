"""The likeliest words of a masked LM for masked words, for many sentences in one batch.

Each distinct query runs once, and the last layer, the head and the ranking process masked positions and plain words
only.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from tinybert.augment.word_vectors import is_plain_word
from tinybert.config.schema import Substitution
from tinybert.distill.resume import Checkpoint
from tinybert.models.bert import Embeddings, MaskedLM, Parts
from tinybert.models.outputs import Batch, check_bfloat16, pad
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
                states = masked_states(embeddings, encoder, [inputs[index] for index in indices])
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


def masked_states(embeddings: Embeddings, encoder: Parts, inputs: Sequence[MaskedInput]) -> Tensor:
    """The last hidden states of the masked tokens only: (rows, width), in the encoder's precision."""
    device = embeddings.word_embeddings.weight.device
    ids, mask = pad([each.ids for each in inputs])
    segments, _ = pad([each.segments for each in inputs])
    batch = Batch(ids, mask, segments).to(device)
    *lower, last = encoder.layer
    hidden = embeddings.of(batch).to(last.output.LayerNorm.weight.dtype)
    for layer in lower:
        hidden = layer(hidden, batch.real)["hidden"]
    lengths = batch.mask.sum(dim=1)
    masked = lengths.cumsum(0) - lengths + torch.tensor([each.masked for each in inputs], device=device)
    return last(hidden, batch.real, rows=masked)["hidden"]


def best_words(logits: Tensor, excluded: Tensor, count: int) -> Tensor:
    """The `count` words of highest logits in each row, in the order of their ids: (rows, count) int64.

    Ordered by likelihood, a draw among them would depend on the last bits of two close logits, which change with the
    batch. logits: (rows, vocabulary); the `excluded` word of each row, (rows,) int64, becomes -inf in place.
    """
    logits.scatter_(1, excluded[:, None], -torch.inf)
    return logits.topk(count, dim=1).indices.sort(dim=1).values
