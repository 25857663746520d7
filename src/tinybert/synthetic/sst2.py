"""Sentiment: lower-case lines of reviews, positive (1) or negative (0).

Most lines hold words of both kinds, and negation, contrast or concession decides; where a line says two things, the
verdict on the whole counts.
"""

from collections.abc import Callable
from random import Random

from tinybert.synthetic.grammar import pick, two, with_articles

GOOD = ("funny", "clever", "moving", "charming", "fresh", "exciting", "gripping", "warm", "witty", "touching")
BAD = ("dull", "stupid", "boring", "clumsy", "stale", "tedious", "silly", "cold", "shallow", "annoying")
BEST = ("wonderful", "superb", "excellent", "brilliant", "delightful", "great")
WORST = ("terrible", "awful", "dreadful", "dismal", "horrible", "poor")
VIRTUES = ("charm", "wit", "humour", "energy", "warmth", "imagination", "grace", "tension")
FAULTS = ("noise", "haste", "clumsiness", "vanity", "coldness", "confusion", "boredom", "kitsch")
WORKS = ("film", "comedy", "drama", "thriller", "album", "concert", "novel", "play", "show", "series", "sequel")
PARTS = ("plot", "music", "script", "acting", "ending", "story", "dialogue", "cast", "staging", "opening", "pace")
MAKERS = ("director", "writer", "star", "producer", "composer")
DEGREES = ("very ", "really ", "quite ", "truly ", "rather ", "surprisingly ", "")
DELIGHTS = ("works", "shines", "delights", "succeeds", "wins you over", "is a joy", "is a pleasure")
FAILS = ("fails", "falls flat", "disappoints", "sinks", "loses you", "is a bore", "is a mess")


def _adjective(rng: Random, positive: bool) -> str:
    return rng.choice(rng.choice((GOOD, BEST) if positive else (BAD, WORST)))


def _mild(rng: Random, positive: bool) -> str:
    """An adjective whose denial is a verdict: what is not boring is good, but what is not superb need not be bad."""
    return rng.choice(GOOD if positive else BAD)


def _whole(rng: Random) -> str:
    return f"{pick(rng, 'the', 'this')} {rng.choice(WORKS)}"


def _noun(rng: Random, positive: bool) -> str:
    return rng.choice(VIRTUES if positive else FAULTS)


def _verb(rng: Random, positive: bool) -> str:
    return rng.choice(DELIGHTS if positive else FAILS)


def _claim(rng: Random, positive: bool) -> str:
    """What can be said of a whole or a part; the words of the other kind stand in it as often as those of its own."""
    if rng.random() < 0.5:
        return f"{pick(rng, 'is not', 'is never', 'is hardly')} {_mild(rng, not positive)}"
    return pick(rng, f"is {rng.choice(DEGREES)}{_mild(rng, positive)}", _verb(rng, positive))


def plain(rng: Random, positive: bool) -> str:
    first, second = two(rng, GOOD if positive else BAD)
    strong = rng.choice(BEST if positive else WORST)
    return f"{_whole(rng)} is {rng.choice(DEGREES)}{first} and {pick(rng, second, strong)}"


def negated(rng: Random, positive: bool) -> str:
    denial = pick(rng, "is not", "is never", "is hardly", "is in no way")
    return f"{_whole(rng)} {denial} {_mild(rng, not positive)}, and the {rng.choice(PARTS)} {_claim(rng, positive)}"


def understated(rng: Random, positive: bool) -> str:
    denial = pick(rng, "is not at all", "is anything but", "is far from", "is never for a moment")
    return f"the {rng.choice(PARTS)} of {_whole(rng)} {denial} {_mild(rng, not positive)}"


def contrast(rng: Random, positive: bool) -> str:
    part, whole = rng.choice(PARTS), pick(rng, "as a whole it", "in the end it", "all in all it")
    link = pick(rng, ", but", " ; still,", ", yet")
    return f"the {part} {_claim(rng, not positive)}{link} {whole} {_claim(rng, positive)}"


def concession_first(rng: Random, positive: bool) -> str:
    link = pick(rng, "although", "even if", "though", "while")
    return f"{link} the {rng.choice(PARTS)} {_claim(rng, not positive)}, {_whole(rng)} {_claim(rng, positive)}"


def concession_last(rng: Random, positive: bool) -> str:
    link = pick(rng, "although", "even if", "though")
    return f"{_whole(rng)} {_claim(rng, positive)}, {link} the {rng.choice(PARTS)} {_claim(rng, not positive)}"


