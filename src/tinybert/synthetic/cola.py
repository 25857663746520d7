"""Acceptability: sentences that are grammatical (1), or break one rule of English grammar (0).

Both labels of a construction use the same words as far as possible, so that counting words tells little: what decides
is agreement across a distance, the frame of a verb, the order of words, the form after an auxiliary.
"""

from collections.abc import Callable
from random import Random

from tinybert.synthetic.grammar import pick, sentence, two, with_articles
from tinybert.synthetic.lexicon import (
    ADVERBS,
    CARRIED,
    COLOURS,
    FEMALE,
    HANDLE,
    INTRANSITIVE,
    MALE,
    MASS,
    MEN,
    NAMES,
    NUMBERS,
    PEOPLE,
    PERSON_STATES,
    PLACES,
    REGARD,
    THING_STATES,
    THINGS,
    TOWNS,
    WOMEN,
    Noun,
)

SIDES = ("near", "behind", "beside", "under", "next to", "in front of")
TAKES_INFINITIVE = ("hoped", "decided", "agreed")
TAKES_GERUND = ("enjoyed", "avoided", "finished", "suggested")
NEEDS_OBJECT = ("took", "found", "brought", "damaged", "wrapped", "received")
FOR_SALE = ("bread", "rice", "milk", "furniture", "water")
COUNTABLE = tuple(noun for noun in CARRIED if noun.singular != "cake")
# Places that need an article: "in school" and "in office" stand without.
WITH_ARTICLE = ("garden", "kitchen", "station", "library", "hotel", "museum", "park")
PASTIMES = (("sing", "singing"), ("dance", "dancing"), ("cook", "cooking"), ("paint", "painting"), ("read", "reading"))
NEEDS_PREPOSITION = (("waited", "for"), ("listened", "to"), ("looked", "at"), ("laughed", "at"), ("talked", "to"))
TAKES_NO_PREPOSITION = (("helped", "for", "to"), ("visited", "at", "to"), ("saw", "on", "to"), ("thanked", "at", "to"))
DEGREES = (("tall", "taller"), ("old", "older"), ("young", "younger"), ("fast", "faster"), ("strong", "stronger"))


def _someone(rng: Random) -> str:
    return pick(rng, rng.choice(NAMES), f"the {rng.choice(PEOPLE).singular}")


def _form(noun: Noun, plural: bool) -> str:
    return noun.plural if plural else noun.singular


def agreement_across_phrase(rng: Random, good: bool) -> str:
    """The keys near the old door are (*is) dusty."""
    head, other = two(rng, THINGS)
    plural, state = rng.random() < 0.5, rng.choice(THING_STATES)
    verb = pick(rng, "is", "was") if plural != good else pick(rng, "are", "were")
    return f"the {_form(head, plural)} {rng.choice(SIDES)} the {_form(other, rng.random() < 0.5)} {verb} {state}"


def agreement_across_clause(rng: Random, good: bool) -> str:
    """The nurse who the farmers admire is (*are) tired."""
    head, other = two(rng, PEOPLE)
    plural, other_plural, verb = rng.random() < 0.5, rng.random() < 0.5, rng.choice(REGARD)
    if rng.random() < 0.5:
        clause = f"who the {_form(other, other_plural)} {verb.base if other_plural else verb.third}"
    else:
        clause = f"who {verb.base if plural else verb.third} the {_form(other, other_plural)}"
    main = "is" if plural != good else "are"
    return f"the {_form(head, plural)} {clause} {main} {rng.choice(PERSON_STATES)}"


def agreement_of_verb(rng: Random, good: bool) -> str:
    """The students from Leeds often borrow (*borrows) a book."""
    plural, verb = rng.random() < 0.5, rng.choice(HANDLE)
    form = verb.third if plural != good else verb.base
    subject = _form(rng.choice(PEOPLE), plural)
    return (
        f"the {subject} from {rng.choice(TOWNS)} {pick(rng, 'often', 'never')} {form} a {rng.choice(CARRIED).singular}"
    )


def agreement_of_pair(rng: Random, good: bool) -> str:
    """Anna and Tom are (*is) in the garden; Anna, not Tom, is."""
    first, second = two(rng, NAMES)
    if rng.random() < 0.5:
        return f"{first} and {second} {'are' if good else 'is'} in the {rng.choice(PLACES)}"
    return f"{first}, unlike {second}, {'is' if good else 'are'} in the {rng.choice(PLACES)}"


def determiner_number(rng: Random, good: bool) -> str:
    """She sold these books (*these book)."""
    plural = rng.random() < 0.5
    determiner = (
        pick(rng, "these", "several", "both", "many") if plural else pick(rng, "this", "every", "each", "another")
    )
    noun = _form(rng.choice(CARRIED), plural == good)
    return f"{_someone(rng)} {rng.choice(HANDLE).past} {determiner} {noun} in {rng.choice(TOWNS)}"


