"""Entailment: a text of one or two sentences, and a sentence that follows from it (0) or does not (1)."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from tinybert.synthetic.grammar import pick, sentence, two, with_articles
from tinybert.synthetic.lexicon import NAMES, NUMBERS, PEOPLE, TOWNS
from tinybert.synthetic.retellings import BUILDINGS, DOINGS, OUTCOMES, REASONS, RETELLINGS
from tinybert.synthetic.scenes import DEEDS, THINGS, TIMES, Scene, other, other_person, scene

# Deeds that follow from none of the others: who finds a thing notices it, who buys it receives it.
NEVER_IMPLIED = tuple(row for row in DEEDS if row[0] in ("bought", "repaired", "damaged", "carried", "guarded"))
# A kind, and what belongs to it.
KINDS = {
    "flower": ("rose", "tulip", "lily"),
    "bird": ("swan", "eagle", "parrot"),
    "fruit": ("pear", "plum", "lemon"),
    "vehicle": ("truck", "bicycle", "tram"),
    "tool": ("hammer", "wrench", "drill"),
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
PASTIMES = ("sang", "slept", "waited", "worked", "danced")
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
    """A rose is a flower; a flower need not be a rose, and a tulip is none."""
    general = rng.choice(tuple(KINDS))
    special, another = rng.choice(KINDS[general]), other(rng, tuple(KINDS), general)
    deed = pick(rng, "saw", "photographed", "painted", "described", "mentioned")
    told, town = f"{rng.choice(NAMES)} {deed} a {{}}", f" in {rng.choice(TOWNS)}"
    if follows:
        premise, hypothesis = special, pick(rng, special, general)
    else:
        premise, hypothesis = rng.choice(
            ((general, special), (special, other(rng, KINDS[general], special)), (special, another))
        )
    return told.format(premise) + town, told.format(hypothesis) + ("" if premise == hypothesis else town)


def quantifier(rng: Random, follows: bool) -> tuple[str, str]:
    people, doing, town = rng.choice(PEOPLE), rng.choice(DOINGS), rng.choice(TOWNS)
    all_, some, most, none = (
        f"{amount} the {people.plural} in {town} {doing}" for amount in ("all", "some of", "most of", "none of")
    )
    every = f"every {people.singular} in {town} {doing}"
    if follows:
        return rng.choice(((all_, some), (most, some), (all_, every), (every, all_), (every, some)))
    return rng.choice(((some, all_), (most, all_), (none, some), (some, none), (most, every), (none, every)))


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
    """What somebody knows is so; what somebody believes may not be, unless we hear that the belief is right."""
    (first, second), (base, past) = two(rng, NAMES), rng.choice(PLAIN_FORMS)
    yes, no = f"{second} {past}", f"{second} did not {base}"
    if not follows and rng.random() < 0.3:
        return f"{first} {pick(rng, 'believed', 'hoped', 'claimed', 'doubted')} that {yes}", pick(rng, yes, no)
    verb, so = rng.choice(
        (
            ("knew", True),
            ("discovered", True),
            ("rightly believed", True),
            ("rightly claimed", True),
            ("wrongly believed", False),
            ("wrongly claimed", False),
        )
    )
    return f"{first} {verb} that {yes}", yes if so == follows else no


def either_or(rng: Random, follows: bool) -> tuple[str, str]:
    """Of two people both, one or none did something."""
    (first, second), (base, past) = two(rng, NAMES), rng.choice(PLAIN_FORMS)
    told, truth = rng.choice(
        (
            (f"both {first} and {second} {past}", (True, True)),
            (f"neither {first} nor {second} {past}", (False, False)),
            (f"either {first} or {second} {past}, and it was not {second}", (True, False)),
            (f"{first} {past}, unlike {second}", (True, False)),
        )
    )
    if not follows and rng.random() < 0.2:
        return f"{first} or {second} {past}", f"{pick(rng, first, second)} {pick(rng, past, f'did not {base}')}"
    who, so = rng.choice(((first, truth[0]), (second, truth[1])))
    return told, f"{who} {past if so == follows else f'did not {base}'}"


def reason(rng: Random, follows: bool) -> tuple[str, str]:
    """Both halves of a because-sentence hold; those of an if-sentence only where we hear that the first does."""
    why, what = rng.choice(REASONS), rng.choice(OUTCOMES)
    because = pick(rng, f"because {why}, {what}", f"{what} because {why}")
    condition = pick(rng, f"if {why}, {what}", f"{what} if {why}")
    if follows:
        return rng.choice(((because, pick(rng, why, what)), (f"it is a rule that {condition}, and today {why}", what)))
    return rng.choice(
        (
            (because, pick(rng, other(rng, REASONS, why), other(rng, OUTCOMES, what))),
            (f"it is a rule that {condition}", pick(rng, why, what)),
        )
    )


def within(rng: Random, follows: bool) -> tuple[str, str]:
    """Who sang in a museum in Leeds sang in Leeds."""
    who, verb, building, town = rng.choice(NAMES), rng.choice(PASTIMES), rng.choice(BUILDINGS), rng.choice(TOWNS)
    told = f"{who} {verb} in a {building} in {town}"
    if follows:
        return told, pick(rng, f"{who} {verb} in a {building}", f"{who} {verb} in {town}", f"{who} was in {town}")
    return told, pick(
        rng,
        f"{who} {verb} in a {other(rng, BUILDINGS, building)}",
        f"{who} {verb} in {other(rng, TOWNS, town)}",
        f"{who} {other(rng, PASTIMES, verb)} in {town}",
    )


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
    within,
)


def example(rng: Random, not_entailed: bool) -> dict[str, str]:
    """One text and hypothesis, as the text columns of RTE; half of the texts get a sentence that decides nothing."""
    premise, hypothesis = rng.choice(CONSTRUCTIONS)(rng, not not_entailed)
    parts = [sentence(premise)]
    if rng.random() < 0.5:
        aside = f"the {rng.choice(PEOPLE).singular} {rng.choice(DOINGS)} {rng.choice(TIMES)}"
        parts.insert(rng.randrange(2), sentence(aside))
    return {"sentence1": with_articles(" ".join(parts)), "sentence2": sentence(with_articles(hypothesis))}
