"""Augmentation as the authors of TinyBERT publish it (Jiao et al. 2020, algorithm 1), to be measured against.

Plain PyTorch in fp32, a word at a time: one BERT call of batch 1 a word, the unmasked sentence as second segment,
vocabulary logits at every position, all of them sorted; or one search through all word vectors. What counts as a word
and as a candidate is ours, so that a test can compare the two.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from benchmarks import reference


class SentenceWord(NamedTuple):
    """A replaceable word: its place among the sentence's pieces and how many it has, its spelling."""

    first_piece: int
    pieces: int
    spelling: str


@dataclass
class Augmenter:
    """The models and settings of algorithm 1.

    pieces: the vocabulary, by id. vectors: (words, dimensions) of unit length, of `words`. is_candidate: whether a
    piece may stand in a word's place.
    """

    masked_lm: reference.MaskedLM
    pieces: Sequence[str]
    words: Sequence[str]
    vectors: np.ndarray
    is_candidate: Callable[[str], bool]
    top_k: int
    probability: float
    copies: int

    def __post_init__(self) -> None:
        self.masked_lm.eval()
        self.rows = {word: row for row, word in enumerate(self.words)}
        self.ids = {piece: index for index, piece in enumerate(self.pieces)}

    def augment(self, pieces: list[str], words: Sequence[SentenceWord], rng: np.random.Generator) -> list[list[str]]:
        """The distinct draws, as lists of pieces and words; the original first."""
        candidates = [self.candidates(pieces, word) for word in words]
        varied = [pieces]
        for _ in range(self.copies):
            parts = list(pieces)
            for word, choices in zip(words, candidates, strict=True):
                if choices and rng.random() < self.probability:
                    drawn = [choices[rng.integers(len(choices))], *[""] * (word.pieces - 1)]
                    parts[word.first_piece : word.first_piece + word.pieces] = drawn
            parts = [part for part in parts if part]
            if parts not in varied:
                varied.append(parts)
        return varied

    def candidates(self, pieces: list[str], word: SentenceWord) -> list[str]:
        """At most `top_k` for one word, likeliest or nearest first."""
        return self.likely(pieces, word) if word.pieces == 1 else self.near(word.spelling)

    @torch.no_grad()
    def likely(self, pieces: list[str], word: SentenceWord) -> list[str]:
        """The masked LM's, with the word hidden."""
        masked = list(pieces)
        masked[word.first_piece] = "[MASK]"
        first, second = ["[CLS]", *masked, "[SEP]"], [*pieces, "[SEP]"]
        device = self.masked_lm.embeddings.word.weight.device
        ids = torch.tensor([[self.ids[piece] for piece in first + second]], device=device)
        segments = torch.tensor([[0] * len(first) + [1] * len(second)], device=device)
        outputs = self.masked_lm(ids, torch.ones_like(ids, dtype=torch.bool), segments)
        logits = self.masked_lm.logits(outputs)[0, word.first_piece + 1]
        return self._best(logits.argsort(descending=True).tolist(), self.pieces, word.spelling)

    def near(self, word: str) -> list[str]:
        """The nearest by cosine; none for a word without a vector."""
        if word not in self.rows:
            return []
        cosines = self.vectors @ self.vectors[self.rows[word]]
        return self._best(np.argsort(-cosines).tolist(), self.words, word)

    def _best(self, order: list[int], names: Sequence[str], word: str) -> list[str]:
        found = (names[index] for index in order if names[index] != word and self.is_candidate(names[index]))
        return list(islice(found, self.top_k))
