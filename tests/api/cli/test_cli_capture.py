"""``capture`` finds the command of the kind that it is asked for, and runs it in a process of its own."""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from loadmaster.api.cli import app, executing
from loadmaster.api.cli.capture import capture as main
from loadmaster.errors import InputError
from loadmaster.models.kinds import KINDS

OWN, USUAL = "captures:own", "captures:usual"
given: list[list[str]] = []


def run(command: list[str], check: bool) -> Any:
    """As ``subprocess.run``; what runs was given these, and has a status of its own."""
    assert not check
    assert command[:3] == [sys.executable, "-m", "loadmaster.executor.command"]
    given.append(command[3:])
    return SimpleNamespace(returncode={OWN: 7, USUAL: 8}[command[3]])


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in list(KINDS.items()):
        monkeypatch.setitem(KINDS, name, replace(kind, capture=None))
    monkeypatch.setitem(KINDS, "own", replace(KINDS["collective"], name="own", capture=OWN))
    monkeypatch.setitem(KINDS, "memory", replace(KINDS["memory"], capture=USUAL))
    find = executing.importlib.util.find_spec
    monkeypatch.setattr(executing.importlib.util, "find_spec", lambda name: name if name == "torch" else find(name))
    monkeypatch.setattr(executing.subprocess, "run", run)
    given.clear()


@pytest.mark.parametrize(
    "arguments",
    [["m:f", "own"], ["m:f", "own", "--help"], ["--name", "memory", "m:f", "own"], ["--at", "a:b", "m:f", "own", "-x"]],
)
def test_the_kind_follows_the_factory(arguments: list[str]) -> None:
    assert main(arguments) == 7
    assert given == [[OWN, *(word for word in arguments if word != "own")]]


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
    assert given == [[USUAL, *arguments]]


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


def test_without_torch_the_help_is_there_and_a_capture_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(executing.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as end:
        app.main(["capture", "--help"])
    assert end.value.code == 0
    assert app.main(["capture", "m:f", "memory"]) == 2
    assert "pip install '.[torch]'" in capsys.readouterr().err
    assert given == []


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), InputError("field", 1, "is odd", "Give 2.")])
def test_what_ends_the_process_leaves_no_traceback(
    raised: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the middle of the kind's command, or while that imports PyTorch."""

    def ends(_arguments: list[str]) -> int:
        raise raised

    monkeypatch.setitem(sys.modules, "captures", SimpleNamespace(own=ends))
    monkeypatch.delitem(sys.modules, "loadmaster.executor.command", raising=False)
    monkeypatch.setattr(sys, "argv", ["loadmaster.executor.command", OWN, "m:f"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("loadmaster.executor.command", run_name="__main__")
    said = capsys.readouterr().err
    assert (ended.value.code, said) == ((2, f"error: {raised}\n") if isinstance(raised, InputError) else (130, ""))
