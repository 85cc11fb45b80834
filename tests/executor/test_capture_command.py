"""``capture`` finds the command of the kind that it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from loadmaster.executor.capture_command import main
from loadmaster.models.kinds import KINDS


def note(arguments: Sequence[str]) -> int:
    """A kind's command: ends with the number of its arguments."""
    return len(arguments)


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    own = replace(KINDS["collective"], name="own", capture=f"{__name__}:note")
    monkeypatch.setitem(KINDS, "own", own)


@pytest.mark.parametrize(
    "arguments",
    [["m:f", "own"], ["m:f", "own", "--help"], ["--name", "memory", "m:f", "own"], ["--at", "a:b", "m:f", "own", "-x"]],
)
def test_the_kind_follows_the_factory(arguments: list[str]) -> None:
    assert main(arguments) == len(arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "required"),
        (["m:f"], "required"),
        (["m:f", "collective"], "choose from 'memory', 'own'"),
        (["m:f", "cargo"], "choose from 'memory', 'own'"),
        (["mf", "own"], "one after the other"),
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
