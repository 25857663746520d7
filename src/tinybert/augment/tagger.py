"""Part-of-speech tags of the Penn Treebank: by rules of our own, or by NLTK's trained tagger.

The rules know the closed classes of English, frequent verbs and adjectives, endings, and what the tag before says.
They are no match for a trained tagger; for replacing words by others of the same class they need nothing downloaded.
"""

from collections.abc import Callable, Sequence

from tinybert.pipeline.errors import UserError

Tagger = Callable[[Sequence[Sequence[str]]], list[list[str]]]
NLTK_DATA = "averaged_perceptron_tagger_eng"

BE = frozenset(["am", "is", "are", "was", "were", "be", "been", "being"])
HAVE = frozenset(["have", "has", "had", "having"])
DO = frozenset(["do", "does", "did"])

# Words with one tag, whatever stands beside them.
CLOSED = {
    "DT": "a an the this these those each every some any no another either neither both all",
    "PRP": "i you he she it we they me him us them myself yourself himself herself itself ourselves themselves "
    "someone somebody something anyone anybody anything everyone everybody everything nobody nothing",
    "PRP$": "my your his its our their",
    "IN": "of in on at by for with from into onto about above across after against along among around before behind "
    "below beneath beside between beyond despite down during except inside near off out outside over past since "
    "through throughout toward towards under until up upon within without because although though if while whether "
    "than as unless",
    "CC": "and or but nor yet",
    "MD": "can could will would shall should may might must cannot",
    "TO": "to",
    "VBZ": "is has does says",
    "VBP": "am are",
    "VBD": "was were did went saw took gave came knew ate began broke chose drank drove fell flew forgot grew ran sang "
    "sank spoke swam threw woke wore wrote rode rose shook stole tore drew hid",
    "VB": "be",
    "VBN": "been gone seen taken given known eaten begun broken chosen drunk driven fallen flown forgotten grown sung "
    "sunk spoken swum thrown woken worn written ridden risen shaken stolen torn drawn hidden done",
    "VBG": "being having",
    "WP": "who whom what whoever whatever",
    "WDT": "which whichever",
    "WP$": "whose",
    "WRB": "when where why how",
    "RB": "not never very too so just only even still quite rather almost already again now here then ever often "
    "always soon perhaps maybe also however instead together away ago today yesterday tomorrow well once twice much",
    "RBR": "more less",
    "RBS": "most least",
    "CD": "one two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty hundred thousand "
    "million",
    "NNS": "people men women children feet teeth mice police",
    "NN": "thing morning evening king ring spring string wing building ceiling father mother brother sister "
    "summer winter water paper letter number river dinner matter corner computer news glass class dress bus gas "
    "address business process series bed seed family city country story body company day way man woman child",
    "JJ": "good bad new old big small large great little long short high low young own other same different last first "
    "next few many several such able early late hard easy fast free full happy sad sick poor rich strong weak white "
    "black red green blue brown hot cold warm cool clean dirty heavy light dark deep wide open dead true false real "
    "right wrong better best worse worst tired quiet angry busy ready wet dry nice fine funny dull smart cheap tall",
}
# Past and participle alike, and some alike with the base.
PAST_OR_PARTICIPLE = frozenset(
    """
    had made said told thought found left felt kept held heard brought bought caught taught sold sent spent built lost
    met paid sat stood slept understood won led meant put let cut hit set read got became fed fought hung laid lent
    lit shot slid spun stuck struck swept wept wound
    """.split()  # noqa: SIM905 (a list literal would fill a page)
)
# Bases of verbs, of which many are nouns as well: what stands before decides.
VERBS = frozenset(
    """
    have do go see take give make say tell think know find leave feel keep hold hear bring buy catch teach sell send
    spend build lose meet pay sit stand sleep understand win lead mean put let cut hit set read get become come run
    look seem want need like love hate hope wish use try ask work call move live believe happen write speak talk walk
    turn start begin help show play follow stop open close watch allow eat drink drive fall fly forget grow sing swim
    throw wake wear ride rise shake steal tear draw hide break choose carry cross visit wait listen laugh cry smile
    cook paint dance read study learn remember appear consider expect suggest decide agree enjoy avoid finish receive
    damage wrap thank cause change add end die kill reach raise pass offer serve answer plan fail lie kiss hand
    """.split()  # noqa: SIM905
)
TAG_OF = {word: tag for tag, words in CLOSED.items() for word in words.split()}

