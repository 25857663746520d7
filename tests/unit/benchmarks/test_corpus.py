"""What the corpus benchmark prints, on texts of one and two MB, and its rules by hand."""

import re
from pathlib import Path

import pytest

from benchmarks import corpus


def test_two_steps_on_two_texts_and_the_ratio(capsys):
    corpus.main(["--small-mb", "1", "--large-mb", "2"])
    header, *table, last = capsys.readouterr().out.splitlines()
    assert "usable CPUs" in header
    rows = [re.fullmatch(r"(\w+) +(\d) MB +[\d.]+ s +[\d.]+ MB/s +(\d+) MiB", line).groups() for line in table]
    assert [row[:2] for row in rows] == [("filter", "1"), ("tokenize", "1"), ("filter", "2"), ("tokenize", "2")]
    assert all(10 < int(peak) < 500 for *_, peak in rows)
    assert 0.5 < float(re.fullmatch(r"ratio (\d\.\d{3})", last)[1]) < 2


def test_a_peak_above_the_limit_is_an_error(monkeypatch):
    monkeypatch.setattr(corpus, "measure_text", lambda folder, size_mb: {100: 200.0, 1000: 2049.0}[size_mb])
    with pytest.raises(SystemExit, match=r"^peak memory: 2049 MiB; at most 2048 MiB are allowed$"):
        corpus.main([])


def hold_memory(folder: Path) -> None:
    assert len(b"x" * 200 * 2**20) == 200 * 2**20


def fail(folder: Path) -> None:
    raise OSError("the disk is full")


def test_peak_memory_is_that_of_the_step(tmp_path):
    _, peak_mib = corpus.measure(hold_memory, tmp_path)
    assert 200 < peak_mib < 500


def test_a_step_that_fails_ends_the_benchmark(tmp_path):
    with pytest.raises(OSError, match="the disk is full"):
        corpus.measure(fail, tmp_path)


def test_texts_have_the_size_and_distinct_titles(monkeypatch):
    monkeypatch.setattr(corpus, "DISTINCT_BYTES", 20_000)
    found = list(corpus.generated_text(70_000))
    sizes = [len(article["text"].encode()) for article in found]
    assert sum(sizes[:-1]) < 70_000 <= sum(sizes)
    assert len({article["title"] for article in found}) == len(found)
    distinct = {article["text"] for article in found}
    assert 20_000 <= sum(len(each.encode()) for each in distinct) < 22_000
