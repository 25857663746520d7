"""By which words each word of a sentence may be replaced (Jiao et al. 2020, algorithm 1)."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from tinybert.augment.masked_lm import likely_words
from tinybert.augment.word_vectors import WordVectors
from tinybert.augment.words import Sentence, in_case_of
from tinybert.distill.resume import Checkpoint
from tinybert.models.bert import MaskedLM


def replacement_candidates(
    sentences: Sequence[Sentence],
    *,
    settings,
    masked_lm: MaskedLM,
    tokenizer: Tokenizer,
    vectors: WordVectors,
    checkpoint: Checkpoint | None = None,
) -> list[list[list[str]]]:
    """For each sentence, for each of its words, at most `settings.top_k` words that may stand in its place.

    A word of one piece is answered by the masked LM, a word of several by the nearest word vectors. The word itself
    is among them only with `settings.keep_word`, and only for the masked LM: the authors' code drops it for vectors
    and keeps it there, where "replaced" then often means "left as it is". A word without any candidate has an empty
    list.
    """
    single = [(sentence, word) for sentence in sentences for word in sentence.words if word.pieces == 1]
    several = {word.spelling for sentence in sentences for word in sentence.words if word.pieces > 1}
    likely = likely_words(single, settings=settings, masked_lm=masked_lm, tokenizer=tokenizer, checkpoint=checkpoint)
    near = vectors.nearest(sorted(several), settings.top_k)
    return [
        [
            next(likely)
            if word.pieces == 1
            # word vectors know small letters only; a tokenizer that keeps capitals wants them back
            else [in_case_of(word.spelling, candidate) for candidate in near[word.spelling]]
            for word in sentence.words
        ]
        for sentence in sentences
    ]
