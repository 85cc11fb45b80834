"""Sources are cited by a key of docs/references.md, and by nothing that a reader cannot find."""

from __future__ import annotations

import re

from tests.architecture.sources import PACKAGE, ROOT

CITED = re.compile(r"\[([A-Z][A-Za-z]+\d\d)\]")
TEXTS = sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("tests/**/*.py")])


def keys() -> set[str]:
    return set(re.findall(r"^\| \[(\w+)\] \|", (ROOT / "docs" / "references.md").read_text("utf-8"), re.M))


def test_every_cited_key_is_listed() -> None:
    unknown = {(path.name, key) for path in TEXTS for key in CITED.findall(path.read_text("utf-8"))}
    assert {(name, key) for name, key in unknown if key not in keys()} == set()


def test_no_source_is_cited_by_the_name_of_a_file() -> None:
    named = [path.name for path in TEXTS if re.search(r"\b\d{3}_[0-9a-f]{16}\b", path.read_text("utf-8"))]
    assert named == []