# The first ending that fits a longer word decides.
ENDINGS = {
    "ly": "RB", "tion": "NN", "sion": "NN", "ness": "NN", "ment": "NN", "ity": "NN", "ism": "NN", "ship": "NN",
    "hood": "NN", "ance": "NN", "ence": "NN", "ous": "JJ", "ful": "JJ", "less": "JJ", "able": "JJ", "ible": "JJ",
    "ive": "JJ", "ical": "JJ", "ic": "JJ", "ial": "JJ", "ional": "JJ", "ish": "JJ", "est": "JJS",
}  # fmt: skip
CONTRACTIONS = ("n't", "'s", "'re", "'ve", "'ll", "'d", "'m", "'")
BEFORE_NOUN = ("DT", "PRP$", "WP$", "JJ", "JJR", "JJS", "CD", "POS", "IN", "'s")
BEFORE_BASE = ("TO", "MD", "n't", "'ll")
SUBJECTS = ("PRP", "NN", "NNS", "NNP", "WP", "WDT")
BEFORE_ARGUMENT = ("DT", "PRP", "PRP$", "IN", "TO", "CC", "WP", "WRB")


def tag_by_rules(sentences: Sequence[Sequence[str]]) -> list[list[str]]:
    """A tag for each word of each sentence.

    A contraction is one word, whose tag is its ending ("n't", "'s"), so that it can only be replaced by its like.
    """
    return [_tag_sentence(words) for words in sentences]


def tag_with_nltk(sentences: Sequence[Sequence[str]]) -> list[list[str]]:
    """The same by NLTK's averaged perceptron; UserError when the package or its data is not installed."""
    fix = "or set augmentation.sampling.pos_tagger to rules"
    try:
        from nltk import pos_tag_sents

        tagged = pos_tag_sents(sentences)
    except ImportError:
        message = f"the package nltk is not installed; `pip install nltk` and `python -m nltk.downloader {NLTK_DATA}`"
        raise UserError(f"augmentation.sampling.pos_tagger: nltk: {message}, {fix}") from None
    except LookupError:
        message = f"its data is not installed; `python -m nltk.downloader {NLTK_DATA}`"
        raise UserError(f"augmentation.sampling.pos_tagger: nltk: {message}, {fix}") from None
    return [[tag for _, tag in sentence] for sentence in tagged]


TAGGERS: dict[str, Tagger] = {"rules": tag_by_rules, "nltk": tag_with_nltk}


def _tag_sentence(words: Sequence[str]) -> list[str]:
    lowered = [word.lower() for word in words]
    tags: list[str] = []
    for index, word in enumerate(words):
        following = lowered[index + 1] if index + 1 < len(words) else ""
        shape = _tag_by_shape(word, is_first=index == 0)
        tags.append(shape or _tag_by_context(lowered[: index + 1], tags, following))
    return tags


def _tag_by_shape(word: str, *, is_first: bool) -> str | None:
    """What digits, apostrophes and capitals alone decide."""
    plain = word.lower().replace("’", "'")
    if any(character.isdigit() for character in word):
        return "CD"
    if ending := next((ending for ending in CONTRACTIONS if plain.endswith(ending)), None):
        return ending
    if word[0].isupper() and not is_first and plain not in TAG_OF:
        return "NNP"
    return None


