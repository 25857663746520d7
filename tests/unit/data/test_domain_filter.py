"""The filter's rule and its counts, by hand."""

import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tinybert.data.domain_filter import FilterStatistics, filter_file
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_jsonl, write_jsonl

REAL = Path(__file__).parents[4] / "shared" / "real"

SUBJECTS = {"history": ("war", "king"), "geography": ("river", "capital")}


def settings(**changes):
    values = {"subjects": SUBJECTS, "matching": "whole_word", "ignore_case": True, "min_hits": 1}
    return SimpleNamespace(**(values | {"min_hits_per_1000_words": 0.0} | changes))


def kept(texts, **changes) -> tuple[list[str], FilterStatistics]:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "all.jsonl"), Path(folder, "kept.jsonl")
        write_jsonl(source, ({"title": "war king river", "text": text} for text in texts))
        statistics = filter_file(source, target, settings(**changes))
        return [document["text"] for document in read_jsonl(target)], statistics


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
    assert statistics.as_dict() == {
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


def test_terms_that_overlap_or_contain_each_other_are_all_counted():
    subjects = {"a": ("king", "king of spain", "spain"), "b": ("King",)}
    _, statistics = kept(["the king  of\nSpain", "a king", "kingdom of spain"], subjects=subjects, min_hits=2)
    found = {name: tally.found for name, tally in statistics.terms.items()}
    assert found == {("a", "king"): 2, ("a", "king of spain"): 1, ("a", "spain"): 2, ("b", "King"): 2}
    assert statistics.documents.kept == 1  # two places where a term begins: king..., spain


def test_substring_terms_inside_others_are_counted():
    subjects = {"a": ("warfare", "war", "far")}
    _, statistics = kept(["biological warfares"], subjects=subjects, matching="substring")
    assert {term: tally.found for (_, term), tally in statistics.terms.items()} == {"warfare": 1, "war": 1, "far": 1}


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


def test_an_empty_corpus_and_an_empty_term_are_told():
    with pytest.raises(UserError, match="the corpus is empty"):
        kept([])
    with pytest.raises(UserError, match=r"filter\.subjects\.a: an empty term"):
        kept(["text"], subjects={"a": (" ",)})


@pytest.mark.parametrize(("processes", "chunk_bytes"), [(1, 1), (1, 300), (2, 1), (2, 300), (3, 1000)])
def test_neither_processes_nor_chunks_change_a_byte(tmp_path, processes, chunk_bytes):
    source = tmp_path / "all.jsonl"
    texts = [f"{text} Straße {number}" for number in range(20) for text in TEXTS]
    write_jsonl(source, ({"title": "é", "text": text} for text in texts))
    alone = filter_file(source, tmp_path / "alone.jsonl", settings(min_hits=2), processes=1)
    statistics = filter_file(
        source, tmp_path / "several.jsonl", settings(min_hits=2), processes=processes, chunk_bytes=chunk_bytes
    )
    assert (tmp_path / "several.jsonl").read_bytes() == (tmp_path / "alone.jsonl").read_bytes()
    assert [document["text"] for document in read_jsonl(tmp_path / "several.jsonl")] == texts[2::5]
    assert statistics.as_dict() == alone.as_dict() and statistics.documents.found == 100
    assert (statistics.most_hits, statistics.highest_density) == (4, 1000 * 4 / 10)


def test_a_broken_line_is_named_with_its_number_in_the_file(tmp_path):
    source = tmp_path / "all.jsonl"
    source.write_text('{"title": "", "text": "war"}\n' * 50 + "no JSON\n")
    for processes in (1, 2):
        with pytest.raises(UserError, match=r"all\.jsonl, line 51: must be a JSON object"):
            filter_file(source, tmp_path / "kept.jsonl", settings(), processes=processes, chunk_bytes=100)
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.skipif(not REAL.is_dir(), reason="../shared/real is absent")
def test_the_published_rule_hardly_selects_among_real_articles(tmp_path):
    from tinybert.data.corpus import documents

    local = SimpleNamespace(files=(str(REAL / "wiki" / "part-000.jsonl.gz"),))
    source = SimpleNamespace(source="local", unit="article", max_documents=300, local=local)
    shares = {}
    write_jsonl(tmp_path / "all.jsonl", documents(source, seed=0))
    terms = {
        "history": ("history", "empire", "war", "ancient", "king", "queen"),
        "geography": ("geography", "river", "mountain", "capital", "population"),
    }
    for matching in ("whole_word", "substring"):
        rule = settings(subjects=terms, matching=matching)
        statistics = filter_file(tmp_path / "all.jsonl", tmp_path / "kept.jsonl", rule)
        shares[matching] = statistics.as_dict()["documents"]["kept_share"]
    assert 0.7 < shares["whole_word"] < shares["substring"] < 1
