"""BERT's corruption of text for the masked-LM losses."""

from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from tinybert.config.schema import Masking
from tinybert.data.tokenizer import SPECIAL_TOKENS
from tinybert.models.outputs import Batch, pad
from tinybert.pipeline.errors import UserError


@dataclass(frozen=True)
class Masker:
    """Chooses tokens to predict and corrupts them (Devlin et al. 2019, sec. 3.1).

    Attributes:
        rate: Fraction of the tokens that are chosen; never `special_ids`.
        mask_fraction: Of the chosen, the fraction that becomes [MASK].
        random_fraction: Of the chosen, the fraction that becomes any token of the vocabulary; the rest stays.
    """

    rate: float
    mask_fraction: float
    random_fraction: float
    special_ids: tuple[int, ...]
    mask_id: int
    vocabulary_size: int

    @classmethod
    def of(cls, masking: Masking, tokenizer: Tokenizer) -> "Masker":
        """A masker with the tokenizer's special tokens."""
        special = {token: id for token in SPECIAL_TOKENS if (id := tokenizer.token_to_id(token)) is not None}
        fractions = (masking.rate, masking.mask_fraction, masking.random_fraction)
        return cls(*fractions, tuple(special.values()), special["[MASK]"], tokenizer.get_vocab_size())

    def __call__(self, input_ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Corrupts token ids in place.

        Args:
            input_ids: (batch, length) int64.
            rng: Decides what is chosen and what it becomes.

        Returns:
            Flat positions and original ids, both (predicted tokens,) int64; at least one, so that a mean exists.
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


def text_batch(sequences: list[np.ndarray], masker: Masker | None, rng: np.random.Generator) -> Batch:
    """Pads sequences; with a masker they are corrupted and labeled, otherwise they stay plain text."""
    input_ids, mask = pad(sequences)
    positions = labels = None
    if masker:
        positions, labels = map(torch.from_numpy, masker(input_ids.numpy(), rng))  # changes input_ids in place
    return Batch(input_ids, mask, torch.zeros_like(input_ids), labels, positions)
