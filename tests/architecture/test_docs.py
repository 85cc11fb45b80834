"""The documentation keeps its word: figures are up to date, links lead somewhere, commands exist."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

from benchmarks import models_page, page
from loadmaster.api.cli.app import parser
from loadmaster.errors import how_to_install
from tests.architecture.sources import ROOT

PAGES = sorted(
    path
    for pages in ("*.md", "docs/*.md", "examples/*.md", "benchmarks/*.md", "benchmarks/notes/*.md")
    for path in ROOT.glob(pages)
)
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def test_the_page_of_benchmarks_is_up_to_date() -> None:
    written = page.PAGE.read_text("utf-8")
    assert written == page.render(page.load()), "run: python -m benchmarks.page"


def test_the_page_of_models_is_up_to_date() -> None:
    results = map(models_page.load, (models_page.RESULT, models_page.SWEEP))
    assert models_page.PAGE.read_text("utf-8") == models_page.render(*results), "run: python -m benchmarks.models_page"


def test_benchmark_tables_have_six_columns_at_most() -> None:
    rows = [line for line in page.PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    assert rows and max(row.count(" | ") for row in rows) < 6


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    missing = [link for link in LINK.findall(path.read_text("utf-8")) if not (path.parent / link).exists()]
    assert missing == []


def commands() -> list[tuple[str, str]]:
    """Every ``loadmaster ...`` line of the code blocks."""
    found = []
    for path in PAGES:
        for block in re.findall(r"```(?:bash|console|sh)\n(.*?)```", path.read_text("utf-8"), re.S):
            lines = block.replace("\\\n", " ").splitlines()
            found += [
                (path.name, line.removeprefix("$ "))
                for line in lines
                if line.removeprefix("$ ").startswith("loadmaster ")
            ]
    return found


@pytest.mark.parametrize(("page", "line"), commands())
def test_shown_commands_are_understood(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    words = words[: next((n for n, w in enumerate(words) if w in ("|", ">", "&", "&&")), len(words))]
    if words[0] == "capture":
        return
    try:
        parser().parse_args(words)
    except SystemExit as end:
        # Flags such as --list and --help answer at once.
        assert end.code == 0


def imports() -> list[tuple[str, str, str]]:
    """(page, module, name) of every ``from loadmaster... import ...`` line of the Python blocks."""
    found = []
    for path in PAGES:
        for block in re.findall(r"```python\n(.*?)```", path.read_text("utf-8"), re.S):
            for module, names in re.findall(r"^from (loadmaster\S*) import (.+)$", block, re.M):
                found += [(path.name, module, name.strip()) for name in names.split(",")]
    return found


@pytest.mark.parametrize(("page", "module", "name"), imports())
def test_shown_imports_work(page: str, module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


def test_the_command_that_installs_stands_in_one_place_of_the_code() -> None:
    having = [path for path in ROOT.glob("loadmaster/**/*.py") if "pip install" in path.read_text("utf-8")]
    assert having == [ROOT / "loadmaster/errors.py"]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_install_extras_as_messages_do(path: Path) -> None:
    commands = re.findall(r"pip install ['\"]?([^'\"`\s]+)\[", path.read_text("utf-8"))
    assert {*commands} <= {"."}, how_to_install("solver")
