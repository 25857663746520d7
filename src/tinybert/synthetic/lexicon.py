"""The words that the task examples share, with the forms that the grammar needs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Verb:
    """Forms of a verb: to carry, she carries, she carried, she has carried, she is carrying."""

    base: str
    third: str
    past: str
    participle: str
    gerund: str


@dataclass(frozen=True)
class Noun:
    singular: str
    plural: str


def _verbs(table: str) -> tuple[Verb, ...]:
    return tuple(Verb(*line.split()) for line in table.strip().splitlines())


def _nouns(table: str) -> tuple[Noun, ...]:
    return tuple(Noun(*pair.split("/")) for pair in table.split())


WOMEN = ("Anna", "Maria", "Emma", "Lucy", "Sara", "Julia", "Nora", "Clara", "Helen", "Rosa")
MEN = ("Tom", "Paul", "David", "James", "Mark", "Oscar", "Simon", "Daniel", "Martin", "Felix")
NAMES = WOMEN + MEN
TOWNS = ("Leeds", "Boston", "Milan", "Geneva", "Chicago", "Hamburg", "Lyon", "Bristol", "Toronto", "Naples", "Denver")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = ("January", "March", "April", "June", "July", "August", "October", "November")
NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "twenty", "thirty")
COLOURS = ("red", "green", "blue", "white", "black", "yellow", "brown")

# No word of this list starts with a vowel sound that "a" would have to yield to except where grammar.py sees it.
PEOPLE = _nouns(
    "teacher/teachers doctor/doctors farmer/farmers student/students nurse/nurses lawyer/lawyers singer/singers "
    "driver/drivers painter/painters baker/bakers waiter/waiters neighbour/neighbours writer/writers guide/guides "
    "dancer/dancers pilot/pilots gardener/gardeners tourist/tourists clerk/clerks tailor/tailors"
)
FEMALE = _nouns("woman/women girl/girls aunt/aunts sister/sisters mother/mothers daughter/daughters actress/actresses")
MALE = _nouns("man/men boy/boys uncle/uncles brother/brothers father/fathers son/sons waiter/waiters")
THINGS = _nouns(
    "key/keys box/boxes chair/chairs table/tables book/books letter/letters picture/pictures bottle/bottles "
    "basket/baskets window/windows door/doors plate/plates lamp/lamps cup/cups clock/clocks coat/coats"
)
CARRIED = _nouns(
    "book/books letter/letters picture/pictures bottle/bottles basket/baskets plate/plates lamp/lamps cup/cups "
    "clock/clocks coat/coats ticket/tickets present/presents cake/cakes map/maps guitar/guitars ring/rings"
)
MASS = ("water", "bread", "rice", "money", "milk", "sand", "furniture", "music")
THING_STATES = ("old", "heavy", "clean", "dirty", "new", "cheap", "wet", "dusty", "broken", "beautiful")
PERSON_STATES = ("tired", "happy", "hungry", "angry", "busy", "ill", "late", "ready", "quiet", "nervous")
PLACES = ("garden", "kitchen", "station", "market", "library", "office", "school", "hotel", "park", "museum", "theatre")
ADVERBS = ("quickly", "slowly", "quietly", "carefully", "secretly", "suddenly")

INTRANSITIVE = _verbs(
    """sleep sleeps slept slept sleeping
    arrive arrives arrived arrived arriving
    laugh laughs laughed laughed laughing
    smile smiles smiled smiled smiling
    cry cries cried cried crying
    fall falls fell fallen falling
    wait waits waited waited waiting
    cough coughs coughed coughed coughing
    shiver shivers shivered shivered shivering
    disappear disappears disappeared disappeared disappearing"""
)
# What people do with the things of CARRIED; an object is needed.
HANDLE = _verbs(
    """buy buys bought bought buying
    carry carries carried carried carrying
    take takes took taken taking
    choose chooses chose chosen choosing
    find finds found found finding
    lose loses lost lost losing
    steal steals stole stolen stealing
    hide hides hid hidden hiding
    bring brings brought brought bringing
    borrow borrows borrowed borrowed borrowing"""
)
# What people feel about people, and do to them.
REGARD = _verbs(
    """admire admires admired admired admiring
    like likes liked liked liking
    know knows knew known knowing
    help helps helped helped helping
    trust trusts trusted trusted trusting
    thank thanks thanked thanked thanking
    invite invites invited invited inviting
    follow follows followed followed following"""
)
