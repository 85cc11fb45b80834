"""How the compiled library is found: made once, kept, and done without where it cannot be made."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadmaster.executor import compiled_library, compiling
from loadmaster.executor.index import Index, building, native


@pytest.fixture(scope="session")
def library_bytes() -> bytes:
    found = native.library()
    if found is None:
        pytest.skip("there is no C++ compiler here")
    return Path(found._name).read_bytes()


@pytest.fixture(autouse=True)
def looked_for_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A cache folder of its own, and no library found before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    native._loaded.cache_clear()
    yield
    native._loaded.cache_clear()


@pytest.fixture
def compiled(library_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What was compiled, in no time."""
    made: list[Path] = []

    def compile_library(target: Path) -> None:
        made.append(target)
        target.write_bytes(library_bytes)

    monkeypatch.setattr(building, "compile_library", compile_library)
    return made


def test_it_is_made_once_and_kept(compiled: list[Path], tmp_path: Path) -> None:
    for _ in range(3):
        native._loaded.cache_clear()
        assert native.library() is not None
    assert compiled == list(tmp_path.rglob(building.LIBRARY_NAME))
    assert len(compiled) == 1
    assert Index([1], [2]).facts().implementation == "compiled"


def test_where_nothing_can_be_kept_it_is_made_all_the_same(
    compiled: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert native.library() is not None
    assert len(compiled) == 1 and not compiled[0].exists()


@pytest.mark.parametrize(
    ("compiler", "words"),
    [
        ("", "there is no C\\+\\+ compiler"),
        ("false", "false failed"),
        ("cat", "cat failed"),
        ("'c++", 'CXX="\'c\\+\\+" is not a command: No closing quotation'),
    ],
)
def test_without_it_the_log_says_once_why(
    compiler: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if compiler:
        monkeypatch.setenv("CXX", compiler)
    else:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CXX", raising=False)
    with caplog.at_level(logging.WARNING):
        for n in range(3):
            assert Index([1], [n]).facts().implementation == "numpy"
    (message,) = (r.getMessage() for r in caplog.records if r.name.startswith("loadmaster.executor"))
    assert "runs in numpy" in message
    assert re.search(words, message)


def test_a_blank_compiler_is_none_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", " ")
    named = compiling.compiler()
    monkeypatch.delenv("CXX")
    assert named == compiling.compiler()


def test_a_damaged_library_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(compiled_library, "compiler", lambda: ["c++"])
    monkeypatch.setattr(building, "compile_library", lambda target: target.write_bytes(b"no library"))
    assert native.library() is None
    assert "runs in numpy" in caplog.text


def test_other_sources_have_another_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = building.fingerprint()
    (tmp_path / "index.cpp").write_text("int one();")
    monkeypatch.setattr(building, "SOURCES", tmp_path)
    first = building.fingerprint()
    (tmp_path / "index.cpp").write_text("int two();")
    assert len({before, first, building.fingerprint()}) == 3
