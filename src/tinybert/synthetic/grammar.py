"""Templates and word lists become sentences: the small language in which the YAML files of this package are written.

A template is plain text with these parts:

- `{name}`: a variable, one word of a list, or the text of a rule. Words have forms, parted by a slash: `{noun}` is form
  0, `{noun.plural}` and `{noun.1}` are form 1, `{noun.number}` is the form that the variable `number` names, `!number`
  is the other one. `{is/are.number}` is a word on the spot.
- `{name except other}`: another word than the variable `other` holds.
- `{one|two|three}`: all alternatives are written from left to right, then one of them is chosen.
- `<good|bad>`: the side of the wanted label; the other side is not written. `{!rule}` is a rule under the other label.

A construction is a template, or a mapping that is read from top to bottom: variables (`first, second: names` draws two
different words, `low < high: numbers` two in the order of the list, `number: coin` 1 or 0), then `text`, or a pair of
`good` and `bad`, or `coin` with two constructions to choose from (`coin 0.3`: the first in 3 of 10 cases).
The order of all draws follows from the text, so that a seed gives the same sentences on every machine.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import yaml

Construction = Any  # a template, a mapping of steps, or a list of those: what YAML files hold
FORMS = {"plural": "1", "third": "0", "base": "1", "past": "2", "participle": "3", "gerund": "4"}
_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeio]|un(?!i)|um|up|ug|[AEIO])")


@cache
def load(name: str) -> dict[str, Any]:
    """Reads `<name>.yaml` beside this module. All scalars are strings: "no", "on" and "1815" stay what they are."""
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    return yaml.load(Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8"), loader)


@cache
def lexicon() -> tuple[dict[str, list[str]], dict[str, Any]]:
    """The word lists and the rules of all task files, by name."""
    tasks = [load("cola"), load("sst2"), load("pairs")]
    words = {
        name: items for part in (load("words"), *(task["words"] for task in tasks)) for name, items in part.items()
    }
    return words, {name: rule for task in tasks for name, rule in task["rules"].items()}


class Part(NamedTuple):
    """A bracketed part of a template: "{" or "<", and the alternatives inside."""

    bracket: str
    alternatives: list[list]


@cache
def parsed(template: str) -> list[list]:
    """The alternatives of a template, each a list of literal strings and Parts."""
    stack = [Part("", [[]])]
    for token in re.split(r"([{}<>|])", template):
        if token in ("{", "<"):
            stack.append(Part(token, [[]]))
        elif token in ("}", ">"):
            part = stack.pop()
            stack[-1].alternatives[-1].append(part)
        elif token == "|":
            stack[-1].alternatives.append([])
        elif token:
            stack[-1].alternatives[-1].append(token)
    (whole,) = stack
    return whole.alternatives


class Writer:
    """Writes one construction: holds its variables and the wanted label."""

    def __init__(self, rng: Random, label: bool) -> None:
        self.rng = rng
        self.label = label
        self.variables: dict[str, str] = {}

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
            elif key == "text" or key == ("good" if self.label else "bad"):
                text = self.compose(value)
            elif key not in ("good", "bad"):
                self.draw(key, value)
            if text:
                return text
        return ""

    def draw(self, names: str, source: str) -> None:
        """Sets a variable (`names: source` of a construction), or several from different words of one list."""
        ordered = " < " in names
        several = re.split(r" < |, ", names)
        if len(several) == 1:
            self.variables[names] = self.write(source, whole=True)
            return
        words = lexicon()[0][self.write(source)]
        drawn = self.rng.sample(range(len(words)), len(several))
        chosen = sorted(drawn) if ordered else drawn
        self.variables.update(zip(several, [words[index] for index in chosen], strict=True))

    def write(self, template: str, whole: bool = False) -> str:
        """The text of a template; `whole`: a bare name stands for its slot, and keeps all forms of the word."""
        if whole and re.fullmatch(r"\w+( except \w+)?", template):
            return self.refer(template, whole)
        return self._choose(parsed(template))

    def _choose(self, alternatives: list[list]) -> str:
        texts = [
            "".join(part if isinstance(part, str) else self._fill(part) for part in parts) for parts in alternatives
        ]
        return texts[0] if len(texts) == 1 else self.rng.choice(texts)

    def _fill(self, part: Part) -> str:
        if part.bracket == "<":
            return self._choose([part.alternatives[0 if self.label else 1]])
        text = self._choose(part.alternatives)
        return text if len(part.alternatives) > 1 else self.refer(text)

    def refer(self, reference: str, whole: bool = False) -> str:
        """The text of a slot `[!]name[ except other][.form[.form]]`; `whole`: with all forms."""
        reference, *forms = reference.split(".")
        name, _, other = reference.partition(" except ")
        words, _ = lexicon()
        taken = self.variables[other] if other else None
        if name == "coin":
            return self._number("coin")
        if name in self.variables:
            word = self.variables[name]
        elif name in words:
            word = self.rng.choice([word for word in words[name] if word != taken] if taken else words[name])
        elif "/" in name:
            word = name
        else:
            while (word := self._rule(name)) == taken:
                pass
        if whole:
            return word
        for separator, form in zip("/;", forms or ["0"], strict=False):
            word = word.split(separator)[int(self._number(form))]
        return word

    def _rule(self, name: str) -> str:
        """The text of a rule, which reads the same variables; "!" turns the label around for it."""
        label, self.label = self.label, self.label != name.startswith("!")
        text = self.compose(lexicon()[1][name.removeprefix("!")])
        self.label = label
        return text

    def _number(self, form: str) -> str:
        if form == "coin":
            return "1" if self.rng.random() < 0.5 else "0"
        name = form.removeprefix("!")
        number = self.variables.get(name) or FORMS.get(name) or name
        return str(1 - int(number)) if form.startswith("!") else number


def fill(template: str, words: Mapping[str, Sequence[str] | str], rng: Random) -> str:
    """The template with every {slot} replaced by its text, or by one of its words; equal slots get unlike words."""
    used: set[str] = set()

    def replacement(match: re.Match[str]) -> str:
        choices = words[match[1]]
        if isinstance(choices, str):
            return choices
        word = rng.choice([choice for choice in choices if choice not in used])
        used.add(word)
        return word

    return with_articles(_SLOT.sub(replacement, template))


def with_articles(text: str) -> str:
    """Replaces "a" before a vowel by "an"; words like "one-way" and "European" do not occur here."""
    return _ARTICLE.sub(r"\1n ", text)


def sentence(clause: str) -> str:
    """A clause with its first letter in upper case and a full stop, unless it has an end already."""
    text = clause[0].upper() + clause[1:]
    return text if text[-1] in ".?!" else text + "."
