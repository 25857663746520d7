"""The packages form layers: each imports only from layers below it."""

import ast

import pytest

from tests.support.root import ROOT
from tinybert.pipeline.code_digest import imported_modules

PACKAGE = ROOT / "src/tinybert"
LAYERS = (
    ("pipeline",),
    ("config", "synthetic"),
    ("models",),
    ("data",),
    ("distill",),
    ("evaluate",),
    ("augment", "compress"),
    ("report",),
    ("stage.py", "cli.py", "source_checks.py", "estimate.py"),
    ("training.py", "api.py"),
    ("cut.py",),
)
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


def place(path):
    """The package of a module, or the file name of a module at the top."""
    return path.relative_to(PACKAGE).parts[0]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downward(module):
    level = {name: number for number, names in enumerate(LAYERS) for name in names}
    for other in imported_modules(module):
        is_own = place(other) == place(module)
        assert is_own or level[place(other)] < level[place(module)], f"{module.name} imports {other.name}"


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_import_for_types_only(module):
    assert "TYPE_CHECKING" not in module.read_text()


def test_no_two_modules_share_a_name():
    names = [path.name for path in MODULES]
    assert sorted(set(names)) == sorted(names)


def test_size_of_functions_and_parameter_lists():
    scripts = [path for path in (ROOT / "stages").glob("*.py")]
    for path in [*MODULES, *scripts]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = [
                    argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                ]
                where = f"{path.name}:{node.lineno} {node.name}"
                assert node.end_lineno - node.lineno < 60, where
                assert len([name for name in arguments if name not in ("self", "cls")]) <= 6, where


def test_the_tree_does_not_grow():
    """The goal is 9,000 lines in 80 modules; lower these bounds whenever the tree shrinks."""
    files = [path for folder in ("src", "stages") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) <= 92
    assert sum(len(path.read_text().splitlines()) for path in files) <= 14_600
