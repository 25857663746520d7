"""Statements that can be told in several ways, each with near copies that say something else.

A retelling is a pair of tuples: wordings that mean the same, and wordings of much the same words that neither mean it
nor follow from it. The pair tasks (MRPC, RTE) and the articles draw on them.
"""

from collections.abc import Callable
from random import Random

from tinybert.synthetic.grammar import two
from tinybert.synthetic.lexicon import MONTHS, NAMES, NUMBERS, TOWNS
from tinybert.synthetic.scenes import DEALINGS, THINGS, other, other_person, person

Retelling = tuple[tuple[str, ...], tuple[str, ...]]

OPPOSITES = (
    ("older", "younger"),
    ("taller", "shorter"),
    ("faster", "slower"),
    ("stronger", "weaker"),
    ("richer", "poorer"),
)
REASONS = (
    "it rained",
    "the road was closed",
    "the train was late",
    "the lights went out",
    "the doctor was ill",
    "the bridge was broken",
    "the guests were tired",
    "the door was locked",
)
OUTCOMES = (
    "the match was cancelled",
    "the shop stayed empty",
    "the children went home",
    "the concert began late",
    "the meeting was short",
    "the tourists stayed at the hotel",
    "nobody came to the office",
    "the students had no lesson",
)
DOINGS = (
    "closed the shop",
    "opened the letter",
    "left the hotel",
    "cooked the soup",
    "washed the car",
    "sold the house",
)
GOODS = ("bread", "milk", "rice", "coffee", "sugar", "butter", "cotton", "paper")
BUILDINGS = ("school", "station", "library", "museum", "theatre", "hotel", "market", "factory")
GROUPS = (("student", "the test"), ("driver", "the exam"), ("guest", "the race"), ("pilot", "the course"))
SMALL = NUMBERS[:6]


def _thing(rng: Random) -> str:
    return rng.choice(rng.choice(THINGS)[:2])[0]


def dealing(rng: Random) -> Retelling:
    """Who did something to whom."""
    first = person(rng)
    second, (verb, alike, unlike), town = other_person(rng, first), rng.choice(DEALINGS), rng.choice(TOWNS)

    def told(who: str, deed: str, whom: str) -> tuple[str, ...]:
        return (
            f"{who} {deed} {whom} in {town}",
            f"in {town} {whom} was {deed} by {who}",
            f"{whom} was {deed} by {who} in {town}",
        )

    same = told(first, verb, second) + told(first, alike, second)
    return same, told(second, verb, first) + told(second, alike, first) + told(first, unlike, second)[:2]


def giving(rng: Random) -> Retelling:
    giver = person(rng)
    taker, thing = other_person(rng, giver), _thing(rng)
    verb = rng.choice(("gave", "passed", "handed"))

    def told(who: str, whom: str) -> tuple[str, ...]:
        return (
            f"{who} {verb} {whom} a {thing}",
            f"{who} {verb} a {thing} to {whom}",
            f"{whom} received a {thing} from {who}",
        )

    return told(giver, taker), told(taker, giver)


def trade(rng: Random) -> Retelling:
    seller = person(rng)
    buyer, thing, town = other_person(rng, seller), _thing(rng), rng.choice(TOWNS)

    def told(who: str, whom: str) -> tuple[str, ...]:
        return (
            f"{whom} bought a {thing} from {who} in {town}",
            f"in {town} {who} sold a {thing} to {whom}",
            f"{who} sold {whom} a {thing} in {town}",
        )

    return told(seller, buyer), told(buyer, seller)


def match(rng: Random) -> Retelling:
    (winner, loser), (low, high) = two(rng, TOWNS), sorted(rng.sample(range(len(SMALL)), 2))
    score = f"{SMALL[high]} to {SMALL[low]}"

    def told(first: str, second: str, result: str) -> tuple[str, ...]:
        return (
            f"the team of {first} defeated the team of {second} {result}",
            f"the team of {second} lost to the team of {first} {result}",
            f"the team of {first} beat the team of {second} {result}",
        )

    another = f"{SMALL[high]} to {other(rng, (*SMALL[:high], 'one'), SMALL[low])}"
    return told(winner, loser, score), told(loser, winner, score) + told(winner, loser, another)[:2]


def comparison(rng: Random) -> Retelling:
    first = person(rng)
    second, (more, less) = other_person(rng, first), rng.choice(OPPOSITES)
    if rng.random() < 0.5:
        more, less = less, more
    return (
        (f"{first} is {more} than {second}", f"{second} is {less} than {first}"),
        (f"{second} is {more} than {first}", f"{first} is {less} than {second}"),
    )