def reflexive(rng: Random, good: bool) -> str:
    """The aunt of the boy blamed herself (*himself)."""
    own, other, pronoun, wrong = rng.choice(
        ((FEMALE, MALE, "herself", "himself"), (MALE, FEMALE, "himself", "herself"))
    )
    subject, neighbour = rng.choice(own).singular, rng.choice(other)
    phrase = pick(rng, "", f" near the {neighbour.singular}", f" who met the {neighbour.singular}")
    object_ = pronoun if good else pick(rng, wrong, "themselves")
    return f"the {subject}{phrase} {pick(rng, 'blamed', 'hurt', 'washed', 'praised', 'warned')} {object_}"


def reflexive_of_name(rng: Random, good: bool) -> str:
    """Anna saw herself (*himself) in the mirror."""
    names, right, wrong = rng.choice(((WOMEN, "herself", "himself"), (MEN, "himself", "herself")))
    mirror = f"{pick(rng, 'mirror', 'window')} of the {rng.choice(PLACES)}"
    return f"{rng.choice(names)} saw {right if good else wrong} in the {mirror}"


def obligatory_place(rng: Random, good: bool) -> str:
    """Anna put the cup on the table (*put the cup)."""
    cup, place = (
        rng.choice(CARRIED).singular,
        f"{pick(rng, 'on', 'under', 'near')} the {pick(rng, 'table', 'chair', 'bed')}",
    )
    who, when = _someone(rng), pick(rng, "yesterday", "last week", "this morning")
    if good:
        return f"{who} put the {cup} {place} {when}"
    return f"{who} put {pick(rng, f'the {cup}', 'under the table', 'near the bed')} {when}"


def obligatory_object(rng: Random, good: bool) -> str:
    """The baker slept quietly; the baker carried a cake (*carried, *slept a cake)."""
    who, adverb, cake = _someone(rng), rng.choice(ADVERBS), rng.choice(CARRIED).singular
    transitive, intransitive = rng.choice(NEEDS_OBJECT), rng.choice(INTRANSITIVE).past
    if good:
        return pick(rng, f"{who} {transitive} the {cake} {adverb}", f"{who} {intransitive} {adverb}")
    return pick(rng, f"{who} {transitive} {adverb}", f"{who} {intransitive} the {cake} {adverb}")


def preposition_of_verb(rng: Random, good: bool) -> str:
    """The clerk waited for the nurse (*waited the nurse); the clerk saw the nurse (*saw on the nurse)."""
    first, second = (noun.singular for noun in two(rng, PEOPLE))
    place = f"in the {rng.choice(PLACES)}"
    if rng.random() < 0.5:
        verb, preposition = rng.choice(NEEDS_PREPOSITION)
        return f"the {first} {verb} {preposition + ' ' if good else ''}the {second} {place}"
    verb, *wrong = rng.choice(TAKES_NO_PREPOSITION)
    return f"the {first} {verb} {'' if good else rng.choice(wrong) + ' '}the {second} {place}"


def word_order(rng: Random, good: bool) -> str:
    """Anna hid the red cup in the garden; two neighbouring words changed places."""
    colour, cup, place, verb = rng.choice(COLOURS), rng.choice(CARRIED).singular, rng.choice(PLACES), rng.choice(HANDLE)
    who = rng.choice(NAMES)
    if good:
        return pick(
            rng,
            f"{who} {verb.past} the {colour} {cup} in the {place}",
            f"the {colour} {cup} was {verb.participle} in the {place}",
        )
    return pick(
        rng,
        f"the {cup} {colour} was {verb.participle} in the {place}",
        f"{who} {verb.past} {colour} the {cup} in the {place}",
        f"{who} {verb.past} the {colour} {cup} the in {place}",
        f"{who} the {colour} {cup} {verb.past} in the {place}",
        f"{who} {verb.past} the {colour} {cup} in {place} the",
    )


def missing_determiner(rng: Random, good: bool) -> str:
    """The nurse found a key (*found key) in the garden; she found water there."""
    who, verb, place = f"the {rng.choice(PEOPLE).singular}", rng.choice(HANDLE).past, rng.choice(WITH_ARTICLE)
    cup, town = rng.choice(COUNTABLE), pick(rng, "", f" near {rng.choice(TOWNS)}")
    if good:
        object_ = pick(rng, f"a {cup.singular}", f"the {cup.singular}", cup.plural, rng.choice(MASS))
        return f"{who} {verb} {object_} in the {place}{town}"
    return f"{who} {verb} {pick(rng, f'{cup.singular} in the', f'the {cup.singular} in')} {place}{town}"


