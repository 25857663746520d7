"""Which word vectors a task student keeps, and which of them a run trains."""

import contextlib
import math
from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from tinybert.data.encoding import Encoded
from tinybert.data.tokenizer import SPECIAL_TOKENS, trimmed_tokenizer
from tinybert.distill.batches import Batches
from tinybert.models.bert import Embeddings, SequenceClassifier
from tinybert.models.bilstm import SentenceEncoder
from tinybert.models.model_folders import Classifier


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
    owner = _word_owner(student)
    smaller = trimmed_tokenizer(tokenizer, kept.tolist())
    padding = smaller.get_vocab()["[PAD]"]
    vectors = owner.word_embeddings.weight.detach()[torch.from_numpy(kept)]
    owner.word_embeddings = nn.Embedding.from_pretrained(vectors, freeze=False, padding_idx=padding)
    student.config = replace(student.config, vocab_size=len(kept), pad_token_id=padding)
    return smaller


def frequent_tokens(tokenizer: Tokenizer, rows: Encoded, *, limit: int) -> np.ndarray:
    """The tokens that remain, ascending, (tokens,) int64: `limit`, or fewer if the rows use fewer.

    Special tokens and single characters always remain, even if they are more than `limit`, and tokens with a character
    that is no token itself. If each character is a token, no word becomes unknown.
    """
    vocabulary = tokenizer.get_vocab()
    counts = np.bincount(np.concatenate(rows.input_ids), minlength=max(vocabulary.values()) + 1).astype(np.float64)
    always = [id for token, id in vocabulary.items() if token in SPECIAL_TOKENS or not _falls_apart(token, vocabulary)]
    counts[always] = np.inf
    order = np.argsort(-counts, kind="stable")[: max(limit, len(always))]
    return np.sort(order[counts[order] > 0])


def _falls_apart(token: str, vocabulary: Collection[str]) -> bool:
    """Whether a token has several characters, each of which is a token too."""
    is_inner = token.startswith("##") and len(token) > 2
    parts = [f"##{one}" if is_inner or place else one for place, one in enumerate(token[2:] if is_inner else token)]
    return len(parts) > 1 and all(part in vocabulary for part in parts)


@contextlib.contextmanager
def only_used_words(model: nn.Module, batches: Batches, decays: Iterator[float]) -> Iterator[None]:
    """Trains a classifier's vectors of the tokens in `batches` only; the result is equal up to rounding.

    The vector of a token that no row has gets no gradient: AdamW only multiplies it by a factor at each step. Without
    this, gradient, norm, clipping and AdamW pass over all vectors: on CoLA, 30,522 instead of 7,277. Text is not
    reduced: its masks draw from all tokens, and a masked LM's logits read all vectors.

    Args:
        model: Its word embeddings are replaced while the context is open.
        decays: That factor, for each step.
    """
    if not isinstance(model, Classifier) or not isinstance(batches.rows, Encoded):
        yield
        return
    owner = _word_owner(model)
    full = owner.word_embeddings
    # Batches are padded with 0, whatever the model's padding token is.
    used = torch.from_numpy(np.unique(np.concatenate([[0, model.config.pad_token_id], *batches.rows.input_ids])))
    place = torch.zeros(full.num_embeddings, dtype=torch.int64)
    place[used] = torch.arange(len(used))
    padding, weight = int(place[model.config.pad_token_id]), full.weight.detach()[used]
    owner.word_embeddings = reduced = nn.Embedding(len(used), full.embedding_dim, padding_idx=padding, _weight=weight)
    reduced.register_buffer("place", place, persistent=False)
    reduced.register_forward_pre_hook(lambda module, inputs: module.place[inputs[0]])
    decay = 1.0
    try:
        yield
        decay = math.prod(decays)
    finally:  # also after an interrupt, then without decay
        owner.word_embeddings = full.to(reduced.weight.device)
        with torch.no_grad():
            full.weight.mul_(decay)[used] = reduced.weight


def _word_owner(model: Classifier) -> Embeddings | SentenceEncoder:
    return model.bert.embeddings if isinstance(model, SequenceClassifier) else model.encoder
