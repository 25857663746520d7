"""Tables as HTML, Markdown and text."""

import math

import pandas as pd

from tinybert.report.rendering import COLLAPSED, TextTable, fixed, interval, percent, render, signed, spread, table


def made(*rows, columns, names=1) -> TextTable:
    return TextTable(pd.DataFrame(list(rows), columns=list(columns)), names)


def test_numbers():
    assert [fixed(12.345, 1), fixed(None, 1), fixed(math.nan), fixed(14350248, 0)] == ["12.3", "–", "–", "14,350,248"]
    assert [percent(0.9681), percent(None), percent(math.nan)] == ["96.8 %", "–", "–"]
    assert [spread(0.727, 0.025), spread(0.727, math.nan)] == ["0.727 ± 0.025", "0.727"]
    assert [interval(-0.01, 0.002), interval(math.nan, math.nan)] == ["-0.010 to +0.002", "–"]
    assert [signed(0.0004), signed(-0.0004), signed(-0.01)] == ["+0.000", "+0.000", "-0.010"]


def test_text_is_aligned_names_left_numbers_right():
    shown = made(("cola", "0.5"), ("rte", "10.25"), columns=("task", "score"))
    assert shown.text() == "task      score\ncola        0.5\nrte       10.25"


def test_text_wraps_long_cells():
    lines = made(("s" * 40, "1,234.5"), columns=("task", "score")).text().splitlines()
    assert max(map(len, lines)) < 40 and "".join(line.split()[0] for line in lines[1:]) == "s" * 40


def test_markdown_escapes_what_would_break_the_table():
    head, rule, row = made(("a|b\nc <i>", "3"), columns=("term", "found")).markdown().splitlines()
    assert [cell.strip() for cell in head.split("|")[1:3]] == ["term", "found"]
    assert rule.count(":") == 2 and row.startswith("| a\\|b c \\<i> |")


def test_html_escapes_texts_and_marks_flags():
    html = render("table.html.j2", table=made(("<script>", COLLAPSED), ("x", "&"), columns=("<b>", "flag")))
    assert "<script>" not in html and "&lt;script&gt;" in html and "<th>&lt;b&gt;</th>" in html
    assert '<td class="flag">collapsed</td>' in html and "<td>x</td><td>&amp;</td>" in html


def test_columns_are_formatted_and_names_counted():
    frame = pd.DataFrame({"name": ["a", "b"], "mean": [0.5, math.nan], "std": [0.1, math.nan]})
    columns = {"score": (spread, "mean", "std"), "again": (str, "name"), "nowhere known": (fixed, "none")}
    found = table(frame.assign(none=math.nan), ["name"], columns | {"not in the frame": (fixed, "absent")})
    assert found.cells.values.tolist() == [["a", "0.500 ± 0.100", "a"], ["b", "–", "b"]] and found.names == 1
    assert list(found.without("ag", "x").cells) == ["name", "score"]
