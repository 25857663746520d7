"""Small events that the pair tasks tell, retell and alter: who did what, to how many of what, where and when."""

from dataclasses import dataclass, replace
from random import Random

from tinybert.synthetic.lexicon import DAYS, NAMES, NUMBERS, PEOPLE, TOWNS

# Past forms that are also participles, so that the same word serves the passive: word, a synonym, a related action.
DEEDS = (
    ("bought", "purchased", "borrowed"),
    ("repaired", "fixed", "cleaned"),
    ("noticed", "spotted", "described"),
    ("found", "discovered", "lost"),
    ("received", "obtained", "ordered"),
    ("examined", "inspected", "measured"),
    ("damaged", "harmed", "scratched"),
    ("picked", "selected", "admired"),
    ("carried", "transported", "lifted"),
    ("guarded", "protected", "watched"),
)
# What one person does to another.
DEALINGS = (
    ("helped", "assisted", "thanked"),
    ("phoned", "called", "visited"),
    ("hired", "employed", "trained"),
    ("rescued", "saved", "warned"),
    ("praised", "applauded", "admired"),
    ("hugged", "embraced", "kissed"),
    ("deceived", "tricked", "annoyed"),
    ("instructed", "taught", "tested"),
)
# Singular and plural of a thing, of a synonym, of a related thing.
THINGS = (
    (("car", "cars"), ("automobile", "automobiles"), ("truck", "trucks")),
    (("bicycle", "bicycles"), ("bike", "bikes"), ("scooter", "scooters")),
    (("sofa", "sofas"), ("couch", "couches"), ("chair", "chairs")),
    (("photograph", "photographs"), ("photo", "photos"), ("drawing", "drawings")),
    (("gift", "gifts"), ("present", "presents"), ("prize", "prizes")),
    (("cup", "cups"), ("mug", "mugs"), ("glass", "glasses")),
    (("rock", "rocks"), ("stone", "stones"), ("brick", "bricks")),
    (("boat", "boats"), ("vessel", "vessels"), ("raft", "rafts")),
    (("carpet", "carpets"), ("rug", "rugs"), ("curtain", "curtains")),
    (("bag", "bags"), ("sack", "sacks"), ("box", "boxes")),
)
ROLE_SYNONYMS = {
    "doctor": "physician",
    "lawyer": "attorney",
    "writer": "author",
    "student": "pupil",
    "clerk": "office worker",
    "tourist": "traveller",
}
TIME_SYNONYMS = {
    "at noon": "at midday",
    "in autumn": "in the fall",
}
AMOUNT_SYNONYMS = {"twelve": "a dozen", "two": "a pair of", "twenty": "a score of"}
TIMES = tuple(f"on {day}" for day in DAYS) + tuple(TIME_SYNONYMS)
ROLES = tuple(person.singular for person in PEOPLE)


@dataclass(frozen=True)
class Scene:
    """An event. `deed` and `thing` are rows of the tables above; `way` of each says which synonym is used (0 or 1)."""

    who: str
    deed: tuple[str, str, str]
    thing: tuple
    amount: str  # "one" or a number word above it
    town: str
    time: str
    deed_way: int = 0
    thing_way: int = 0

    @property
    def object_(self) -> str:
        singular, plural = self.thing[self.thing_way]
        return f"a {singular}" if self.amount == "one" else f"{self.amount} {plural}"

    @property
    def verb(self) -> str:
        return self.deed[self.deed_way]

    def active(self) -> str:
        return f"{self.who} {self.verb} {self.object_} in {self.town} {self.time}"

    def time_first(self) -> str:
        return f"{self.time} {self.who} {self.verb} {self.object_} in {self.town}"

    def passive(self) -> str:
        was = "was" if self.amount == "one" else "were"
        return f"{self.object_} {was} {self.verb} by {self.who} in {self.town} {self.time}"

    def told(self, rng: Random) -> str:
        """One of the three wordings."""
        return rng.choice((self.active, self.time_first, self.passive))()

    def in_synonyms(self, rng: Random) -> "Scene":
        """The same event with a synonym for the deed, the thing, or both."""
        deed, thing = rng.choice(((1, 0), (0, 1), (1, 1)))
        return replace(self, deed_way=abs(self.deed_way - deed), thing_way=abs(self.thing_way - thing))


def person(rng: Random) -> str:
    return rng.choice(NAMES) if rng.random() < 0.5 else f"the {rng.choice(ROLES)}"


def other(rng: Random, choices, *taken):
    """One of the choices that is not taken."""
    return rng.choice([choice for choice in choices if choice not in taken])


def other_person(rng: Random, *taken: str) -> str:
    while (someone := person(rng)) in taken:
        pass
    return someone


def scene(rng: Random) -> Scene:
    return Scene(
        who=person(rng),
        deed=rng.choice(DEEDS),
        thing=rng.choice(THINGS),
        amount="one" if rng.random() < 0.4 else rng.choice(NUMBERS),
        town=rng.choice(TOWNS),
        time=rng.choice(TIMES),
        deed_way=rng.randrange(2),
        thing_way=rng.randrange(2),
    )


def changed(event: Scene, rng: Random) -> Scene:
    """The event with one detail made another, so that it is no longer the same event."""
    detail = rng.choice(("who", "deed", "thing", "amount", "town", "time"))
    if detail == "who":
        return replace(event, who=other_person(rng, event.who))
    if detail == "deed":
        return replace(event, deed=_unlike(event.deed, DEEDS, rng))
    if detail == "thing":
        return replace(event, thing=_unlike(event.thing, THINGS, rng))
    if detail == "amount":
        return replace(event, amount=other(rng, ("one", *NUMBERS), event.amount))
    if detail == "town":
        return replace(event, town=other(rng, TOWNS, event.town))
    return replace(event, time=other(rng, TIMES, event.time))


def _unlike(row: tuple, rows: tuple, rng: Random) -> tuple:
    """Another row, or the same with the related word in place of the synonyms."""
    return other(rng, rows, row) if rng.random() < 0.5 else (row[2], row[2], row[0])


def synonym(text: str, rng: Random) -> str:
    """The text with one role, time or amount put in another word, where it has one that we know; else the same text."""
    pairs = {**ROLE_SYNONYMS, **TIME_SYNONYMS, **AMOUNT_SYNONYMS}
    known = [word for word in pairs if f" {word} " in f" {text} "]
    if not known:
        return text
    word = rng.choice(known)
    return f" {text} ".replace(f" {word} ", f" {pairs[word]} ").strip()
