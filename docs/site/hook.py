"""Hook of MkDocs: pages from the whole repository, and the reference of the public names.

Every page keeps its path of the repository, so that its links work as they do there. A file that a page links to comes
along, and for a package its ``__init__.py``.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = ("*.md", "docs/*.md", "benchmarks/README.md", "benchmarks/notes/*.md", "examples/*.md")
# What CONTRIBUTING.md calls public, then what people meet next to it.
PACKAGES = ("loadmaster", *(f"loadmaster.executor{room}" for room in ("", ".graph", ".collective", ".index")))
MODULES = ("loadmaster.executor.graph.fn", "loadmaster.errors", "loadmaster.api.errors", "loadmaster.api.settings")
# The front page is the site's root, where a README would be.
RENDERED_AS = {"docs/index.md": "index.html", "README.md": "readme.html"}
_LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<target>(?:\.\./)*[\w./-]+)(?:#[^)\s]*)?\)")
_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):<code>(~?)([\w.]+)</code>")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the reference at the end of the menu."""
    config.nav.append({"Reference": [{name: _place(name)} for name in (*PACKAGES, *MODULES)]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Collect the repository's pages, what they link to and the reference, in place of the folder's files."""
    pages = [path.relative_to(ROOT).as_posix() for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    linked = {target for page in pages for target in _targets(page) if target not in pages}
    found = Files([file for file in files if file.src_dir != config.docs_dir])
    for path in (*pages, *sorted(linked)):
        file = File.generated(config, path, abs_src_path=str(ROOT / path))
        file.dest_uri = RENDERED_AS.get(path, file.dest_uri)
        found.append(file)
    for name in (*PACKAGES, *MODULES):
        found.append(File.generated(config, _place(name), content=f"# {name}\n\n::: {name}\n"))
    return found


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to packages lead to a file; other folders are only named."""

    def led(match: re.Match[str]) -> str:
        folder = (ROOT / page.file.src_uri).parent / match["target"]
        if (folder / "__init__.py").is_file():
            return f"[{match['text']}]({match['target'].rstrip('/')}/__init__.py)"
        return match["text"] if folder.is_dir() else match.group()

    return _LINK.sub(led, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the roles by which docstrings name other objects by the name."""
    return _ROLE.sub(lambda m: f"<code>{m[2].rpartition('.')[2] if m[1] else m[2]}</code>", html)


def _place(name: str) -> str:
    return f"reference/{name}.md"


def _targets(page: str) -> list[str]:
    """Files of the repository that a page links to."""
    found = []
    for link in _LINK.finditer((ROOT / page).read_text("utf-8")):
        target = ((ROOT / page).parent / link["target"]).resolve()
        target = target / "__init__.py" if (target / "__init__.py").is_file() else target
        if target.is_file() and target.is_relative_to(ROOT):
            found.append(target.relative_to(ROOT).as_posix())
    return found
