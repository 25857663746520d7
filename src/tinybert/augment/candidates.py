"""By which words each word of a sentence may be replaced (Jiao et al. 2020, algorithm 1)."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from tinybert.augment.word_vectors import WordVectors
from tinybert.augment.words import Sentence, Word, is_plain_word
from tinybert.models.activations import Batch, pad
from tinybert.models.bert import MaskedLM
from tinybert.progress import progress_bar

Query = tuple[Sentence, Word]  # a sentence and the word that is hidden in it


def replacement_candidates(
    sentences: Sequence[Sentence], *, settings, masked_lm: MaskedLM, tokenizer: Tokenizer, vectors: WordVectors
) -> list[list[list[str]]]:
    """For each sentence, for each of its words, at most `settings.top_k` words that may stand in its place.

    A word of one piece is answered by the masked LM, a word of several by the nearest word vectors. The word itself
    is never among them: the authors' code drops it for vectors and keeps it for the masked LM, where "replaced" then
    often means "left as it is". A word without any candidate has an empty list.
    """
    single = [(sentence, word) for sentence in sentences for word in sentence.words if word.pieces == 1]
    several = {word.spelling for sentence in sentences for word in sentence.words if word.pieces > 1}
    likely = _likely_words(single, settings=settings, masked_lm=masked_lm, tokenizer=tokenizer)
    near = vectors.nearest(sorted(several), settings.top_k)
    return [
        [next(likely) if word.pieces == 1 else _in_case_of(word, near[word.spelling]) for word in sentence.words]
        for sentence in sentences
    ]


def _in_case_of(word: Word, candidates: list[str]) -> list[str]:
    """Word vectors know small letters only; a tokenizer that keeps capitals wants them back."""
    return [candidate.capitalize() for candidate in candidates] if word.spelling[0].isupper() else candidates


@torch.no_grad()
def _likely_words(
    queries: Sequence[Query], *, settings, masked_lm: MaskedLM, tokenizer: Tokenizer
) -> Iterator[list[str]]:
    """The answers to all queries, in the order of the queries; asked in the order of their lengths."""
    masked_lm.eval()
    device = next(masked_lm.parameters()).device
    pieces = [tokenizer.id_to_token(index) or "" for index in range(masked_lm.config.vocab_size)]
    allowed = torch.tensor([is_plain_word(piece) for piece in pieces], device=device)
    # the hidden word is itself an allowed piece, and never its own candidate
    count = max(0, min(settings.top_k, int(allowed.sum()) - 1))
    answers = np.empty((len(queries), count), dtype=np.int32)
    order = np.argsort([len(sentence.ids) for sentence, _ in queries], kind="stable")
    with progress_bar(total=len(queries), desc="masked words", unit=" words") as progress:
        for start in range(0, len(order), settings.batch_size):
            indices = order[start : start + settings.batch_size]
            batch = _query_batch(
                [queries[index] for index in indices],
                tokenizer,
                second_segment=settings.second_segment,
                positions=masked_lm.config.max_position_embeddings,
            ).to(device)
            answers[indices] = _best_pieces(masked_lm(batch).logits, batch.labels, allowed, count).cpu().numpy()
            progress.update(len(indices))
    return ([pieces[index] for index in answer] for answer in answers)


def _best_pieces(logits: Tensor, own: Tensor, allowed: Tensor, count: int) -> Tensor:
    """logits (queries, vocabulary), own (queries,) the hidden pieces, allowed (vocabulary,) -> (queries, count) ids.

    Sorted by id, not by likelihood: a draw among them then does not depend on the last bits of two close logits,
    which change with the padded width.
    """
    logits = logits.masked_fill(~allowed, -torch.inf).scatter(1, own[:, None], -torch.inf)
    return logits.topk(count, dim=1).indices.sort(dim=1).values


def _query_batch(queries: Sequence[Query], tokenizer: Tokenizer, *, second_segment: bool, positions: int) -> Batch:
    """[CLS] masked sentence [SEP], with `second_segment` followed by the unmasked sentence [SEP].

    The second segment ends where the model's positions do. Labels are the hidden pieces.
    """
    cls, sep, mask = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]", "[MASK]"))
    ids, types = [], []
    for sentence, word in queries:
        masked = sentence.ids.copy()
        masked[word.first_piece] = mask
        first = np.array([cls, *masked, sep])
        room = positions - len(first) - 1
        second = np.array([*sentence.ids[:room], sep]) if second_segment and room > 0 else first[:0]
        ids.append(np.concatenate([first, second]))
        types.append(np.repeat([0, 1], [len(first), len(second)]))
    input_ids, real = pad(ids)
    token_type_ids, _ = pad(types)
    hidden = torch.tensor([word.first_piece for _, word in queries])
    return Batch(
        input_ids=input_ids,
        mask=real,
        token_type_ids=token_type_ids,
        labels=torch.tensor([sentence.ids[word.first_piece] for sentence, word in queries]),
        positions=torch.arange(len(queries)) * input_ids.shape[1] + 1 + hidden,  # 1: behind [CLS]
    )
