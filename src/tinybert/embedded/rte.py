"""Entailment: a text of one or two sentences, and a sentence that follows from it (0) or does not (1)."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from tinybert.embedded.grammar import pick, sentence, two, with_articles
from tinybert.embedded.lexicon import NAMES, NUMBERS, PEOPLE, TOWNS
from tinybert.embedded.retellings import BUILDINGS, DOINGS, OUTCOMES, REASONS, RETELLINGS
from tinybert.embedded.scenes import DEEDS, THINGS, TIMES, Scene, other, other_person, scene

# Deeds that follow from none of the others: who finds a thing notices it, who buys it receives it.
NEVER_IMPLIED = tuple(row for row in DEEDS if row[0] in ("bought", "repaired", "damaged", "carried", "guarded"))
# A kind, and what belongs to it.
KINDS = {
    "flower": ("rose", "tulip", "lily"),
    "bird": ("swan", "eagle", "parrot"),
    "fruit": ("pear", "plum", "lemon"),
    "vehicle": ("truck", "bicycle", "tram"),
    "tool": ("hammer", "saw", "drill"),
    "instrument": ("violin", "piano", "flute"),
    "building": ("church", "tower", "barn"),
}
MANAGED = (
    ("managed to", True),
    ("failed to", False),
    ("refused to", False),
    ("remembered to", True),
    ("forgot to", False),
)
PLAIN_FORMS = (
    ("open the door", "opened the door"),
    ("win the prize", "won the prize"),
    ("catch the train", "caught the train"),
    ("finish the novel", "finished the novel"),
    ("write the letter", "wrote the letter"),
    ("repair the roof", "repaired the roof"),
    ("clean the kitchen", "cleaned the kitchen"),
    ("sell the house", "sold the house"),
)


def _less(event: Scene, rng: Random) -> str:
    """The event with one or two of its details left out: it follows."""
    core = f"{event.who} {event.verb} {event.object_}"
    was = "was" if event.amount == "one" else "were"
    return pick(
        rng,
        core,
        f"{core} in {event.town}",
        f"{core} {event.time}",
        f"{event.object_} {was} {event.verb} by {event.who}",
        f"{event.object_} {was} {event.verb} in {event.town}",
        f"{event.who} was in {event.town} {event.time}",
    )


def detail_left_out(rng: Random, follows: bool) -> tuple[str, str]:
    event = scene(rng)
    told = event.told(rng)
    if follows:
        return told, _less(event.in_synonyms(rng) if rng.random() < 0.3 else event, rng)
    false = rng.choice(
        (
            replace(event, who=other_person(rng, event.who)),
            replace(event, deed=other(rng, NEVER_IMPLIED, event.deed)),
            replace(event, thing=other(rng, THINGS, event.thing)),
        )
    )
    core = f"{false.who} {false.verb} {false.object_}"
    return told, pick(rng, core, f"{core} in {event.town}", f"{core} {event.time}")


def detail_added(rng: Random, follows: bool) -> tuple[str, str]:
    event = scene(rng)
    core = f"{event.who} {event.verb} {event.object_}"
    known, guessed = two(rng, (f"in {event.town}", event.time))
    told = f"{core} {known}"
    return told, pick(rng, core, told) if follows else f"{core} {guessed}"


def retold(rng: Random, follows: bool) -> tuple[str, str]:
    equal, unequal = rng.choice(RETELLINGS)(rng)
    return two(rng, equal) if follows else (rng.choice(equal), rng.choice(unequal))


def two_events(rng: Random, follows: bool) -> tuple[str, str]:
    """Two scenes; the hypothesis tells one of them, or mixes them."""
    first, second = scene(rng), scene(rng)
    if first.who == second.who or first.thing == second.thing or first.deed == second.deed:
        return two_events(rng, follows)
    told = f"{first.active()}, and {second.active()}"
    chosen, rest = rng.choice(((first, second), (second, first)))
    if follows:
        return told, _less(chosen, rng)
    mixed = replace(chosen, who=rest.who)
    if rest.deed in NEVER_IMPLIED and rng.random() < 0.5:
        mixed = replace(chosen, deed=rest.deed, deed_way=rest.deed_way)
    return told, f"{mixed.who} {mixed.verb} {mixed.object_}"


def kind(rng: Random, follows: bool) -> tuple[str, str]:
    """A rose is a flower; a flower need not be a rose."""
    general = rng.choice(tuple(KINDS))
    special = rng.choice(KINDS[general])
    told = f"{rng.choice(NAMES)} {pick(rng, 'saw', 'photographed', 'painted', 'described', 'mentioned')} a {{}} in {rng.choice(TOWNS)}"
    if follows:
        return told.format(special), told.format(general)
    premise, hypothesis = rng.choice(((general, special), (special, other(rng, KINDS[general], special))))
    return told.format(premise), told.format(hypothesis)


def quantifier(rng: Random, follows: bool) -> tuple[str, str]:
    people, doing, town = rng.choice(PEOPLE).plural, rng.choice(DOINGS), rng.choice(TOWNS)
    all_, some, most = (f"{amount} the {people} in {town} {doing}" for amount in ("all", "some of", "most of"))
    none = f"none of the {people} in {town} {doing}"
    if follows:
        return rng.choice(((all_, some), (most, some)))
    return rng.choice(((some, all_), (some, most), (most, all_), (none, some), (some, none)))


def counted(rng: Random, follows: bool) -> tuple[str, str]:
    """Ten chairs are more than eight and fewer than twelve."""
    low, middle, high = sorted(rng.sample(range(len(NUMBERS)), 3))
    things, place = rng.choice(rng.choice(THINGS)[:2])[1], rng.choice(BUILDINGS)
    more = rng.random() < 0.5
    bound = low if more == follows else high
    told = f"there were {NUMBERS[middle]} {things} in the {place}"
    return told, f"there were {'more' if more else 'fewer'} than {NUMBERS[bound]} {things} in the {place}"


def implied(rng: Random, follows: bool) -> tuple[str, str]:
    """Who managed did it, who forgot did not; who tried may or may not have."""
    who, (base, past) = rng.choice(NAMES), rng.choice(PLAIN_FORMS)
    verb, done = rng.choice(MANAGED)
    yes, no = f"{who} {past}", f"{who} did not {base}"
    if follows:
        return f"{who} {verb} {base}", yes if done else no
    if rng.random() < 0.3:
        return f"{who} {pick(rng, 'tried to', 'wanted to', 'planned to')} {base}", pick(rng, yes, no)
    return f"{who} {verb} {base}", no if done else yes


def known_or_believed(rng: Random, follows: bool) -> tuple[str, str]:
    """What somebody knows is so; what somebody believes may not be."""
    first, second = two(rng, NAMES)
    fact = f"{second} {rng.choice(PLAIN_FORMS)[1]}"
    verb = (
        pick(rng, "knew", "regretted", "discovered")
        if follows
        else pick(rng, "believed", "hoped", "claimed", "doubted")
    )
    return f"{first} {verb} that {fact}", fact


def either_or(rng: Random, follows: bool) -> tuple[str, str]:
    (first, second), (_, past) = two(rng, NAMES), rng.choice(PLAIN_FORMS)
    if follows:
        both = pick(rng, f"{first} and {second} {past}", f"both {first} and {second} {past}")
        return both, f"{pick(rng, first, second)} {past}"
    one = pick(rng, f"{first} or {second} {past}", f"neither {first} nor {second} {past}")
    return one, f"{pick(rng, first, second)} {past}"


def reason(rng: Random, follows: bool) -> tuple[str, str]:
    """Both halves of a because-sentence hold; those of an if-sentence need not."""
    why, what = rng.choice(REASONS), rng.choice(OUTCOMES)
    if follows:
        told = pick(rng, f"because {why}, {what}", f"{what} because {why}")
    else:
        told = pick(rng, f"if {why}, {what}", f"{what} if {why}")
    return told, pick(rng, why, what)


CONSTRUCTIONS: tuple[Callable[[Random, bool], tuple[str, str]], ...] = (
    detail_left_out,
    detail_left_out,
    detail_added,
    retold,
    retold,
    two_events,
    two_events,
    kind,
    quantifier,
    counted,
    implied,
    known_or_believed,
    either_or,
    reason,
)


def example(rng: Random, not_entailed: bool) -> dict[str, str]:
    """One text and hypothesis, as the text columns of RTE. Half of the texts get a second sentence that decides nothing."""
    premise, hypothesis = rng.choice(CONSTRUCTIONS)(rng, not not_entailed)
    parts = [sentence(premise)]
    if rng.random() < 0.5:
        parts.insert(
            rng.randrange(2), sentence(f"the {rng.choice(PEOPLE).singular} {rng.choice(DOINGS)} {rng.choice(TIMES)}")
        )
    return {"sentence1": with_articles(" ".join(parts)), "sentence2": sentence(with_articles(hypothesis))}
