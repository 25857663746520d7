"""The filter's rule and its counts, by hand."""

import re
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinybert.data.domain_filter import Rule, filter_file
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_jsonl, write_jsonl

SUBJECTS = {"history": ("war", "king"), "geography": ("river", "capital")}


def settings(**changes):
    values = {"subjects": SUBJECTS, "matching": "whole_word", "ignore_case": True, "min_hits": 1}
    return SimpleNamespace(**(values | {"min_hits_per_1000_words": 0.0} | changes))


def kept(texts, **changes) -> tuple[list[str], dict]:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "all.jsonl"), Path(folder, "kept.jsonl")
        write_jsonl(source, ({"title": "war king river", "text": text} for text in texts))
        statistics = filter_file(source, target, settings(**changes))
        return [document["text"] for document in read_jsonl(target)], statistics


def found_terms(statistics: dict, subject: str) -> dict[str, int]:
    return {term: counts["found"] for term, counts in statistics["subjects"][subject]["terms"].items()}


TEXTS = ["The War was long.", "Some software.", "A river, a RIVER and the king's war.", "Nothing here.", "Kings."]


def test_whole_words_in_any_case_are_hits():
    assert kept(TEXTS)[0] == [TEXTS[0], TEXTS[2]]


def test_a_word_is_whole_at_both_ends():
    assert kept(["a viking", "a king's", "kingly", "the king-maker", "king2"])[0] == ["a king's", "the king-maker"]


def test_substring_matching_also_keeps_software_and_kings():
    assert kept(TEXTS, matching="substring")[0] == [TEXTS[0], TEXTS[1], TEXTS[2], TEXTS[4]]


def test_case_can_matter():
    assert kept(TEXTS, ignore_case=False)[0] == [TEXTS[2]]


def test_counts_are_documents_not_hits():
    _, statistics = kept(TEXTS, min_hits=2)
    assert statistics == {
        "documents": {"found": 5, "kept": 1, "kept_share": 0.2},
        "words": {"found": 4 + 2 + 8 + 2 + 1, "kept": 8, "kept_share": 8 / 17},
        "subjects": {
            "history": {
                "found": 2,
                "kept": 1,
                "kept_share": 0.5,
                "terms": {
                    "war": {"found": 2, "kept": 1, "kept_share": 0.5},
                    "king": {"found": 1, "kept": 1, "kept_share": 1.0},
                },
            },
            "geography": {
                "found": 1,
                "kept": 1,
                "kept_share": 1.0,
                "terms": {
                    "river": {"found": 1, "kept": 1, "kept_share": 1.0},
                    "capital": {"found": 0, "kept": 0, "kept_share": 0.0},
                },
            },
        },
    }


@pytest.mark.parametrize(("least", "expected"), [(4, 1), (5, 0)])
def test_hits_are_counted_as_often_as_they_occur(least, expected):
    texts = [TEXTS[2]]  # river, river, king, war
    if expected:
        assert kept(texts, min_hits=least)[0] == texts
    else:
        with pytest.raises(UserError, match=r"filter\.min_hits is 5 \(at most 4 hits in one document\)"):
            kept(texts, min_hits=least)


def test_density_is_hits_per_1000_words():
    texts = ["war " + "word " * 99, "war " + "word " * 100]  # 10.0 and 9.90 for 1000 words
    assert kept(texts, min_hits_per_1000_words=10.0)[0] == texts[:1]


def test_overlapping_and_nested_terms_are_all_counted():
    subjects = {"a": ("king", "king of spain", "spain"), "b": ("King",)}
    _, statistics = kept(["the king  of\nSpain", "a king", "kingdom of spain"], subjects=subjects, min_hits=2)
    assert found_terms(statistics, "a") == {"king": 2, "king of spain": 1, "spain": 2}
    assert found_terms(statistics, "b") == {"King": 2}
    assert statistics["documents"]["kept"] == 1  # two places where a term begins: king..., spain


def test_substring_terms_inside_others_are_counted():
    subjects = {"a": ("warfare", "war", "far")}
    _, statistics = kept(["biological warfares"], subjects=subjects, matching="substring")
    assert found_terms(statistics, "a") == {"warfare": 1, "war": 1, "far": 1}


