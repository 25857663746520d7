"""Augmentation by substituting words (Jiao et al. 2020, algorithm 1)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from tinybert.augment.candidates import replacement_candidates
from tinybert.augment.word_vectors import WordVectors
from tinybert.augment.words import Sentence, read_sentences
from tinybert.data.tasks import Task
from tinybert.distill.resume import Checkpoint
from tinybert.models.bert import MaskedLM
from tinybert.pipeline.process import stream

BATCH_TOKENS = 2048  # of the masked LM: among the fastest of those tried on a CPU; changes nothing else


@dataclass(frozen=True)
class Settings:
    """How rows are varied.

    copies: draws per sentence (N_a). probability: each word is replaced with it (p_t), by one of `top_k` candidates
    (K). second_segment: whether the masked LM also sees the unmasked sentence. keep_word: whether its candidates may
    be the word itself. keep_partner: whether the first sentence of a pair stays the original while the second is
    varied; else it is its own last variation. max_length_tokens: words that training would cut off, [CLS] and [SEP]
    counted, are left alone. precision, batch_tokens: of the masked LM's forward passes.
    """

    copies: int
    probability: float
    top_k: int
    second_segment: bool
    keep_word: bool
    keep_partner: bool
    max_length_tokens: int
    precision: str
    batch_tokens: int = BATCH_TOKENS


def substitute(
    rows: Sequence[dict],
    task: Task,
    *,
    settings: Settings,
    masked_lm: MaskedLM,
    tokenizer: Tokenizer,
    vectors: WordVectors,
    seed: int,
    checkpoint: Checkpoint | None = None,
) -> list[dict]:
    """Each row, as it is, followed by its distinct variations; these keep its keys and gain "augmented": True.

    Of a pair first the one, then the other sentence is varied, `settings.copies` times each. A row's variations
    depend on its text, `seed` and its number alone, not on the batch size or the rows around it; in bfloat16 up to
    candidates that are almost equally likely. With a `checkpoint` the masked LM's pass, which is nearly all of the
    time, goes on where it was interrupted. UserError where the hardware lacks bfloat16.
    """
    max_pieces = min(settings.max_length_tokens, masked_lm.config.max_position_embeddings) - 2
    texts = dict.fromkeys(row[column] for row in rows for column in task.columns)
    sentences = read_sentences(texts, tokenizer, max_pieces=max_pieces)
    candidates = replacement_candidates(
        sentences,
        settings=settings,
        masked_lm=masked_lm,
        tokenizer=tokenizer,
        vectors=vectors,
        checkpoint=checkpoint,
    )
    material = dict(zip(texts, zip(sentences, candidates, strict=True), strict=True))
    augmented = []
    for row in rows:
        rng = stream(seed, "augmentation", row["idx"])
        varied = {column: variations(*material[row[column]], settings=settings, rng=rng) for column in task.columns}
        augmented += [row, *_varied_rows(row, varied, keep_partner=settings.keep_partner)]
    return augmented


def _varied_rows(row: dict, varied: dict[str, list[str]], *, keep_partner: bool) -> list[dict]:
    """The row with one column varied at a time."""
    partners, rows = dict(row), []
    for column, texts in varied.items():
        rows += [partners | {column: text, "augmented": True} for text in texts]
        if texts and not keep_partner:
            partners[column] = texts[-1]
    return rows


def variations(
    sentence: Sentence, candidates: Sequence[Sequence[str]], *, settings: Settings, rng: np.random.Generator
) -> list[str]:
    """The distinct texts among `settings.copies` draws, in the order drawn, without the original.

    Only the characters of the replaced words change: spacing, punctuation and all other words stay as they are.
    """
    slots = [(word, choices) for word, choices in zip(sentence.words, candidates, strict=True) if choices]
    if not slots:
        return []
    shape = (settings.copies, len(slots))
    replaced = rng.random(shape) < settings.probability
    drawn = rng.integers([len(choices) for _, choices in slots], size=shape)
    texts: dict[str, None] = {}  # a dict keeps the order drawn
    for copy in range(settings.copies):
        texts[_substituted(sentence.text, slots, replaced[copy], drawn[copy])] = None
    texts.pop(sentence.text, None)
    return list(texts)


def _substituted(text: str, slots: Sequence[tuple], replaced: np.ndarray, drawn: np.ndarray) -> str:
    parts, end = [], 0
    for (word, choices), is_replaced, choice in zip(slots, replaced, drawn, strict=True):
        if is_replaced:
            parts += [text[end : word.start], choices[choice]]
            end = word.end
    return "".join([*parts, text[end:]])
