"""The site of the documentation: built without a broken link, with every public name, and nothing from elsewhere."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

pytest.importorskip("mkdocs")
pytest.importorskip("material")
pytest.importorskip("mkdocstrings")

pytestmark = pytest.mark.slow

# What CONTRIBUTING.md calls public.
PUBLIC = ("loadmaster", "loadmaster.executor", "loadmaster.executor.graph", "loadmaster.executor.collective")
# One assignment makes them all, which readers of sources do not follow.
MADE_TOGETHER = {"elu", "exp", "gelu", "log", "relu", "sigmoid", "tanh"}
BREAK = """
def on_page_markdown(markdown, page, config, files):
    return markdown + "[a page](docs/nowhere.md) [a place](docs/models.md#nowhere)"
"""


def build(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As `make docs` does."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build("--site-dir", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_in_the_reference(site: Path, package: str) -> None:
    page = (site / "reference" / f"{package}.html").read_text("utf-8")
    # The module ``fn`` has a page of its own.
    pages = page + (site / "reference" / "loadmaster.executor.graph.fn.html").read_text("utf-8")
    names = {*importlib.import_module(package).__all__} - MADE_TOGETHER
    assert {name for name in names if f'id="{package}.{name}"' not in pages} == set()


def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//|<link[^>]+rel="stylesheet"[^>]+href="https?:')
    assert [page.name for page in site.rglob("*.html") if loaded.search(page.read_text("utf-8"))] == []


def test_what_pages_link_to_comes_along(site: Path) -> None:
    links = re.findall(r'href="(?!https?://|#|mailto:)([^"#]+)', (site / "index.html").read_text("utf-8"))
    assert "loadmaster/planner/__init__.py" in links
    assert [link for link in links if not (site / link).exists()] == []


def test_broken_links_and_anchors_fail_it(tmp_path: Path) -> None:
    (tmp_path / "break.py").write_text(BREAK)
    hooks = f"[{ROOT / 'docs/site/hook.py'}, {tmp_path / 'break.py'}]"
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: {ROOT / 'docs'}\nhooks: {hooks}\n")
    done = build("--config-file", str(config), "--site-dir", str(tmp_path / "site"))
    assert done.returncode != 0
    assert "contains a link 'docs/nowhere.md'" in done.stderr
    assert "docs/models.md#nowhere" in done.stderr