def test_terms_are_no_regular_expressions_and_may_end_in_signs():
    subjects = {"a": ("a.c", "c++")}
    assert kept(["abc", "in a.c style", "with C++, too", "c+++d"], subjects=subjects)[0] == [
        "in a.c style",
        "with C++, too",
        "c+++d",
    ]


def test_case_folding_reaches_beyond_ascii():
    assert kept(["DIE STRASSE", "ÉTAT"], subjects={"a": ("straße", "état")})[0] == ["DIE STRASSE", "ÉTAT"]


def test_nothing_kept_names_the_keys_and_what_was_there():
    with pytest.raises(UserError, match=r"none of 1 documents is kept; filter\.min_hits is 1 .*filter\.subjects"):
        kept(["no such term"])
    with pytest.raises(UserError, match=r"of 5 documents .*at most 4 hits in one document.*at most 500\.00"):
        kept(TEXTS, min_hits=5)


def test_an_empty_corpus_is_an_error():
    with pytest.raises(UserError, match="none of 0 documents is kept"):
        kept([])


def test_kept_lines_are_the_bytes_of_the_source(tmp_path):
    source = tmp_path / "all.jsonl"
    write_jsonl(source, ({"title": "é", "text": f"{text} Straße \u2028"} for text in TEXTS))
    filter_file(source, tmp_path / "kept.jsonl", settings(min_hits=2))
    assert (tmp_path / "kept.jsonl").read_bytes() == source.read_bytes().split(b"\n")[2] + b"\n"


def test_a_damaged_corpus_is_one_line_and_leaves_no_file(tmp_path):
    source = tmp_path / "all.jsonl"
    source.write_text('{"title": "", "text": "war"}\n' * 50 + "no JSON\n")
    with pytest.raises(UserError, match=r"all\.jsonl, line 51: must be a JSON object \(got 'no JSON"):
        filter_file(source, tmp_path / "kept.jsonl", settings())
    assert list(tmp_path.iterdir()) == [source]


# --- the same as plain regular expressions on random Unicode text ----------------------------------------------------


def plainly_found(text: str, terms: list[str], rule) -> tuple[int, set[str]]:
    """Hits and the terms that occur, by Python's re alone."""
    fold = str.casefold if rule.ignore_case else str
    edges = (r"(?<!\w)", r"(?!\w)") if rule.matching == "whole_word" else ("", "")
    starts = {}
    for term in terms:
        words = r"\s+".join(map(re.escape, fold(term).split()))
        starts[term] = {match.start() for match in re.finditer(f"{edges[0]}(?={words}{edges[1]})", fold(text))}
    return len(set().union(*starts.values())), {term for term in terms if starts[term]}


TERMS = ["war", "King", "king of spain", "c++", "a.c", ".c", "straße", "état", "of", "ss", "_x", "İ", "warm", "ar"]
PIECES = [*TERMS, "WAR", "KING", "ſ", "ß", "\u212a", "K\u0131ng", "\u0345", "\u0390", "\ufb01",
          "é", "e\u0301", "-", "—", "’", " ", "\n", "\u00a0", "_", "2",
          "²", "३", "字", "\U0001f600", "\U00010400", "s", "k", "x"]  # fmt: skip


@given(
    st.lists(st.lists(st.sampled_from(PIECES) | st.characters(exclude_categories=["Cs"]), max_size=12), min_size=1),
    st.lists(st.sampled_from(TERMS), min_size=1, unique=True),
    st.sampled_from(["whole_word", "substring"]),
    st.booleans(),
)
def test_hits_and_terms_equal_those_of_pythons_re(parts, terms, matching, ignore_case):
    rule = settings(subjects={"a": terms}, matching=matching, ignore_case=ignore_case)
    for text in map("".join, parts):
        hits, counts = Rule(rule)(text)
        assert (hits, {term for term in terms if counts["a", term]}) == plainly_found(text, terms, rule)


@given(st.text(alphabet="ab\t\n\x0b \x1f\u00a0é字", max_size=20))
def test_words_are_counted_as_python_splits_them(text):
    assert Rule(settings())(text)[1]["words"] == len(text.split())
