"""Small files that say what they are for, links that point right, formulations that list their constraints."""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

from tests.architecture.sources import ROOT, Source, nodes, sources

LONGEST = 400
# Path below the package -> why it may be longer. Keep this empty if you can.
LONGER_WITH_REASON: dict[str, str] = {}
# Words that need what came before them.
NO_OPENINGS = {"Of", "What", "Whether", "Those", "Where", "How", "That"}
# A constraint opens with its number in brackets, and closes (perhaps lines later) with a dash and its functions.
NUMBER = re.compile(r"^\s*\([A-Z]?\d[^)]*\)", re.M)
ADDED_BY = re.compile(r"\s-\s(`\w+`(?:,\s*`\w+`)*)\.?\s*$", re.M)


def test_no_file_is_longer_than_one_idea() -> None:
    lengths = {s.path.relative_to(ROOT).as_posix(): len(s.path.read_text("utf-8").splitlines()) for s in sources()}
    too_long = {path: n for path, n in lengths.items() if n > LONGEST and path not in LONGER_WITH_REASON}
    assert too_long == {}
    assert [path for path in LONGER_WITH_REASON if lengths.get(path, 0) <= LONGEST] == []


def test_no_two_tests_share_a_file_name() -> None:
    """Pytest imports a test by the name of its file alone, and gives up at the second of one name."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, files in names.items() if files > 1] == []


def test_every_module_says_what_it_is_for() -> None:
    assert [s.name for s in sources() if s.tree.body and not ast.get_docstring(s.tree)] == []


def test_the_first_sentence_of_a_docstring_stands_by_itself() -> None:
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [(s.name, ast.get_docstring(n)) for s in sources() for n in nodes(s.tree) if isinstance(n, described)]
    assert [(name, text) for name, text in texts if text and text.split()[0].strip(",:;") in NO_OPENINGS] == []


@pytest.mark.parametrize("floor", ["planner", "models", "solvers", "api", "executor"])
def test_every_floor_is_one_step_from_the_door(floor: str) -> None:
    link = ROOT / floor
    assert link.is_symlink()
    assert link.readlink().as_posix() == f"loadmaster/{floor}"
    assert link.is_dir()


def constraints(source: Source) -> list[str]:
    """Functions that a module's docstring names beside its numbered constraints."""
    text = ast.get_docstring(source.tree) or ""
    if not NUMBER.search(text):
        return []
    return [name for names in ADDED_BY.findall(text) for name in re.findall(r"`(\w+)`", names)]


def with_neighbours(source: Source) -> list[Source]:
    """A module and those of its own kind that it imports: base classes live there."""
    package = source.name.rpartition(".")[0]
    wanted = {module for _, module in source.imports() if module.startswith(f"{package}.")}
    return [source, *(s for s in sources() if s.name in wanted)]


def functions(source: Source) -> set[str]:
    return {node.name for node in nodes(source.tree) if isinstance(node, ast.FunctionDef)}


def called(source: Source) -> set[str]:
    calls = [node.func for node in nodes(source.tree) if isinstance(node, ast.Call)]
    return {f.attr if isinstance(f, ast.Attribute) else f.id for f in calls if isinstance(f, ast.Attribute | ast.Name)}


def test_the_stated_constraints_are_the_ones_in_the_code() -> None:
    formulations = {source: constraints(source) for source in sources() if constraints(source)}
    assert formulations, "no formulation states its constraints"
    for source, stated in formulations.items():
        known = set().union(*(functions(s) for s in with_neighbours(source)))
        assert set(stated) <= known, f"{source.name} states constraints that nothing adds"
        used = set().union(*(called(s) for s in with_neighbours(source)))
        assert set(stated) <= used, f"{source.name} states constraints that it never adds"


def test_no_module_hides_what_its_package_exports() -> None:
    """The first import of a module sets its name on the package: a public name that is the same would be gone.

    A package that imports the module itself has had that first import, and binds its own name after it.
    """
    hidden = []
    for source in sources():
        if source.path.name != "__init__.py":
            continue
        exported = next((ast.literal_eval(n.value) for n in source.tree.body if _assigns_all(n)), [])
        names = {path.stem for path in source.path.parent.iterdir() if path.suffix == ".py" or path.is_dir()}
        own = {module for _, module in source.imports()}
        hidden += [f"{source.name}.{n}" for n in exported if n in names and f"{source.name}.{n}" not in own]
    assert hidden == []


def _assigns_all(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