def _tag_by_context(words: list[str], tags: list[str], following: str) -> str:
    """The tag of the last of `words`, all in small letters; `tags` are those of the words before it."""
    word = words[-1]
    before, tag_before = _last_but_adverbs(words[:-1], tags)
    if word in AMBIGUOUS:
        return AMBIGUOUS[word](tag_before, following)
    if word in TAG_OF:
        return TAG_OF[word]
    if word in PAST_OR_PARTICIPLE and not (word in VERBS and tag_before in (*BEFORE_BASE, *BEFORE_NOUN)):
        return "VBN" if before in BE | HAVE or before.endswith("'ve") else "VBD"
    if word in VERBS:
        is_question = tag_before in SUBJECTS and len(words) > 2 and (words[-3] in DO or tags[-2] == "MD")
        return _verb_or_noun(tag_before, is_base=is_question or before in DO)
    return _tag_by_ending(word, before, tag_before, following)


def _last_but_adverbs(words: list[str], tags: list[str]) -> tuple[str, str]:
    """The nearest word that is no adverb, and its tag; empty at the start of a sentence."""
    pairs = zip(reversed(words), reversed(tags), strict=True)
    return next(((word, tag) for word, tag in pairs if tag != "RB"), ("", ""))


def _verb_or_noun(tag_before: str, *, is_base: bool) -> str:
    if is_base or tag_before in BEFORE_BASE:
        return "VB"
    if tag_before in BEFORE_NOUN:
        return "NN"
    return "VBP" if tag_before in SUBJECTS else "VB"


def _tag_by_ending(word: str, before: str, tag_before: str, following: str) -> str:
    if word.endswith("ing") and len(word) > 4:
        return "NN" if tag_before in ("DT", "PRP$", "JJ") else "VBG"
    if word.endswith("ed") and len(word) > 3:
        if tag_before in ("DT", "PRP$"):
            return "JJ"
        return "VBN" if before in BE | HAVE or following == "by" else "VBD"
    if len(word) > 4 and (ending := next((ending for ending in ENDINGS if word.endswith(ending)), None)):
        return ENDINGS[ending]
    if word.endswith("er") and _adjective_of(word.removesuffix("er")):
        return "JJR"
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return _plural_or_third_person(word, tag_before, following)
    # an unknown word: most are nouns, but none stands alone behind to or a modal
    return "VB" if tag_before in BEFORE_BASE else "NN"


def _adjective_of(stem: str) -> bool:
    """Whether a comparative's stem is a known adjective: tall(er), happi(er), bigg(er), larg(er)."""
    stems = (stem, stem.removesuffix("i") + "y", stem[:-1], stem + "e")
    return any(TAG_OF.get(form) == "JJ" for form in stems)


def _plural_or_third_person(word: str, tag_before: str, following: str) -> str:
    if tag_before in BEFORE_NOUN:
        return "NNS"
    stems = (word[:-1], word.removesuffix("es"), word.removesuffix("ies") + "y")
    is_verb = any(stem in VERBS for stem in stems)
    takes_argument = not following or TAG_OF.get(following) in BEFORE_ARGUMENT
    if tag_before in SUBJECTS and tag_before != "NNS" and (is_verb or takes_argument):
        return "VBZ"
    return "NNS"


def _starts_noun_phrase(following: str) -> bool:
    return bool(following) and TAG_OF.get(following, "NN") in ("NN", "NNS", "JJ", "CD", "RBS")


AMBIGUOUS: dict[str, Callable[[str, str], str]] = {
    "her": lambda before, following: "PRP$" if _starts_noun_phrase(following) else "PRP",
    "there": lambda before, following: "EX" if following in BE or TAG_OF.get(following) == "MD" else "RB",
    "that": lambda before, following: (
        "WDT" if before.startswith("NN") else "IN" if before.startswith(("V", "J")) else "DT"
    ),
    "like": lambda before, following: "VB" if before in BEFORE_BASE else "VBP" if before in ("PRP", "NNS") else "IN",
    "have": lambda before, following: "VB" if before in BEFORE_BASE else "VBP",
    "do": lambda before, following: "VB" if before in BEFORE_BASE else "VBP",
}
