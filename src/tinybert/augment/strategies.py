"""Augmentation of task data: variations of each row's sentences (Jiao et al. 2020, algorithm 1)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from tinybert.augment.candidates import replacement_candidates
from tinybert.augment.word_vectors import WordVectors
from tinybert.augment.words import Sentence, read_sentences
from tinybert.glue.tasks import Task
from tinybert.models.bert import MaskedLM
from tinybert.seeds import stream

QUERY_BATCH_SIZE = 32  # the fastest of those tried on a CPU; changes nothing else


@dataclass(frozen=True)
class Settings:
    """How rows are varied.

    copies: draws per sentence (N_a). probability: each word is replaced with it (p_t), by one of `top_k` candidates
    (K). second_segment: whether the masked LM also sees the unmasked sentence. max_length_tokens: words that training
    would cut off, [CLS] and [SEP] counted, are left alone. batch_size: of the masked LM's queries.
    """

    copies: int
    probability: float
    top_k: int
    second_segment: bool
    max_length_tokens: int
    batch_size: int = QUERY_BATCH_SIZE


def augment(
    rows: Sequence[dict],
    task: Task,
    *,
    settings: Settings,
    masked_lm: MaskedLM,
    tokenizer: Tokenizer,
    vectors: WordVectors,
    seed: int,
) -> list[dict]:
    """Each row, as it is, followed by its distinct variations; these keep its label, idx and other keys.

    Of a pair first the one, then the other sentence is varied, `settings.copies` times each, and its partner always
    stays the original. (The authors' code pairs variations of the second sentence with the last one of the first.)
    A row's variations depend on its text, `seed` and its number alone, not on the batch size or the rows around it.
    """
    if not settings.copies:
        return list(rows)
    max_pieces = min(settings.max_length_tokens, masked_lm.config.max_position_embeddings) - 2
    texts = dict.fromkeys(row[column] for row in rows for column in task.columns)
    sentences = read_sentences(texts, tokenizer, max_pieces=max_pieces)
    candidates = replacement_candidates(
        sentences, settings=settings, masked_lm=masked_lm, tokenizer=tokenizer, vectors=vectors
    )
    material = dict(zip(texts, zip(sentences, candidates, strict=True), strict=True))
    augmented = []
    for number, row in enumerate(rows):
        rng = stream(seed, "augmentation", number)
        augmented.append(row)
        for column in task.columns:
            sentence, choices = material[row[column]]
            for text in variations(sentence, choices, settings=settings, rng=rng):
                augmented.append(row | {column: text})
    return augmented


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
    texts = {}  # a dict keeps the order drawn
    for copy in range(settings.copies):
        texts[_substitute(sentence.text, slots, replaced[copy], drawn[copy])] = None
    texts.pop(sentence.text, None)
    return list(texts)


def _substitute(text: str, slots: Sequence[tuple], replaced: np.ndarray, drawn: np.ndarray) -> str:
    parts, end = [], 0
    for (word, choices), is_replaced, choice in zip(slots, replaced, drawn, strict=True):
        if is_replaced:
            parts += [text[end : word.start], choices[choice]]
            end = word.end
    return "".join([*parts, text[end:]])
