"""Synthetic examples of four GLUE tasks, in the columns and label types that the real sets have on the Hub."""

import zlib
from collections.abc import Callable, Mapping
from functools import cache
from itertools import chain
from random import Random
from typing import Any

from tinybert.pipeline.errors import UserError
from tinybert.synthetic.grammar import Writer, lexicon, load, sentence, with_articles

# Share of label 1 in each task, about that of the real ones.
POSITIVE_SHARE = {"cola": 0.7, "sst2": 0.5, "mrpc": 0.67, "rte": 0.5}
# Every fifth text, by checksum, can only be a dev text: no seed and no count can make the splits overlap.
DEV_EVERY = 5
MAX_TRIES_PER_ROW = 200

SCENE_SHARE = 0.5  # of MRPC: scenes have many more wordings than the other statements, so they are drawn more often
# Shares of MRPC pairs with a denial: of one sentence in pairs that differ, of both in pairs that mean the same.
DENIED_ONCE, DENIED_TWICE = 0.35, 0.2
DENIALS = ("it is not true that", "it is false that")
SEPARATOR = " :: "  # of the two texts of a template


def examples(task: str, split: str, count: int, seed: int) -> list[dict]:
    """Makes `count` different rows of a task of TASKS, the same for the same seed on every machine.

    `split` is "train" or "dev"; no text is in both, whatever the seeds. UserError if the templates yield too few rows.

    Returns:
        Dicts of sentence (or sentence1 and sentence2), label (int; cola: 1 acceptable; sst2: 1 positive; mrpc: 1
        equivalent; rte: 0 entailment, 1 not) and idx.
    """
    rng = Random(f"{task} {split} {seed}")
    ones = round(count * POSITIVE_SHARE[task])
    labels = [1] * ones + [0] * (count - ones)
    rng.shuffle(labels)
    made: dict[str, dict] = {}
    for label in labels:
        for _ in range(MAX_TRIES_PER_ROW):
            row = PAIRS[task](rng, bool(label)) if task in PAIRS else {"sentence": single_text(task, rng, bool(label))}
            text = " | ".join(row.values())
            text_split = "train" if zlib.crc32(text.encode()) % DEV_EVERY else "dev"
            if text not in made and text_split == split and row.get("sentence1", "") != row.get("sentence2"):
                break
        else:
            problem = f"{task} has too few different sentences (got {count}); allowed: at most {len(made)}"
            raise UserError(f"tasks.synthetic.{split}_examples: {problem}; fix: ask for fewer rows")
        made[text] = {**row, "label": label, "idx": len(made)}
    return list(made.values())


def single_text(task: str, rng: Random, label: bool) -> str:
    """A sentence that is grammatical or breaks one rule (cola), or a positive or negative line of a review (sst2)."""
    construction = rng.choice(list(load(task)["constructions"].values()))
    text = with_articles(Writer(rng, label).compose(construction))
    return sentence(text) if task == "cola" else text


def paraphrase(rng: Random, same: bool) -> dict[str, str]:
    """A pair of the wanted kind, as the text columns of MRPC."""
    draw = _scenes if rng.random() < SCENE_SHARE else _statements
    one_denied = not same and rng.random() < DENIED_ONCE
    texts = list(draw(rng, same or one_denied))
    denied = [rng.randrange(2)] if one_denied else []
    if same and rng.random() < DENIED_TWICE:
        denied = [0, 1]
    for index in denied:
        texts[index] = f"{rng.choice(DENIALS)} {texts[index]}"
    return _columns(*texts)


def _columns(first: str, second: str) -> dict[str, str]:
    return {"sentence1": sentence(with_articles(first)), "sentence2": sentence(with_articles(second))}


def _scenes(rng: Random, same: bool) -> tuple[str, str]:
    first, second = Writer(rng, same).compose(load("pairs")["paraphrase"]).split(SEPARATOR)
    return first, _synonym(second, rng)


def _synonym(text: str, rng: Random) -> str:
    """The text with one role, time or amount replaced by its synonym, if it has one."""
    pairs = dict(pair.split("/") for pair in lexicon()["synonyms"])
    known = [word for word in pairs if f" {word} " in f" {text} "]
    if not known:
        return text
    word = rng.choice(known)
    return f" {text} ".replace(f" {word} ", f" {pairs[word]} ").strip()


def _statements(rng: Random, same: bool) -> tuple[str, str]:
    equal, unequal = retelling(rng.choice(list(load("pairs")["retellings"].values())), rng)
    first, second = rng.sample(equal, 2) if same else (rng.choice(equal), rng.choice(unequal))
    return first, second


def retelling(construction: Mapping[str, Any], rng: Random) -> tuple[list[str], list[str]]:
    """Draws a statement; returns its wordings, and wordings of similar words with another meaning."""
    writer = Writer(rng, True)
    writer.compose(construction["draw"])

    def wordings(arguments: str | list[str]) -> list[str]:
        if isinstance(arguments, str):
            return [writer.write(arguments)]
        writer.variables.update(zip("ABC", map(writer.refer, arguments), strict=False))
        return [writer.write(wording) for wording in construction["wordings"]]

    same, other = (list(chain.from_iterable(map(wordings, construction[side]))) for side in ("same", "other"))
    return same, other


def entailment(rng: Random, not_entailed: bool) -> dict[str, str]:
    """Text and hypothesis, as the text columns of RTE; half of the texts get a sentence that decides nothing."""
    construction = rng.choice(entailments())
    if callable(construction):
        premise, hypothesis = construction(rng, not not_entailed)
    else:
        premise, hypothesis = Writer(rng, not not_entailed).compose(construction).split(SEPARATOR)
    texts = [sentence(premise)]
    if rng.random() < 0.5:
        aside = sentence(Writer(rng, True).write("the {people} {doings} {times}"))
        texts.insert(rng.randrange(2), aside)
    return _columns(" ".join(texts), hypothesis)


@cache
def entailments() -> tuple:
    """All constructions of RTE; those with many more wordings than the others stand twice."""
    left_out, added, *others = load("pairs")["entailment"].values()
    return (left_out, left_out, added, _statements, _statements, _two_scenes, _two_scenes, *others)


def _two_scenes(rng: Random, follows: bool) -> tuple[str, str]:
    """The text is two scenes without a common point; the hypothesis is one of them, or mixes them."""
    first, second = Writer(rng, True), Writer(rng, True)
    shared = True
    while shared:
        for writer in (first, second):
            writer.compose(load("pairs")["scene"])
        shared = any(first.variables[name] == second.variables[name] for name in ("who", "thing", "deed"))
    premise = f"{first.refer('active')}, and {second.refer('active')}"
    chosen, rest = rng.choice(((first, second), (second, first)))
    if follows:
        return premise, chosen.refer("less")
    mixed = ["who"]
    if rest.variables["deed"] in lexicon()["never_implied"] and rng.random() < 0.5:
        mixed = ["deed", "deed_way"]
    chosen.variables.update({name: rest.variables[name] for name in mixed})
    return premise, chosen.refer("core")


PAIRS: dict[str, Callable[[Random, bool], dict[str, str]]] = {"mrpc": paraphrase, "rte": entailment}
TASKS = ("cola", "sst2", *PAIRS)
