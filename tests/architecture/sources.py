"""The source files of the package, parsed, for the tests of the house."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "loadmaster"


@dataclass(frozen=True)
class Source:
    """One module of the package."""

    name: str
    path: Path
    tree: ast.Module

    def imports(self) -> Iterator[tuple[int, str]]:
        """(line, module) of everything imported anywhere in the file, also inside functions."""
        for node in nodes(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name
            elif isinstance(node, ast.ImportFrom):
                yield node.lineno, "." * node.level + (node.module or "")


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """List all nodes of a tree. Walking the package's takes seconds, and many tests look at all of it."""
    return tuple(ast.walk(tree))


@cache
def sources() -> tuple[Source, ...]:
    """Every module of the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Source(name, path, ast.parse(path.read_text("utf-8"), filename=str(path))))
    return tuple(found)