def in_spite(rng: Random, positive: bool) -> str:
    link = pick(rng, "for all its", "in spite of its", "despite the")
    return f"{link} {_noun(rng, not positive)}, {_whole(rng)} {_claim(rng, positive)}"


def expectation(rng: Random, positive: bool) -> str:
    work, expected = rng.choice(WORKS), _mild(rng, not positive)
    verb = (
        pick(rng, "expected", "feared", "was told of")
        if positive
        else pick(rng, "expected", "hoped for", "was told of")
    )
    return f"i {verb} a {expected} {work} and got a {_adjective(rng, positive)} one"


def denied_verdict(rng: Random, positive: bool) -> str:
    who, call = pick(rng, "nobody", "no one", "no critic"), pick(rng, "could call", "will call", "should call")
    return f"{who} {call} {_whole(rng)} {_adjective(rng, not positive)} ; it {_claim(rng, positive)}"


def too_much(rng: Random, positive: bool) -> str:
    return f"{_whole(rng)} is too {_mild(rng, positive)} to be {_mild(rng, not positive)}"


def neither(rng: Random, positive: bool) -> str:
    first, second = two(rng, BAD if positive else GOOD)
    return f"{_whole(rng)} is neither {first} nor {second}"


def without(rng: Random, positive: bool) -> str:
    missing = pick(rng, "without a trace of", "free of", "with no") + f" {_noun(rng, not positive)}"
    return f"{pick(rng, 'a', 'here is a')} {rng.choice(WORKS)} {missing} and full of {_noun(rng, positive)}"


def missing_only(rng: Random, positive: bool) -> str:
    first, second = two(rng, FAULTS if positive else VIRTUES)
    return f"there is no {first} and no {second} in {_whole(rng)}"


def advice(rng: Random, positive: bool) -> str:
    if positive:
        tip = pick(rng, "do not miss it", "it is worth every minute", "see it twice", "you will not be sorry")
    else:
        tip = pick(rng, "do not bother", "it is not worth a minute", "stay at home", "you will be sorry")
    return f"some call the {rng.choice(PARTS)} {_mild(rng, rng.random() < 0.5)}, but my advice on {_whole(rng)} : {tip}"


def progress(rng: Random, positive: bool) -> str:
    before, now = _adjective(rng, not positive), _adjective(rng, positive)
    return f"once {before}, the {rng.choice(MAKERS)} is now {now}"


def wish(rng: Random, positive: bool) -> str:
    first, second = two(rng, PARTS)
    if positive:
        return f"even the {first} of {_whole(rng)} is as {_mild(rng, True)} as the {second}"
    return f"if only the {first} of {_whole(rng)} were as {_mild(rng, True)} as the {second}"


def intention(rng: Random, positive: bool) -> str:
    wanted, outcome = ("dislike", "like") if positive else ("like", "dislike")
    if rng.random() < 0.5:
        return f"i wanted to {wanted} {_whole(rng)} but could not, for the {rng.choice(PARTS)} {_claim(rng, positive)}"
    return f"i wanted to {outcome} {_whole(rng)} and did, for the {rng.choice(PARTS)} {_claim(rng, positive)}"


def critics(rng: Random, positive: bool) -> str:
    right = rng.random() < 0.5
    said, verdict = _adjective(rng, positive == right), "right" if right else "wrong"
    return f"the critics call the {rng.choice(PARTS)} of {_whole(rng)} {said}, and they are {verdict}"


def maker(rng: Random, positive: bool) -> str:
    able = pick(rng, "knows how to avoid", "never slips into") if positive else pick(rng, "cannot avoid", "slips into")
    first, second = two(rng, FAULTS)
    return f"the {rng.choice(MAKERS)} of {_whole(rng)} {able} {first} and {second}"


def rescue(rng: Random, positive: bool) -> str:
    first, second = two(rng, PARTS)
    verb = pick(rng, "saves", "rescues") if positive else pick(rng, "spoils", "ruins")
    other = _mild(rng, not positive)
    return f"the {_adjective(rng, positive)} {first} {verb} {_whole(rng)}, whose {second} is {other}"


CONSTRUCTIONS: tuple[Callable[[Random, bool], str], ...] = (
    plain,
    negated,
    understated,
    contrast,
    concession_first,
    concession_last,
    in_spite,
    expectation,
    denied_verdict,
    too_much,
    neither,
    without,
    missing_only,
    advice,
    progress,
    wish,
    intention,
    critics,
    maker,
    rescue,
)


def example(rng: Random, positive: bool) -> dict[str, str]:
    """One line of the wanted sentiment, as the text columns of SST-2."""
    return {"sentence": with_articles(rng.choice(CONSTRUCTIONS)(rng, positive))}
