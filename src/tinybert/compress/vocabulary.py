"""A task student's vocabulary, cut to the tokens that the task's rows use most."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from tinybert.data.encoding import Encoded
from tinybert.data.tokenizer import SPECIAL_TOKENS, trimmed_tokenizer
from tinybert.models.bert import SequenceClassifier
from tinybert.models.checkpoints import Classifier


def trim_vocabulary(student: Classifier, tokenizer: Tokenizer, rows: Encoded, *, limit: int) -> Tokenizer:
    """Removes the word vectors of all but the most frequent tokens, in place; returns the tokenizer of the rest.

    Logits of rows whose tokens all remain do not change.

    Args:
        student: A student before its training, with the tokenizer's vocabulary.
        tokenizer: It has read the rows.
        rows: The training rows of the task.
        limit: The number of tokens to keep (`frequent_tokens`).
    """
    kept = frequent_tokens(tokenizer, rows, limit=limit)
    owner = student.bert.embeddings if isinstance(student, SequenceClassifier) else student.encoder
    padding = int(np.searchsorted(kept, student.config.pad_token_id))
    vectors = owner.word_embeddings.weight.detach()[torch.from_numpy(kept)]
    owner.word_embeddings = nn.Embedding.from_pretrained(vectors, freeze=False, padding_idx=padding)
    student.config = replace(student.config, vocab_size=len(kept), pad_token_id=padding)
    return trimmed_tokenizer(tokenizer, kept.tolist())


def frequent_tokens(tokenizer: Tokenizer, rows: Encoded, *, limit: int) -> np.ndarray:
    """The tokens that remain, ascending, (tokens,) int64: `limit`, or fewer if the rows use fewer.

    Special tokens and single characters always remain, and tokens with a character that is no token itself. If each
    character is a token, no word becomes unknown.
    """
    vocabulary = tokenizer.get_vocab()
    counts = np.bincount(np.concatenate(rows.input_ids), minlength=max(vocabulary.values()) + 1).astype(np.float64)
    always = {token for token in vocabulary if token in SPECIAL_TOKENS or not _falls_apart(token, vocabulary)}
    counts[[vocabulary[token] for token in always]] = np.inf
    order = np.argsort(-counts, kind="stable")[: max(limit, np.count_nonzero(np.isinf(counts)))]
    return np.sort(order[counts[order] > 0])


def _falls_apart(token: str, vocabulary: Collection[str]) -> bool:
    """Whether a token has several characters, each of which is a token too."""
    is_inner = token.startswith("##") and len(token) > 2
    characters = token[2:] if is_inner else token
    parts = [f"##{one}" if is_inner or place else one for place, one in enumerate(characters)]
    return len(parts) > 1 and all(part in vocabulary for part in parts)
