"""``capture`` finds the command of the kind that it is asked for."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from loadmaster.executor.capture_command import main
from loadmaster.models.kinds import KINDS

given: list[tuple[str, ...]] = []


def note(arguments: Sequence[str]) -> int:
    """A kind's command: it was given these."""
    given.append(("own", *arguments))
    return 7


def note_usual(arguments: Sequence[str]) -> int:
    """Another's."""
    given.append(("usual", *arguments))
    return 8


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in list(KINDS.items()):
        monkeypatch.setitem(KINDS, name, replace(kind, capture=None))
    own = replace(KINDS["collective"], name="own", capture=f"{__name__}:note")
    monkeypatch.setitem(KINDS, "own", own)
    monkeypatch.setitem(KINDS, "memory", replace(KINDS["memory"], capture=f"{__name__}:note_usual"))
    given.clear()


@pytest.mark.parametrize(
    "arguments",
    [["m:f", "own"], ["m:f", "own", "--help"], ["--name", "memory", "m:f", "own"], ["--at", "a:b", "m:f", "own", "-x"]],
)
def test_the_kind_follows_the_factory(arguments: list[str]) -> None:
    assert main(arguments) == 7
    assert given == [("own", *(word for word in arguments if word != "own"))]


@pytest.mark.parametrize(
    "arguments",
    [
        ["m:f"],
        ["m:f", "-o", "memory"],
        ["m:f", "--help"],
        ["--device", "cuda:0", "m:f"],
        ["--offload", "m:f", "-o", "p"],
    ],
)
def test_without_a_kind_it_is_the_usual_one(arguments: list[str]) -> None:
    assert main(arguments) == 8
    assert given == [("usual", *arguments)]


def test_the_only_kind_is_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "memory", replace(KINDS["memory"], capture=None))
    assert main(["m:f"]) == 7


def test_where_none_is_usual_one_must_be_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(KINDS, "memory", replace(KINDS["memory"], captured_by_default=False))
    with pytest.raises(SystemExit) as end:
        main(["m:f"])
    assert end.value.code == 2
    assert "KIND follows MODULE:FACTORY: one of memory, own" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "required"),
        (["-o", "p.json"], "MODULE:FACTORY is missing"),
        (["m:f", "collective"], "choose from 'memory', 'own'"),
        (["m:f", "cargo"], "choose from 'memory', 'own'"),
        (["mf", "own"], "MODULE:FACTORY is missing"),
    ],
)
def test_what_cannot_be_captured_is_two(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert says in capsys.readouterr().err


def test_the_help_names_the_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert "own" in said and "under a byte budget" in said


def interrupted(*_: object) -> int:
    """A kind's command, in the middle of which somebody presses Ctrl-C."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("command", ["capture_command", "fit_command"])
def test_an_interrupt_ends_the_process_without_a_traceback(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "memory", replace(KINDS["memory"], capture=f"{__name__}:interrupted"))
    monkeypatch.setitem(sys.modules, "loadmaster.executor.memory.fit.command", SimpleNamespace(main=interrupted))
    monkeypatch.delitem(sys.modules, f"loadmaster.executor.{command}", raising=False)
    monkeypatch.setattr(sys, "argv", [command, "m:f"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"loadmaster.executor.{command}", run_name="__main__")
    assert ended.value.code == 130
