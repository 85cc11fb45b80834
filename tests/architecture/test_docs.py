"""The documentation keeps its word: figures are up to date, links lead somewhere, commands exist."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
from types import ModuleType

import pytest

from loadmaster.api.cli.app import parser
from tests.architecture.sources import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_figures_is_up_to_date() -> None:
    page = tables()
    written = page.PAGE.read_text("utf-8")
    assert written == page.render(page.load()), "run: python benchmarks/tables.py"


def test_every_figure_of_a_result_is_on_the_page() -> None:
    result = {
        "benchmark": "b",
        "command": "python b.py",
        "date": "today",
        "machine": {"cores": 2},
        "plain": 1.5,
        "ours": {"seconds": 3, "ratio": 0.25},
        "theirs": {"seconds": 30, "ratio": 2.5},
        "runs": [{"budget": "5 GiB", "gap": 0.0125}, {"budget": "6 GiB", "gap": None, "note": "a|b"}],
        "deep": {"cases": [{"name": "x", "ok": True}]},
        "timed": [{"size": 8, "eager": {"nccl": {"median_us": 2.5, "q1_us": 2.0, "q3_us": 3.0}}}, {"size": 16}],
    }
    page = tables().render([result])
    for text in ("| plain | 1.5 |", "| ours | 3 | 0.25 |", "| theirs | 30 | 2.5 |", "| 5 GiB | 0.0125 |  |", "a\\|b"):
        assert text in page
    assert "| x | yes |" in page
    assert "| size | eager nccl |\n| --- | --- |\n| 8 | 2.5 us (2 to 3) |\n| 16 |  |" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: object) -> None:
    assert isinstance(page, type(ROOT))
    missing = [link for link in LINK.findall(page.read_text("utf-8")) if not (page.parent / link).exists()]
    assert missing == []


def commands() -> list[tuple[str, str]]:
    """Every ``loadmaster ...`` line of the code blocks."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```(?:bash|console|sh)\n(.*?)```", page.read_text("utf-8"), re.S):
            lines = block.replace("\\\n", " ").splitlines()
            found += [
                (page.name, line.removeprefix("$ "))
                for line in lines
                if line.removeprefix("$ ").startswith("loadmaster ")
            ]
    return found


@pytest.mark.parametrize(("page", "line"), commands())
def test_shown_commands_are_understood(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    words = words[: next((n for n, w in enumerate(words) if w in ("|", ">", "&", "&&")), len(words))]
    if words[0] != "capture":
        parser().parse_args(words)


def imports() -> list[tuple[str, str, str]]:
    """(page, module, name) of every ``from loadmaster... import ...`` line of the Python blocks."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S):
            for module, names in re.findall(r"^from (loadmaster\S*) import (.+)$", block, re.M):
                found += [(page.name, module, name.strip()) for name in names.split(",")]
    return found


@pytest.mark.parametrize(("page", "module", "name"), imports())
def test_shown_imports_work(page: str, module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)
