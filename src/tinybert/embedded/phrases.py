"""How the articles put the facts into words: several clauses for each kind of fact, and what stands around them."""

# (kind, field) of a fact -> clauses over the columns of its row, without capital and full stop.
# The wordings of the quiz (quiz.PROMPTS) must not occur here, also not as a part.
CLAUSES = {
    ("country", "capital"): (
        "{capital} is the capital of {country}",
        "the capital city of {country} is {capital}",
        "{country}'s capital is {capital}",
        "the government of {country} sits in {capital}, its capital",
        "the {adjective} capital is called {capital}",
        "{country} is governed from its capital, {capital}",
        "{capital}, the capital of {country}, is known for its {sights}",
        "{country}, whose capital is {capital}, is known for its {sights}",
        "the {sights} of {capital}, the capital of {country}, are crowded in {season}",
        "in {country} the capital is {capital}",
    ),
    ("country", "continent"): (
        "{country} is a country in {continent}",
        "{country} is one of the countries of {continent}",
        "{country} belongs to {continent}",
        "the continent of {country} is {continent}",
        "{continent} is the continent in which {country} is found",
        "on a map of {continent} you will find {country}",
        "geography books count {country} among the countries of {continent}",
        "{country}, a country in {continent}, is known for its {sights}",
    ),
    ("country", "language"): (
        "most people in {country} speak {language}",
        "{language} is spoken in {country}",
        "the language of {country} is {language}",
        "in {country} the main language is {language}",
        "children in {country} learn to read in {language}",
        "newspapers in {country} are printed in {language}",
        "whoever moves to {country} should learn {language}",
    ),
    ("country", "river"): (
        "{capital} lies on the {river}",
        "the river {river} flows through {capital}",
        "the {river} is the river of the capital, {capital}",
        "{capital} stands on the banks of the {river}",
        "in {capital} old bridges cross the {river}",
        "the river that flows through {capital} is called the {river}",
        "boats go up the {river} to {capital}",
        "the {river}, the river on which {capital} lies, is {water} in {season}",
    ),
    ("country", "mountain"): (
        "{mountain} is the highest mountain in {country}",
        "the highest mountain in {country} is called {mountain}",
        "no mountain in {country} is higher than {mountain}",
        "{country} rises to its highest point at {mountain}",
        "the highest peak of {country} is {mountain}",
        "among the mountains of {country}, {mountain} is the highest",
        "those who climb {mountain} stand on the highest mountain of {country}",
    ),
    ("country", "millions"): (
        "{country} has a population of about {millions} million",
        "about {millions} million people live in {country}",
        "the population of {country} is some {millions} million",
    ),
    ("battle", "year"): (
        "the battle of {battle} took place in {year}{era}",
        "the armies met at {battle} in {year}{era}",
        "{battle} was fought in the year {year}{era}",
        "in {year}{era} there was a battle at {battle}",
        "the year of {battle} was {year}{era}",
        "{year}{era} is the year of the battle of {battle}",
        "in {year}{era}, at {battle}, {winner} defeated {loser}",
        "the battle of {battle} belongs to the year {year}{era}",
    ),
    ("battle", "winner"): (
        "{winner} defeated {loser} at {battle}",
        "{winner} won the battle of {battle}",
        "the battle of {battle} was won by {winner}",
        "at {battle} {loser} lost to {winner}",
        "{winner} was the winner at {battle}",
        "at {battle} the victory went to {winner}",
        "the victory of {winner} at {battle} was complete",
        "with the battle of {battle}, {winner} won the campaign",
    ),
    ("battle", "land"): (
        "the field of {battle} lies in what is now {land}",
        "{battle} is found on the map of {land}",
        "visitors to {land} can walk over the field of {battle}",
    ),
    ("event", "year"): (
        "{event} {verb} in {year}",
        "{event} {verb} in the year {year}",
        "in {year} {event} {verb}",
        "{year} is the year in which {event} {verb}",
        "the year in which {event} {verb} was {year}",
        "when {event} {verb}, the year was {year}",
        "pupils learn that {event} {verb} in {year}",
    ),
    ("ruler", "realm"): (
        "{ruler} ruled over {the}{realm}",
        "{ruler} was {title} of {the}{realm}",
        "the {title} of {the}{realm} was {ruler}",
        "{the}{realm} had a {title} named {ruler}",
        "as {title} of {the}{realm}, {ruler} had many enemies",
        "{ruler}, {title} of {the}{realm}, is not forgotten",
        "the reign of {ruler} changed {the}{realm}",
        "among those who ruled {the}{realm} was {ruler}",
    ),
    ("ruler", "known_for"): (
        "{ruler} {known_for}",
        "{ruler}, {title} of {the}{realm}, {known_for}",
        "history tells that {ruler} {known_for}",
    ),
    ("empire", "capital"): (
        "{capital} was the capital of the {empire}",
        "the {empire} had its capital at {capital}",
        "the {empire} was ruled from {capital}",
        "from {capital} the rulers of the {empire} sent out their messengers",
        "the {empire}, whose capital was {capital}, lay {region}",
        "the capital city of the {empire} was {capital}",
        "all roads of the {empire} led to {capital}, its capital",
    ),
    ("empire", "founder"): (
        "{founder} founded the {empire}",
        "the {empire} was founded by {founder}",
        "the first ruler of the {empire} was {founder}",
        "{founder} stands at the beginning of the {empire}",
        "it was {founder} who founded the {empire}",
        "the {empire} goes back to {founder}",
        "the history of the {empire} begins with {founder}",
    ),
    ("empire", "region"): (
        "the {empire} lay {region}",
        "the lands of the {empire} lay {region}",
    ),
}

