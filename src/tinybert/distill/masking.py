"""BERT's corruption of text for the masked-LM losses."""

from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from tinybert.data.tokenizer import SPECIAL_TOKENS
from tinybert.models.outputs import Batch, pad
from tinybert.pipeline.errors import UserError


@dataclass(frozen=True)
class Masker:
    """Hides a share `rate` of the tokens: of those `mask_fraction` become [MASK], `random_fraction` a random
    piece, the rest stays (Devlin et al. 2019, sec. 3.1). Special tokens and padding are never chosen.
    """

    rate: float
    mask_fraction: float
    random_fraction: float
    special_ids: tuple[int, ...]
    mask_id: int
    vocabulary_size: int

    @classmethod
    def of(cls, masking, tokenizer: Tokenizer) -> "Masker":
        """From the masking section of params and the tokenizer's special tokens."""
        special = {token: id for token in SPECIAL_TOKENS if (id := tokenizer.token_to_id(token)) is not None}
        return cls(
            masking.rate,
            masking.mask_fraction,
            masking.random_fraction,
            tuple(special.values()),
            special["[MASK]"],
            tokenizer.get_vocab_size(),
        )

    def __call__(self, input_ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Changes input_ids (batch, length) in place; returns flat positions and their original ids.

        Both are (predicted tokens,) int64; at least one token is predicted, so that a mean exists.
        """
        tokens = input_ids.reshape(-1)  # a view
        ordinary = np.flatnonzero(~np.isin(tokens, self.special_ids))
        chosen = ordinary[rng.random(len(ordinary)) < self.rate]
        if not len(ordinary):
            raise UserError("masking: a batch has no word piece but special ones; the text does not fit the tokenizer")
        if not len(chosen):
            chosen = rng.choice(ordinary, size=1)
        labels = tokens[chosen].copy()
        fate = rng.random(len(chosen))
        masked = fate < self.mask_fraction
        replaced = (fate >= self.mask_fraction) & (fate < self.mask_fraction + self.random_fraction)
        tokens[chosen[masked]] = self.mask_id
        tokens[chosen[replaced]] = rng.integers(self.vocabulary_size, size=replaced.sum())
        return chosen, labels


def text_batch(blocks: list[np.ndarray], masker: Masker | None, rng: np.random.Generator) -> Batch:
    """Padded blocks with positions and labels of what `masker` hides; without one plain text, without labels."""
    input_ids, mask = pad(blocks)
    positions = labels = None
    if masker:
        positions, labels = map(torch.from_numpy, masker(input_ids.numpy(), rng))  # changes input_ids in place
    return Batch(input_ids, mask, torch.zeros_like(input_ids), labels, positions)