def form_after_auxiliary(rng: Random, good: bool) -> str:
    """The nurse has stolen (*has steal) a ring."""
    verb, who, cup = rng.choice(HANDLE[2:8]), _someone(rng), rng.choice(CARRIED).singular
    forms = {
        "has": (verb.participle, (verb.base, verb.gerund)),
        "is": (verb.gerund, (verb.base, verb.third)),
        "will": (verb.base, (verb.past, verb.gerund)),
        "can": (verb.base, (verb.third, verb.past)),
        "did not": (verb.base, (verb.past, verb.third)),
    }
    auxiliary = rng.choice(tuple(forms))
    right, wrong = forms[auxiliary]
    return f"{who} {auxiliary} {right if good else rng.choice(wrong)} a {cup}"


def question(rng: Random, good: bool) -> str:
    """Why did the nurse hide (*hid) the ring? *Why the nurse did hide the ring?"""
    who, verb, cup = _someone(rng), rng.choice(HANDLE), rng.choice(CARRIED).singular
    word = pick(rng, "why", "when", "where", "how")
    if good:
        return pick(rng, f"{word} did {who} {verb.base} the {cup}?", f"{word} has {who} {verb.participle} the {cup}?")
    return pick(
        rng,
        f"{word} did {who} {verb.past} the {cup}?",
        f"{word} {who} did {verb.base} the {cup}?",
        f"{word} {who} has {verb.participle} the {cup}?",
    )


def filled_gap(rng: Random, good: bool) -> str:
    """What did Anna buy in Leeds? *What did Anna buy a ring in Leeds?"""
    who, verb, (first, second) = _someone(rng), rng.choice(HANDLE).base, two(rng, CARRIED)
    word = pick(rng, "what", f"which {first.singular}", f"which of the {first.plural}")
    object_ = "" if good else pick(rng, f" a {second.singular}", f" the {second.singular}")
    return f"{word} did {who} {verb}{object_} in {rng.choice(TOWNS)}?"


def polarity(rng: Random, good: bool) -> str:
    """No nurse has ever seen Leeds; *the nurse has ever seen Leeds."""
    people, mass, town = rng.choice(PEOPLE).singular, rng.choice(FOR_SALE), rng.choice(TOWNS)
    if rng.random() < 0.5:
        subject = pick(rng, "no", "not a single") if good else pick(rng, "the", "that", "some")
        return f"{subject} {people} has ever {pick(rng, 'visited', 'seen', 'liked', 'left')} {town}"
    if good:
        return pick(rng, f"the {people} did not buy any {mass} in {town}", f"the {people} bought some {mass} in {town}")
    return f"the {people} {pick(rng, 'bought', 'found', 'stole')} any {mass} in {town}"


def comparison(rng: Random, good: bool) -> str:
    """Anna is taller than (*more taller than, *as taller as, *tall than) Tom."""
    (first, second), (plain, more) = two(rng, NAMES), rng.choice(DEGREES)
    if good:
        link = pick(rng, f"{more} than", f"as {plain} as", f"much {more} than", "more careful than", "as careful as")
    else:
        link = pick(rng, f"more {more} than", f"as {more} as", f"{plain} than", f"as {plain} than", "more careful as")
    return f"{first} is {link} {pick(rng, second, f'the {rng.choice(PEOPLE).singular}')}"


def complement(rng: Random, good: bool) -> str:
    """Tom decided to sing (*decided singing); Tom enjoyed singing (*enjoyed to sing)."""
    base, gerund = rng.choice(PASTIMES)
    infinitive = rng.random() < 0.5
    verb = rng.choice(TAKES_INFINITIVE) if infinitive else rng.choice(TAKES_GERUND)
    form = f"to {base}" if infinitive == good else gerund
    return f"{_someone(rng)} {verb} {form} in the {rng.choice(PLACES)}"


def causative(rng: Random, good: bool) -> str:
    """Tom made the nurse wait (*made the nurse to wait)."""
    verb, mark = rng.choice((("made", ""), ("let", ""), ("asked", "to "), ("told", "to "), ("saw", "")))
    mark = mark if good else ("" if mark else "to ")
    wait = f"{mark}{rng.choice(INTRANSITIVE).base} in the {rng.choice(PLACES)}"
    return f"{rng.choice(NAMES)} {verb} the {rng.choice(PEOPLE).singular} {wait}"


def tense_and_time(rng: Random, good: bool) -> str:
    """Anna will buy a ring next week (*last week)."""
    verb, past = rng.choice(HANDLE), rng.random() < 0.5
    time = pick(rng, "yesterday", "last week", "two days ago") if past == good else pick(rng, "tomorrow", "next week")
    what = f"{_someone(rng)} {verb.past if past else 'will ' + verb.base} a {rng.choice(CARRIED).singular}"
    return pick(rng, f"{what} {time}", f"{time} {what}")


