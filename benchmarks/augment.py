"""Speed and memory of augmentation against a plain reference, turns alternating in one run.

`python -m benchmarks.augment`: each turn augments the next 128 CoLA sentences by Jiao et al.'s algorithm 1, with a
BERT-base of random weights. Ours is src/tinybert/augment as the stage calls it, the reference
benchmarks/reference_augment.py in fp32. `--sentences` takes GLUE's CoLA/train.tsv, `--tokenizer` a folder with BERT's
vocab.txt; without them both are made here. The last line is the ratio of seconds a sentence.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle, islice
from operator import truediv
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch
from tokenizers import Tokenizer

from benchmarks import reference
from benchmarks.ours import argument_parser, bert_config
from benchmarks.reference import BERT_BASE, VOCABULARY_SIZE, Shape
from benchmarks.reference_augment import Augmenter, SentenceWord
from benchmarks.timing import StartGun, compare
from tinybert.augment.substitution import Sentence, WordPredictor, read_sentences, replacement_candidates, substitute
from tinybert.augment.word_vectors import WordVectors, from_corpus, is_plain_word
from tinybert.config.schema import Substitution
from tinybert.config.tasks import TASKS
from tinybert.data.task_sources import LAYOUTS
from tinybert.data.tokenizer import folder_tokenizer, train_tokenizer
from tinybert.models.bert import MaskedLM
from tinybert.models.outputs import best_device
from tinybert.pipeline.files import read_lines
from tinybert.synthetic.articles import articles
from tinybert.synthetic.examples import examples

COLA = TASKS["cola"]
COLUMNS = LAYOUTS["cola"].columns
COPIES, MAX_LENGTH_TOKENS = 30, 64  # Jiao et al.'s, for CoLA
SYNTHETIC_SENTENCES = 1500
SHUFFLE_SEED = 0


@dataclass(frozen=True)
class AugmentSetup:
    """What both do: the model's shape, its vocabulary, the sentences of a turn, and where texts come from."""

    shape: Shape
    vocabulary: int
    turn_sentences: int
    sentences: Path | None = None
    tokenizer: Path | None = None

    def texts(self) -> list[str]:
        """All sentences, in an order of chance that is always the same."""
        if self.sentences:
            fields = (line.split("\t") for _, line in read_lines(self.sentences, key="--sentences"))
            found = [row[COLUMNS.index("sentence")] for row in fields if len(row) == len(COLUMNS)]
        else:
            found = [row["sentence"] for row in examples("cola", "train", SYNTHETIC_SENTENCES, SHUFFLE_SEED)]
        return [found[index] for index in np.random.default_rng(SHUFFLE_SEED).permutation(len(found))]

    def turns(self) -> Iterator[list[str]]:
        """The texts of one turn after the other, from the beginning again at the end."""
        endless = cycle(self.texts())
        while True:
            yield list(islice(endless, self.turn_sentences))

    def word_pieces(self) -> Tokenizer:
        """The folder's tokenizer, or one learned from the sentences and the synthetic articles."""
        if self.tokenizer:
            return folder_tokenizer(self.tokenizer, key="--tokenizer")
        corpus = [*self.texts(), *(article["text"] for article in articles(seed=0))]
        return train_tokenizer(corpus, vocabulary_size=self.vocabulary)

    def vectors(self) -> WordVectors:
        """Of the words of the sentences."""
        return from_corpus(self.texts, self.settings().word_vectors, seed=0)

    def settings(self) -> Substitution:
        """Jiao et al.'s."""
        sizes = {"dimensions": 50, "window_words": 5, "max_words": self.vocabulary}
        vectors = {"source": "corpus", "file": "none"} | sizes
        return Substitution(probability=0.4, candidates=15, stop_words="english", word_vectors=vectors)


SIZES = {
    "published": AugmentSetup(BERT_BASE, VOCABULARY_SIZE, turn_sentences=128),
    "small": AugmentSetup(Shape(2, 12, 24, 3), 3000, turn_sentences=4),
}


