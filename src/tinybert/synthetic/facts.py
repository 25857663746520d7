"""Tables of true facts on geography and history, from which the articles and the quiz are made.

Only what is settled and easily checked stands here: where a country has several official languages, a capital lies on
two rivers, or a land belongs to two continents, the entry is None and nothing is said about it. Names are plain ASCII.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Country:
    """`river`: on which the capital lies. `mountain`: the highest. `millions`: inhabitants, rounded."""

    country: str
    adjective: str
    continent: str | None
    capital: str
    language: str | None
    river: str | None
    mountain: str | None
    millions: int | None


@dataclass(frozen=True)
class Battle:
    """`land`: the present country of the battlefield, None at sea or where that is disputed."""

    battle: str
    year: str
    era: str  # " BC" or nothing, so that it can follow the year directly
    winner: str
    loser: str
    land: str | None


@dataclass(frozen=True)
class Event:
    """Something that happened in one year; reads "<event> <verb> in <year>"."""

    event: str
    verb: str
    year: str


@dataclass(frozen=True)
class Ruler:
    """`the`: "the " where the realm is named by its people. `known_for` completes "<ruler> ..."."""

    ruler: str
    title: str
    the: str
    realm: str
    known_for: str


@dataclass(frozen=True)
class Empire:
    """`founder` and `capital` are None where several are named, or where the table of rulers asks the same."""

    empire: str
    capital: str | None
    founder: str | None
    region: str


@dataclass(frozen=True)
class Fact:
    """One statement: the value of `field` in a row of the table of `kind`; `words` is the whole row."""

    area: str  # geography | history
    kind: str
    field: str
    words: Mapping[str, Any]

    @property
    def subject(self) -> str:
        """Name of the row: its first column."""
        return self.words[self.kind]

    @property
    def answer(self) -> str:
        return self.words[self.field]


COUNTRIES = (
    Country("France", "French", "Europe", "Paris", "French", "Seine", None, 68),
    Country("Germany", "German", "Europe", "Berlin", "German", "Spree", "Zugspitze", 84),
    Country("Italy", "Italian", "Europe", "Rome", "Italian", "Tiber", None, 59),
    Country("Spain", "Spanish", "Europe", "Madrid", "Spanish", "Manzanares", "Teide", 48),
    Country("Portugal", "Portuguese", "Europe", "Lisbon", "Portuguese", "Tagus", None, 10),
    Country("England", "English", "Europe", "London", "English", "Thames", None, 57),
    Country("Ireland", "Irish", "Europe", "Dublin", "English", "Liffey", None, 5),
    Country("Norway", "Norwegian", "Europe", "Oslo", "Norwegian", None, None, 5),
    Country("Sweden", "Swedish", "Europe", "Stockholm", "Swedish", None, "Kebnekaise", 10),
    Country("Finland", "Finnish", "Europe", "Helsinki", "Finnish", None, None, None),
    Country("Denmark", "Danish", "Europe", "Copenhagen", "Danish", None, None, 6),
    Country("Poland", "Polish", "Europe", "Warsaw", "Polish", "Vistula", None, 38),
    Country("Austria", "Austrian", "Europe", "Vienna", "German", "Danube", "Grossglockner", 9),
    Country("Hungary", "Hungarian", "Europe", "Budapest", "Hungarian", "Danube", None, 10),
    Country("Greece", "Greek", "Europe", "Athens", "Greek", None, "Olympus", 10),
    Country("Turkey", "Turkish", None, "Ankara", "Turkish", None, "Ararat", 85),
    Country("Russia", "Russian", None, "Moscow", "Russian", "Moskva", "Elbrus", 144),
    Country("Ukraine", "Ukrainian", "Europe", "Kyiv", "Ukrainian", "Dnieper", "Hoverla", None),
    Country("Czechia", "Czech", "Europe", "Prague", "Czech", "Vltava", None, 11),
    Country("Egypt", "Egyptian", "Africa", "Cairo", "Arabic", "Nile", None, 110),
    Country("Morocco", "Moroccan", "Africa", "Rabat", "Arabic", None, "Toubkal", 37),
    Country("Kenya", "Kenyan", "Africa", "Nairobi", None, None, None, 55),
    Country("Tanzania", "Tanzanian", "Africa", "Dodoma", "Swahili", None, "Kilimanjaro", 67),
    Country("Mali", "Malian", "Africa", "Bamako", None, "Niger", None, 23),
    Country("Iraq", "Iraqi", "Asia", "Baghdad", None, "Tigris", None, 45),
    Country("Iran", "Iranian", "Asia", "Tehran", "Persian", None, "Damavand", 90),
    Country("Japan", "Japanese", "Asia", "Tokyo", "Japanese", "Sumida", "Fuji", 124),
    Country("China", "Chinese", "Asia", "Beijing", "Chinese", None, None, None),
    Country("Nepal", "Nepalese", "Asia", "Kathmandu", "Nepali", "Bagmati", "Everest", 30),
    Country("Thailand", "Thai", "Asia", "Bangkok", "Thai", None, None, None),
    Country("Vietnam", "Vietnamese", "Asia", "Hanoi", "Vietnamese", None, None, 100),
    Country("Canada", "Canadian", "North America", "Ottawa", None, None, "Logan", 40),
    Country("Chile", "Chilean", "South America", "Santiago", "Spanish", "Mapocho", None, 20),
    Country("Peru", "Peruvian", "South America", "Lima", "Spanish", "Rimac", "Huascaran", 34),
    Country("Colombia", "Colombian", "South America", "Bogota", "Spanish", None, None, 52),
    Country("Ecuador", "Ecuadorian", "South America", "Quito", "Spanish", None, "Chimborazo", 18),
    Country("Brazil", "Brazilian", "South America", "Brasilia", "Portuguese", None, None, 210),
    Country("Australia", "Australian", None, "Canberra", "English", None, None, 27),
)

BATTLES = (
    Battle("Waterloo", "1815", "", "Wellington", "Napoleon", "Belgium"),
    Battle("Hastings", "1066", "", "William", "Harold", "England"),
    Battle("Agincourt", "1415", "", "Henry", "the French", "France"),
    Battle("Crecy", "1346", "", "Edward", "the French", "France"),
    Battle("Austerlitz", "1805", "", "Napoleon", "the Russians and Austrians", "Czechia"),
    Battle("Trafalgar", "1805", "", "Nelson", "the French and Spanish fleet", None),
    Battle("Marengo", "1800", "", "Napoleon", "the Austrians", "Italy"),
    Battle("Gettysburg", "1863", "", "Meade", "Lee", "America"),
    Battle("Yorktown", "1781", "", "Washington", "Cornwallis", "America"),
    Battle("Culloden", "1746", "", "Cumberland", "the Jacobites", "Scotland"),
    Battle("Bannockburn", "1314", "", "Bruce", "the English", "Scotland"),
    Battle("Mohacs", "1526", "", "Suleiman", "the Hungarians", "Hungary"),
    Battle("Plassey", "1757", "", "Clive", "the nawab of Bengal", "India"),
    Battle("Grunwald", "1410", "", "Jagiello", "the Teutonic knights", "Poland"),
    Battle("Hattin", "1187", "", "Saladin", "the crusaders", None),
    Battle("Sekigahara", "1600", "", "Ieyasu", "his rivals", "Japan"),
    Battle("Adwa", "1896", "", "Menelik", "the Italians", "Ethiopia"),
    Battle("Zama", "202", " BC", "Scipio", "Hannibal", "Tunisia"),
    Battle("Cannae", "216", " BC", "Hannibal", "the Romans", "Italy"),
    Battle("Marathon", "490", " BC", "Miltiades", "the Persians", "Greece"),
)

EVENTS = (
    Event("the First World War", "began", "1914"),
    Event("the Second World War", "ended", "1945"),
    Event("the Crimean War", "began", "1853"),
    Event("the Thirty Years War", "began", "1618"),
    Event("the Seven Years War", "began", "1756"),
    Event("the Korean War", "began", "1950"),
    Event("the American Civil War", "began", "1861"),
    Event("the French Revolution", "began", "1789"),
    Event("the Russian Revolution", "broke out", "1917"),
    Event("the Berlin Wall", "fell", "1989"),
    Event("Constantinople", "fell to the Ottomans", "1453"),
    Event("Magna Carta", "was sealed", "1215"),
    Event("the first voyage of Columbus", "began", "1492"),
    Event("the Great Fire of London", "broke out", "1666"),
    Event("the first landing of people on the moon", "happened", "1969"),
    Event("American independence", "was declared", "1776"),
)

RULERS = (
    Ruler("Victoria", "queen", "", "Britain", "gave her name to an age of railways and factories"),
    Ruler("Cleopatra", "queen", "", "Egypt", "allied herself with Caesar and later with Antony"),
    Ruler("Tutankhamun", "pharaoh", "", "Egypt", "was buried in a tomb full of gold"),
    Ruler("Augustus", "emperor", "", "Rome", "was the adopted heir of Caesar"),
    Ruler("Nero", "emperor", "", "Rome", "is remembered for the great fire of his city"),
    Ruler("Justinian", "emperor", "", "Byzantium", "had the laws collected and a great church built"),
    Ruler("Charlemagne", "king", "the ", "Franks", "was crowned emperor by the pope in the year 800"),
    Ruler("Hammurabi", "king", "", "Babylon", "had his laws carved in stone"),
    Ruler("Darius", "king", "", "Persia", "built roads and a palace at Persepolis"),
    Ruler("Ashoka", "emperor", "", "India", "turned to Buddhism after a bloody war"),
    Ruler("Suleiman", "sultan", "the ", "Ottomans", "laid siege to Vienna"),
    Ruler("Genghis Khan", "ruler", "the ", "Mongols", "united the tribes of the steppe"),
    Ruler("Montezuma", "emperor", "the ", "Aztecs", "received the soldiers of Cortes"),
    Ruler("Atahualpa", "emperor", "the ", "Incas", "was captured by the men of Pizarro"),
    Ruler("Catherine the Great", "empress", "", "Russia", "bought paintings and wrote to the scholars of her age"),
    Ruler("Frederick the Great", "king", "", "Prussia", "played the flute and drilled his army"),
    Ruler("Maria Theresa", "archduchess", "", "Austria", "reformed the schools and the army"),
    Ruler("Meiji", "emperor", "", "Japan", "saw his country open itself to railways and trade"),
    Ruler("Menelik", "emperor", "", "Ethiopia", "kept his country free of foreign rule"),
    Ruler("Isabella", "queen", "", "Castile", "paid for the ships of Columbus"),
    Ruler("Alfred the Great", "king", "", "Wessex", "fought the Danes and translated books"),
    Ruler("Gustavus Adolphus", "king", "", "Sweden", "fell in battle at Lutzen"),
)

EMPIRES = (
    Empire("Roman empire", "Rome", None, "around the Mediterranean sea"),
    Empire("Byzantine empire", "Constantinople", None, "in the east of the Mediterranean"),
    Empire("Mongol empire", "Karakorum", None, "on the steppes of Asia"),
    Empire("Inca empire", "Cuzco", None, "in the Andes"),
    Empire("Aztec empire", "Tenochtitlan", None, "in Mexico"),
    Empire("Khmer empire", "Angkor", None, "in the south-east of Asia"),
    Empire("Assyrian empire", "Nineveh", None, "in Mesopotamia"),
    Empire("Hittite empire", "Hattusa", None, "in Anatolia"),
    Empire("Abbasid caliphate", "Baghdad", None, "in the Middle East"),
    Empire("Umayyad caliphate", "Damascus", None, "from Spain to Persia"),
    Empire("Songhai empire", "Gao", None, "in the west of Africa"),
    Empire("Timurid empire", "Samarkand", "Timur", "in the middle of Asia"),
    Empire("Ashanti kingdom", "Kumasi", None, "in the west of Africa"),
    Empire("Maurya empire", "Pataliputra", "Chandragupta", "in India"),
    Empire("Mughal empire", None, "Babur", "in India"),
    Empire("Ottoman empire", None, "Osman", "from Hungary to Arabia"),
    Empire("Akkadian empire", None, "Sargon", "in Mesopotamia"),
    Empire("Mali empire", None, "Sundiata", "in the west of Africa"),
    Empire("Zulu kingdom", None, "Shaka", "in the south of Africa"),
    Empire("Persian empire", None, "Cyrus", "from Egypt to the Indus"),
)

# Which columns of which table are stated as facts, and to which area they belong.
TABLES = (
    ("geography", "country", ("continent", "capital", "language", "river", "mountain", "millions"), COUNTRIES),
    ("history", "battle", ("year", "winner", "land"), BATTLES),
    ("history", "event", ("year",), EVENTS),
    ("history", "ruler", ("realm", "known_for"), RULERS),
    ("history", "empire", ("capital", "founder", "region"), EMPIRES),
)


@cache
def facts() -> tuple[Fact, ...]:
    """Every fact of the tables, in table order; empty cells give none."""
    return tuple(_facts())


def _facts() -> Iterator[Fact]:
    for area, kind, fields, rows in TABLES:
        for row in rows:
            words = asdict(row)
            for field in fields:
                if words[field] is not None:
                    yield Fact(area, kind, field, words)