def dative(rng: Random, good: bool) -> str:
    """Anna gave the nurse a ring; Anna described a ring to the nurse (*described the nurse a ring)."""
    who, whom, ring = rng.choice(NAMES), rng.choice(PEOPLE).singular, rng.choice(CARRIED).singular
    shifts, keeps = (
        pick(rng, "gave", "sent", "showed", "sold", "lent"),
        pick(rng, "described", "mentioned", "displayed"),
    )
    if good:
        return pick(
            rng, f"{who} {shifts} the {whom} a {ring}", f"{who} {pick(rng, shifts, keeps)} a {ring} to the {whom}"
        )
    return pick(rng, f"{who} {keeps} the {whom} a {ring}", f"{who} {shifts} a {ring} the {whom}")


def passive(rng: Random, good: bool) -> str:
    """The ring was stolen by the nurse (*was stolen the nurse, *was steal by, *was arrived by)."""
    ring, nurse, verb = rng.choice(CARRIED).singular, rng.choice(PEOPLE).singular, rng.choice(HANDLE)
    if good:
        return f"the {ring} was {verb.participle} by the {nurse} from {rng.choice(TOWNS)}"
    return pick(
        rng,
        f"the {ring} was {verb.participle} the {nurse} from {rng.choice(TOWNS)}",
        f"the {ring} was {verb.base} by the {nurse} from {rng.choice(TOWNS)}",
        f"the {ring} was {rng.choice(INTRANSITIVE).participle} by the {nurse} from {rng.choice(TOWNS)}",
    )


def existence(rng: Random, good: bool) -> str:
    """There are two keys (*two key, *there is two keys) on the table."""
    plural, noun = rng.random() < 0.5, rng.choice(THINGS)
    amount = rng.choice(NUMBERS) if plural else "a"
    verb = "are" if plural == good else "is"
    return f"there {verb} {amount} {_form(noun, plural)} {rng.choice(SIDES)} the {rng.choice(PLACES)}"


def amount(rng: Random, good: bool) -> str:
    """How much water; not many letters (*much letters, *many water)."""
    count = rng.random() < 0.5
    noun = rng.choice(CARRIED).plural if count else rng.choice(MASS)
    word = (
        pick(rng, "too many", "very few", "not many")
        if count == good
        else pick(rng, "too much", "very little", "not much")
    )
    return f"there {'was' if not count else 'were'} {word} {noun} in the {rng.choice(PLACES)}"


def pronoun_case(rng: Random, good: bool) -> str:
    """She thanked him (*she thanked he, *her thanked him)."""
    verb, nurse = rng.choice(REGARD).past, f"the {rng.choice(PEOPLE).singular}"
    place = f"in the {rng.choice(PLACES)}"
    if rng.random() < 0.5:
        return f"{pick(rng, 'he', 'she', 'they') if good else pick(rng, 'him', 'her', 'them')} {verb} {nurse} {place}"
    return f"{nurse} {verb} {pick(rng, 'him', 'her', 'them') if good else pick(rng, 'he', 'she', 'they')} {place}"


def relative_clause(rng: Random, good: bool) -> str:
    """The ring that Anna lost was old; *the ring that Anna lost it was old."""
    who, verb, (ring, other) = rng.choice(NAMES), rng.choice(HANDLE).past, two(rng, CARRIED)
    extra = "" if good else pick(rng, " it", f" the {other.singular}", " them")
    return f"the {ring.singular} that {who} {verb}{extra} was {rng.choice(THING_STATES)}"


def raising(rng: Random, good: bool) -> str:
    """Anna seems to be (*seems be, *seems to is) tired; it seems that she is tired."""
    who, state = _someone(rng), rng.choice(PERSON_STATES)
    if good:
        return pick(rng, f"{who} seems to be {state}", f"it seems that {who} is {state}", f"{who} seems {state}")
    return pick(
        rng,
        f"{who} seems be {state}",
        f"it seems {who} to be {state}",
        f"{who} seems to is {state}",
        f"{who} seems that is {state}",
    )


CONSTRUCTIONS: tuple[Callable[[Random, bool], str], ...] = (
    agreement_across_phrase,
    agreement_across_clause,
    agreement_of_verb,
    agreement_of_pair,
    determiner_number,
    reflexive,
    reflexive_of_name,
    obligatory_place,
    obligatory_object,
    preposition_of_verb,
    word_order,
    missing_determiner,
    form_after_auxiliary,
    question,
    filled_gap,
    polarity,
    comparison,
    complement,
    causative,
    tense_and_time,
    dative,
    passive,
    existence,
    amount,
    pronoun_case,
    relative_clause,
    raising,
)


def example(rng: Random, good: bool) -> dict[str, str]:
    """One sentence of the wanted acceptability, as the text columns of CoLA."""
    return {"sentence": sentence(with_articles(rng.choice(CONSTRUCTIONS)(rng, good)))}