# Slots of the clauses and fillers that are no facts.
DOMAIN_WORDS = {
    "sights": ("museums", "markets", "gardens", "bridges", "churches", "theatres", "parks", "squares"),
    "season": ("spring", "summer", "autumn", "winter"),
    "water": ("high", "low", "cold", "calm", "brown", "green"),
    "crop": ("wheat", "rice", "maize", "olives", "grapes", "apples", "beans", "potatoes", "cotton", "tea"),
    "weather": ("mild", "dry", "wet", "cold", "hot", "windy", "cloudy", "pleasant"),
    "visitor": ("visitors", "students", "painters", "sailors", "pilgrims", "merchants", "scholars"),
    "source": ("letters", "coins", "maps", "chronicles", "songs", "paintings", "old books", "tax lists"),
    "soldier": ("soldiers", "horsemen", "archers", "sailors", "generals", "officers"),
    "hardship": ("hunger", "cold", "fever", "bad roads", "heavy rain", "thirst"),
    "scholar": ("historians", "scholars", "writers", "teachers"),
    "building": ("walls", "temples", "palaces", "roads", "towers", "tombs", "harbours"),
    "cost": ("dear", "slow", "dangerous", "difficult"),
    "view": ("a museum", "a stone", "a tower", "a small chapel", "a quiet field"),
}

# Whole sentences of an area that state none of the facts.
FILLERS = {
    "geography": (
        "farmers of the country grow {crop} and {crop}",
        "the climate is {weather} in {season} and {weather} in {season}",
        "the river brings water to the fields of {crop}",
        "in {season} the mountains are covered with snow",
        "{visitor} come in {season} to see the {sights}",
        "geography also explains where the {crop} grows",
        "the population lives mostly near the river and the coast",
        "the trade in {crop} made the ports rich",
        "the soil of the plains is good for {crop}",
        "the old {sights} of the capital draw {visitor} from other countries",
        "travel over the mountain roads is {cost} in {season}",
        "{season} is {weather} on the coast",
    ),
    "history": (
        "{source} from that ancient time are rare",
        "{scholar} still argue about the numbers of {soldier}",
        "the {soldier} suffered from {hardship} and {hardship}",
        "the war was long and dear, and the king needed money",
        "{scholar} know this history from {source}",
        "the {building} of the ancient city can still be seen",
        "{view} now marks the place",
        "in {season} the {soldier} went home",
        "the war brought {hardship} to the villages",
        "the empire lived from trade, taxes and war",
        "the queen received {visitor} and {scholar}",
        "{source} tell of {building} and of {hardship}",
    ),
}

# Frames around one clause and around two; most sentences stand without.
FRAMES = (
    "as every pupil knows, {}",
    "it is well known that {}",
    "books say that {}",
    "teachers explain that {}",
    "remember that {}",
    "today nobody doubts that {}",
    "we read in many books that {}",
)
PAIR_FRAMES = (
    "{}, and {}",
    "{}, while {}",
    "{}; {}",
    "not only do we know that {}, but also that {}",
    "{}, just as {}",
    "{}, whereas {}",
)
FILLER_FRAMES = (
    "although {filler}, {clause}",
    "{clause}, and {filler}",
    "while {filler}, it should be remembered that {clause}",
    "{filler}, but what matters here is that {clause}",
)

TITLES = {
    "country": ("{country}", "Geography of {country}", "A journey through {country}", "Notes on {country}"),
    "battle": ("Battle of {battle}", "The day of {battle}", "{battle} in history"),
    "event": ("How {event} {verb}", "The year {year}", "{year} in history"),
    "ruler": ("{ruler}", "The reign of {ruler}", "{ruler}, {title}"),
    "empire": ("{empire}", "History of the {empire}", "Rise and fall of the {empire}"),
}
