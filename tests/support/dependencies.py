"""Which modules a stage script uses, read from its imports; `python -m tests.support.dependencies` prints them."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"


def used_modules(script: Path) -> set[str]:
    """The files under src/tinybert that `script` imports, itself or through others, as paths from the root."""
    found: set[Path] = set()
    waiting = [script]
    while waiting:
        for file in imported_files(waiting.pop()) - found:
            found.add(file)
            waiting.append(file)
    return {str(file.relative_to(ROOT)) for file in found}


def imported_files(script: Path) -> set[Path]:
    """The project's files that `script` itself imports, at the top or inside functions, not for types only."""
    names: set[str] = set()
    for node in runtime_nodes(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    files = {SRC / (name.replace(".", "/") + ".py") for name in names if name.startswith("tinybert.")}
    return {file for file in files if file.is_file()}


def runtime_nodes(tree: ast.AST):
    """All nodes but those under `if TYPE_CHECKING:`."""
    if isinstance(tree, ast.If) and isinstance(tree.test, ast.Name) and tree.test.id == "TYPE_CHECKING":
        return
    yield tree
    for child in ast.iter_child_nodes(tree):
        yield from runtime_nodes(child)


if __name__ == "__main__":
    for stage in sorted((ROOT / "stages").glob("[a-z]*.py")):
        print(f"{stage.stem}:", *sorted(used_modules(stage)), sep="\n  - ")
