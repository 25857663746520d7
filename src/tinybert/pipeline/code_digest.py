"""Digests of the code that each stage runs: DVC reruns a stage only when code changes that can change its result."""

import ast
import hashlib
from functools import cache
from pathlib import Path

import tinybert

PACKAGE = Path(tinybert.__file__).parent
STAGES = PACKAGE.parents[1] / "stages"
DATA = (".yaml", ".txt", ".j2", ".css")  # endings of files beside the modules that read them
# Modules that watch a run or word its errors: no result depends on them.
WITHOUT_RESULT = ("pipeline/errors.py", "pipeline/tracking.py", "pipeline/code_digest.py")


def code_digest(stage: str) -> str:
    """Describes the code of a stage: one line "digest path" for each file that its script imports, directly or not.

    Python counts as its syntax tree without docstrings, comments and texts of errors. Data files beside an imported
    module (word lists, templates) count byte by byte.
    """
    lines = []
    for path in sorted(stage_files(stage)):
        content = normalized(path).encode() if path.suffix == ".py" else path.read_bytes()
        lines.append(f"{hashlib.sha256(content).hexdigest()[:16]} {path.relative_to(STAGES.parent).as_posix()}")
    return "\n".join(lines) + "\n"


def stage_files(stage: str) -> set[Path]:
    """The script of a stage, the modules of the package that it imports, and the data files beside those."""
    script = STAGES / f"{stage}.py"
    found, waiting = {script}, [script]
    while waiting:
        for module in imported_modules(waiting.pop()) - found:
            if module.relative_to(PACKAGE).as_posix() not in WITHOUT_RESULT:
                found.add(module)
                waiting.append(module)
    beside = {path for module in found - {script} for path in module.parent.iterdir()}
    return found | {path for path in beside if path.suffix in DATA}


def imported_modules(path: Path) -> set[Path]:
    """The modules of the package that a Python file imports, at its top or inside its functions."""
    names, _ = _parsed(path.read_text(encoding="utf-8"))
    files = {PACKAGE.parent / (name.replace(".", "/") + ".py") for name in names if name.startswith("tinybert.")}
    return {file for file in files if file.is_file()}


def normalized(path: Path) -> str:
    """The syntax tree of a Python file as text, without what cannot change a result."""
    return _parsed(path.read_text(encoding="utf-8"))[1]


@cache
def _parsed(text: str) -> tuple[set[str], str]:
    """What a Python file imports, and its syntax tree without docstrings and the arguments of raised errors."""
    tree = ast.parse(text)
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            node.exc = node.exc.func
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return names, ast.dump(tree)