def cause(rng: Random) -> Retelling:
    reason, outcome = rng.choice(REASONS), rng.choice(OUTCOMES)

    def told(why: str, what: str) -> tuple[str, ...]:
        return f"{what} because {why}", f"because {why}, {what}", f"{why}, and therefore {what}", f"{why}, so {what}"

    return told(reason, outcome), told(outcome, reason)


def order_in_time(rng: Random) -> Retelling:
    (first, second), (early, late) = two(rng, NAMES), two(rng, DOINGS)
    earlier, later = f"{first} {early}", f"{second} {late}"

    def told(before: str, after: str) -> tuple[str, ...]:
        return (
            f"{before} before {after}",
            f"before {after}, {before}",
            f"{after} after {before}",
            f"after {before}, {after}",
        )

    return told(earlier, later), told(later, earlier)


def company(rng: Random) -> Retelling:
    (first, second), doing, town = two(rng, NAMES), rng.choice(DOINGS), rng.choice(TOWNS)
    both = (
        f"{first} and {second} both {doing} in {town}",
        f"{second} and {first} both {doing} in {town}",
        f"in {town} {first} {doing}, and so did {second}",
    )
    one = (
        f"{first} but not {second} {doing} in {town}",
        f"in {town} {second} {doing}, but {first} did not",
        f"neither {first} nor {second} {doing} in {town}",
    )
    return both, one


def exception(rng: Random) -> Retelling:
    name, place = rng.choice(NAMES), rng.choice(BUILDINGS)
    return (
        (
            f"everyone except {name} left the {place}",
            f"only {name} stayed in the {place}",
            f"all but {name} left the {place}",
        ),
        (
            f"everyone except {name} stayed in the {place}",
            f"only {name} left the {place}",
            f"{name} and everyone else left the {place}",
        ),
    )


def report(rng: Random) -> Retelling:
    (first, second), doing, town = two(rng, NAMES), rng.choice(DOINGS), rng.choice(TOWNS)

    def told(who: str, whom: str) -> tuple[str, ...]:
        claim = f"{whom} {doing} in {town}"
        return f"{who} said that {claim}", f"according to {who}, {claim}", f"{claim}, {who} said"

    return told(first, second), told(second, first)


def price(rng: Random) -> Retelling:
    goods, month, (number, wrong) = rng.choice(GOODS), rng.choice(MONTHS), two(rng, NUMBERS)
    ups, downs = ("rose", "went up"), ("fell", "went down")
    if rng.random() < 0.5:
        ups, downs = downs, ups

    def told(verbs: tuple[str, str], percent: str) -> tuple[str, ...]:
        return tuple(
            wording
            for verb in verbs
            for wording in (
                f"the price of {goods} {verb} by {percent} percent in {month}",
                f"in {month} the price of {goods} {verb} by {percent} percent",
            )
        )

    return told(ups, number), told(downs, number) + told(ups, wrong)


def hours(rng: Random) -> Retelling:
    place, (open_, close) = rng.choice(BUILDINGS), two(rng, NUMBERS[:9])

    def told(start: str, end: str) -> tuple[str, ...]:
        return (
            f"the {place} opens at {start} and closes at {end}",
            f"the {place} is open from {start} to {end}",
            f"the {place} closes at {end} and opens at {start}",
        )

    return told(open_, close), told(close, open_)


def everyone(rng: Random) -> Retelling:
    (group, task), town = rng.choice(GROUPS), rng.choice(TOWNS)
    passed = (f"every {group} in {town} passed {task}", f"no {group} in {town} failed {task}")
    failed = (f"every {group} in {town} failed {task}", f"no {group} in {town} passed {task}")
    return (passed, failed) if rng.random() < 0.5 else (failed, passed)


def direction(rng: Random) -> Retelling:
    (first, second), (north, south) = two(rng, BUILDINGS), rng.choice((("north", "south"), ("east", "west")))
    if rng.random() < 0.5:
        north, south = south, north
    return (
        (f"the {first} stands {north} of the {second}", f"the {second} stands {south} of the {first}"),
        (f"the {second} stands {north} of the {first}", f"the {first} stands {south} of the {second}"),
    )


RETELLINGS: tuple[Callable[[Random], Retelling], ...] = (
    dealing,
    giving,
    trade,
    match,
    comparison,
    cause,
    order_in_time,
    company,
    exception,
    report,
    price,
    hours,
    everyone,
    direction,
)
