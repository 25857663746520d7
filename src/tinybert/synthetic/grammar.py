"""Templates and word lists become sentences: the small language in which the YAML files of this package are written.

The head of words.yaml explains it. The text decides the order of draws, so a seed gives the same sentences everywhere.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

Construction = Any  # a template, a mapping of steps, or a list of those
FORMS = {"plural": "1", "third": "0", "base": "1", "past": "2", "participle": "3", "gerund": "4"}
SIDES = re.compile(r"<([^<>~]*)~([^<>~]*)>")
SLOT = re.compile(r"{([^{}]*)}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeio]|un(?!i)|um|up|ug|[AEIO])")


@cache
def load(name: str) -> dict[str, Any]:
    """Reads `<name>.yaml` beside this module. All scalars are strings: "no", "on" and "1815" stay what they are."""
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    return yaml.load(Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8"), loader)


@cache
def lexicon() -> dict[str, Any]:
    """By name, the word lists (lists of strings) and rules (constructions) of all task files."""
    tasks = [load("cola"), load("sst2"), load("pairs")]
    parts = [load("words"), *(task["words"] for task in tasks), *(task["rules"] for task in tasks)]
    return {name: entry for part in parts for name, entry in part.items()}


class Writer:
    """Writes one construction: its good sides, or the bad ones if `label` is False.

    Args:
        rng: Decides all draws.
        label: Which sides.
        words: Word lists and rules by name, no word of which is used twice; by default those of the task files.
    """

    def __init__(self, rng: Random, label: bool, words: Mapping[str, Any] | None = None) -> None:
        self.rng, self.label = rng, label
        self.words = lexicon() if words is None else words
        self.variables: dict[str, str] = {}
        self._used: set[str] | None = None if words is None else set()

    def compose(self, construction: Construction) -> str:
        """The text of a construction under the writer's label; "" if it only draws variables."""
        if isinstance(construction, str):
            return self.write(construction)
        if isinstance(construction, list):
            return next(filter(None, map(self.compose, construction)), "")
        for key, value in construction.items():
            text = ""
            if key.startswith("coin"):
                chance = float(key.removeprefix("coin") or 0.5)
                text = self.compose(value[0 if self.rng.random() < chance else 1])
            elif key == "one of":
                text = self.compose(self.rng.choice(value))
            elif key in ("text", "good" if self.label else "bad"):
                text = self.compose(value)
            elif key not in ("good", "bad"):
                self.draw(key, value)
            if text:
                return text
        return ""

    def draw(self, names: str, source: str) -> None:
        """Sets a variable (`names: source` of a construction), or several from different words of one list."""
        several = re.split(r" < |, ", names)
        if len(several) == 1:
            # A bare name is read as a slot, with all forms of its word.
            is_name = re.fullmatch(r"\w+( except \w+)?", source)
            self.variables[names] = self.refer(source, whole=True) if is_name else self.write(source)
            return
        words = self.words[self.write(source)]
        drawn = self.rng.sample(range(len(words)), len(several))
        chosen = sorted(drawn) if " < " in names else drawn
        self.variables.update(zip(several, [words[index] for index in chosen], strict=True))

    def write(self, template: str) -> str:
        """The text of a template."""
        text = SIDES.sub(r"\1" if self.label else r"\2", template)
        # Inner slots are written first, so all alternatives of a slot are written before one is chosen.
        while slot := SLOT.search(text):
            written = self.rng.choice(slot[1].split("|")) if "|" in slot[1] else self.refer(slot[1])
            text = text[: slot.start()] + written + text[slot.end() :]
        return self.rng.choice(text.split("|")) if "|" in text else text

    def refer(self, reference: str, whole: bool = False) -> str:
        """The text of a slot `[!]name[ except other][.form[.form]]`; `whole`: with all forms."""
        reference, *forms = reference.split(".")
        name, _, other = reference.partition(" except ")
        if name == "coin":
            return self._number("coin")
        word = name  # a word on the spot, if it has forms
        if name in self.variables:
            word = self.variables[name]
        elif "/" not in name:
            taken = self.variables[other] if other else None
            while (word := self._entry(name, taken)) == taken:
                pass
        if not whole:
            for separator, form in zip("/;", forms or ["0"], strict=False):
                word = word.split(separator)[int(self._number(form))]
        return word

    def _entry(self, name: str, taken: str | None) -> str:
        """Another word of a list than `taken`, or the text of a rule; "!" turns the label around for the rule."""
        entry = self.words[name.removeprefix("!")]
        if isinstance(entry, list):
            word = self.rng.choice([word for word in entry if word != taken and word not in (self._used or ())])
            if self._used is not None:
                self._used.add(word)
            return word
        label, self.label = self.label, self.label != name.startswith("!")
        text = self.compose(entry)
        self.label = label
        return text

    def _number(self, form: str) -> str:
        """The index that a form names: itself, a variable, the name of a form, or `coin`; "!" is the other of two."""
        if form == "coin":
            return "1" if self.rng.random() < 0.5 else "0"
        name = form.removeprefix("!")
        number = self.variables.get(name) or FORMS.get(name) or name
        return str(1 - int(number)) if form.startswith("!") else number


def fill(template: str, words: Mapping[str, Any], rng: Random) -> str:
    """A template over `words` (texts and word lists by slot), in which no word of a list comes twice."""
    return with_articles(Writer(rng, True, words).write(template))


def with_articles(text: str) -> str:
    """Replaces "a" before a vowel by "an"; words like "one-way" and "European" do not occur here."""
    return _ARTICLE.sub(r"\1n ", text)


def sentence(clause: str) -> str:
    """A clause with its first letter in upper case and a full stop, unless it has an end already."""
    text = clause[0].upper() + clause[1:]
    return text if text[-1] in ".?!" else text + "."
