"""Tables as text."""

from tinybert.report.table import Table, as_markdown, as_text, count, fixed, percent, score


def test_numbers():
    assert [fixed(12.345, 1), fixed(None, 1), score(0.5), count(14350248)] == ["12.3", "–", "0.500", "14,350,248"]
    assert [percent(0.9681), percent(None)] == ["96.8 %", "–"]


def test_text_is_aligned_names_left_numbers_right():
    table = Table("Scores", ("task", "score"), [("cola", "0.5"), ("rte", "10.25")])
    assert as_text(table) == "Scores\ntask  score\ncola    0.5\nrte   10.25\n"


def test_text_shortens_the_longest_name_to_fit():
    table = Table("Scores", ("task", "student", "score"), [("cola", "s" * 40, "0.5"), ("mrpc", "t", "0.25")], names=2)
    lines = as_text(table, width=20).splitlines()
    assert lines[2] == "cola  ssssss…    0.5"
    assert max(map(len, lines)) == 20


def test_markdown_escapes_what_would_break_the_table():
    table = Table("Terms", ("term", "found"), [("a|b\nc <i>", "3")], note="A note.")
    assert as_markdown(table) == (
        "## Terms\n\n| term | found |\n| --- | ---: |\n| a\\|b c &lt;i> | 3 |\n\nA note.\n"
    )  # fmt: skip
