"""The report reads what the stages left: any damage to a file is a line that names it, or does no harm."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup

from tests.support.properties import REFUSED, at, damaged_bytes, outcome, places
from tests.support.report_tree import small_params, write_tree
from tinybert.report import charts
from tinybert.report.page import build_report

pytestmark = pytest.mark.properties


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A tree of metrics; each case puts back what it damages."""
    root = tmp_path_factory.mktemp("root")
    write_tree(root)
    return root


@st.composite
def damage(draw, content: bytes, ending: str) -> bytes:
    """A file cut short or emptied, with conflict marks or NaN in it; a JSON file may also lack a key."""
    kind = draw(st.sampled_from(["cut", "garbage", "missing", "missing", "conflict", "nan"]))
    if ending == ".csv":
        return draw(damaged_bytes(content))
    if kind == "cut":
        return content[: draw(st.integers(0, len(content) - 3))]
    if kind == "garbage":
        return draw(st.sampled_from([b"", b"\0", b"[]", b"null", b"5", b"[" * 100_000, b"\xff", b'"x"']))
    if kind == "conflict":
        return b"<<<<<<< HEAD\n" + content
    tree = json.loads(content)
    *parents, key = draw(st.sampled_from(list(places(tree))))
    if kind == "nan":
        at(tree, tuple(parents))[key] = float("nan")
    elif isinstance(at(tree, tuple(parents)), dict):
        del at(tree, tuple(parents))[key]
    return json.dumps(tree).encode()


@settings(max_examples=settings.default.max_examples // 5)  # a report without pictures takes 0.2 s
@given(st.data())
def test_damaged_files(root, monkeypatch, data):
    monkeypatch.setattr(charts, "svg_of", lambda figure, label: Markup())
    found = (path for path in root.rglob("*") if path.suffix in (".json", ".csv"))
    written = (root / "reports/summary_metrics.json", *(root / "metrics").rglob("*"))
    files = sorted(path for path in found if path not in written)
    path = data.draw(st.sampled_from(files))
    whole = path.read_bytes()
    pages = [root / "reports/index.html", root / "reports/summary.md"]
    for page in pages:
        page.unlink(missing_ok=True)
    try:
        path.write_bytes(data.draw(damage(whole, path.suffix)))
        report = outcome(lambda: build_report(small_params(), root), names=str(path.relative_to(root)))
        assert [page.exists() for page in pages] == [report is not REFUSED] * 2
        assert not [*(root / "reports").glob(".*")]
    finally:
        path.write_bytes(whole)
