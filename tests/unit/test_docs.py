"""docs/paper_map.md names files, functions, tables and tests that exist."""

import ast
import re
from pathlib import Path

import pytest

from tests.support.root import ROOT

PAPER_MAP = (ROOT / "docs/paper_map.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)(?::([\w.]+))?`", PAPER_MAP)))


def source_of(path: str) -> Path:
    """Functions are below src/tinybert, tests below tests/unit."""
    return ROOT / ("tests/unit" if Path(path).name.startswith("test_") else "src/tinybert") / path


def definitions(path: Path) -> set[str]:
    """Functions, classes and annotated tables of a module, and methods as Class.method."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.AnnAssign):
            found.add(ast.unparse(node.target))
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_paper_map_names_what_exists(path, name):
    assert source_of(path).is_file(), f"docs/paper_map.md names {path}, which does not exist"
    assert not name or name in definitions(source_of(path)), f"{path} has no {name}"


def test_every_row_of_the_paper_map_has_function_and_test():
    rows = [line for line in PAPER_MAP.splitlines() if line.startswith("| ") and not line.startswith("| source")]
    assert len(rows) >= 30
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 5, row
        assert re.search(r"\.py:\w", cells[2]) and re.search(r"test_\w+\.py:test_", cells[4]), row
