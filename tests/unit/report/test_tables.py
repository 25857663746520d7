"""Tables as HTML, Markdown and text."""

import math

from tinybert.report.tables import COLLAPSED, Table, count, fixed, percent, signed, spread


def test_numbers():
    assert [fixed(12.345, 1), fixed(None, 1), fixed(math.nan), count(14350248)] == ["12.3", "–", "–", "14,350,248"]
    assert [percent(0.9681), percent(None), percent(math.nan)] == ["96.8 %", "–", "–"]
    assert [spread(0.727, 0.025), spread(0.727, math.nan)] == ["0.727 ± 0.025", "0.727"]
    assert [signed(0.0004), signed(-0.0004), signed(-0.01)] == ["+0.000", "+0.000", "-0.010"]


def test_text_is_aligned_names_left_numbers_right():
    table = Table("Scores", ("task", "score"), [("cola", "0.5"), ("rte", "10.25")])
    assert table.text() == "Scores\ntask      score\ncola        0.5\nrte       10.25\n"


def test_text_wraps_long_cells():
    lines = Table("Scores", ("task", "score"), [("s" * 40, "1,234.5")]).text().splitlines()
    assert max(map(len, lines)) < 40 and "".join(line.split()[0] for line in lines[2:]) == "s" * 40


def test_markdown_escapes_what_would_break_the_table():
    table = Table("Terms", ("term", "found"), [("a|b\nc <i>", "3")], note="A note.")
    head, rule, row, _, note = table.markdown().splitlines()
    assert [cell.strip() for cell in head.split("|")[1:3]] == ["term", "found"]
    assert rule.count(":") == 2 and row.startswith("| a\\|b c &lt;i> |") and note == "A note."


def test_html_escapes_texts_and_marks_flags():
    html = Table("Scores", ("<b>", "flag"), [("<script>", COLLAPSED), ("x" * 200, "&")]).html()
    assert "<script>" not in html and "&lt;script&gt;" in html and "<th>&lt;b&gt;</th>" in html
    assert '<strong class="flag">collapsed</strong>' in html
    assert "x" * 200 in html  # pandas cuts cells by default