def run_ours(work: AugmentSetup, precision: str, gun: StartGun) -> None:
    """Augments a turn of sentences at each start, as the stage does."""
    torch.manual_seed(0)
    masked_lm = MaskedLM(bert_config(work.shape, work.vocabulary)).to(best_device())
    tokenizer, vectors, turns, settings = work.word_pieces(), work.vectors(), work.turns(), work.settings()
    predictor = WordPredictor(masked_lm, tokenizer, precision)
    for _ in gun:
        rows = [{"sentence": text, "idx": number} for number, text in enumerate(next(turns))]
        texts = dict.fromkeys(row["sentence"] for row in rows)
        sentences = read_sentences(texts, tokenizer, max_tokens=MAX_LENGTH_TOKENS - 2)
        candidates = replacement_candidates(sentences, settings, predictor, vectors)
        substitute(rows, COLA, candidates, probability=settings.probability, copies=COPIES, seed=0)


def run_reference(work: AugmentSetup, gun: StartGun) -> None:
    """Augments a turn of sentences at each start, a word at a time."""
    torch.manual_seed(0)
    tokenizer, turns, rng = work.word_pieces(), work.turns(), np.random.default_rng(0)
    masked_lm = reference.MaskedLM(work.shape, work.vocabulary, dropout=0.0).to(best_device())
    augmenter = reference_augmenter(masked_lm, tokenizer, work.vectors(), work.settings())
    for _ in gun:
        for sentence in read_sentences(next(turns), tokenizer, max_tokens=MAX_LENGTH_TOKENS - 2):
            augmenter.augment(*pieces_and_words(sentence, tokenizer), rng)


def reference_augmenter(
    masked_lm: reference.MaskedLM, tokenizer: Tokenizer, vectors: WordVectors, settings: Substitution
) -> Augmenter:
    """The reference with a tokenizer's pieces and our word vectors."""
    vocabulary = masked_lm.embeddings.word.num_embeddings
    pieces = [tokenizer.id_to_token(index) or "" for index in range(vocabulary)]
    sizes = {"top_k": settings.candidates, "probability": settings.probability, "copies": COPIES}
    return Augmenter(masked_lm, pieces, vectors.words, vectors.vectors, is_plain_word, **sizes)


def pieces_and_words(sentence: Sentence, tokenizer: Tokenizer) -> tuple[list[str], list[SentenceWord]]:
    """A sentence as the reference reads it."""
    pieces = [tokenizer.id_to_token(index) for index in sentence.ids]
    return pieces, [SentenceWord(word.first_token, word.tokens, word.spelling) for word in sentence.words]


def description(work: AugmentSetup) -> str:
    """One line on sentences and tokenizer."""
    tokenizer = work.word_pieces()
    sentences = read_sentences(work.texts(), tokenizer, max_tokens=MAX_LENGTH_TOKENS - 2)
    words = [word for sentence in sentences for word in sentence.words]
    return (
        f"{work.sentences.name if work.sentences else 'synthetic CoLA'}: {len(sentences)} sentences, "
        f"{mean(len(sentence.ids) for sentence in sentences):.1f} pieces and {len(words) / len(sentences):.1f} "
        f"replaceable words each, {mean(word.tokens == 1 for word in words):.0%} of them one token "
        f"of the {'given' if work.tokenizer else 'synthetic'} vocabulary of {tokenizer.get_vocab_size()}"
    )


def main() -> None:
    parser = argument_parser(__doc__, SIZES)
    parser.add_argument("--sentences", type=Path, help="GLUE's CoLA/train.tsv; else the synthetic sentences")
    parser.add_argument("--tokenizer", type=Path, help="a folder with BERT's vocab.txt; else learned here")
    parser.add_argument("--turn-sentences", type=int, help="sentences a turn")
    parser.add_argument("--pairs", type=int, default=5, help="timed pairs of turns")
    parser.add_argument("--warmup", type=int, default=1, help="turns of each before")
    options = parser.parse_args()
    sizes = SIZES[options.sizes]
    turn_sentences = options.turn_sentences or sizes.turn_sentences
    work = AugmentSetup(sizes.shape, sizes.vocabulary, turn_sentences, options.sentences, options.tokenizer)
    if options.tokenizer:
        work = replace(work, vocabulary=work.word_pieces().get_vocab_size())

    def line(seconds: list[float]) -> str:
        each = [turn / turn_sentences for turn in seconds]
        return f"{median(each):9.4f} s a sentence ({min(each):.4f} to {max(each):.4f})"

    print(f"{work.shape} of random weights, vocabulary {work.vocabulary}; {turn_sentences} sentences a turn")
    print(description(work))
    reference_seconds, our_seconds = compare(work, run_reference, run_ours, options, line)
    print(f"ratio {median(map(truediv, reference_seconds, our_seconds)):.2f}")


if __name__ == "__main__":
    main()
