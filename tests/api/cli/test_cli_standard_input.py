"""``-`` as the path of a document: standard input, and standard output."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from loadmaster import planner
from loadmaster.api.cli import app
from loadmaster.models.kinds import write_plan
from loadmaster.models.memory.presets import chain
from tests.api.cli.plans_by_hand import MEGABYTE, plan_by_hand

PROBLEM = chain(6, MEGABYTE)
PLAN = plan_by_hand(PROBLEM, 8 * MEGABYTE)


class Keyboard(io.TextIOWrapper):
    """A terminal that nobody types on: to read from it would be to wait for ever."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())

    def isatty(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> str:
        raise AssertionError("a terminal was read")


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a document, or text, on standard input."""

    def put(content: object) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return put


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("problem.json").write_text(json.dumps(PROBLEM))
    Path("plan.json").write_text(json.dumps(write_plan(PLAN)))
    monkeypatch.setattr(planner, "plan", lambda *_arguments, **_callbacks: PLAN)


@pytest.mark.usefixtures("files")
def test_documents_come_from_standard_input(pipe: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for command, document in (
        (["plan", "-", "--budget", "8MB"], PROBLEM),
        (["check", "-", "plan.json"], PROBLEM),
        (["check", "problem.json", "-"], write_plan(PLAN)),
        (["show", "-", "--html", "report.html"], write_plan(PLAN)),  # its problem is beside it, in this folder
        (["show", "plan.json", "--problem", "-"], PROBLEM),
    ):
        pipe(document)
        assert app.main(command) == 0, (command, capsys.readouterr().err)
    assert "</html>" in Path("report.html").read_text()


@pytest.mark.usefixtures("files")
def test_a_pipe_from_command_to_command(pipe: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["new", "memory", "--chain", "6", "--activation-bytes", "1MB", "-o", "-"]) == 0
    pipe(capsys.readouterr().out)
    assert app.main(["plan", "-", "--budget", "8MB", "-o", "-"]) == 0
    pipe(capsys.readouterr().out)
    assert app.main(["check", "problem.json", "-"]) == 0
    assert capsys.readouterr().out.startswith("passed")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "command", [["plan", "-"], ["check", "-", "plan.json"], ["show", "-"], ["frontier", "-"], ["submit", "-"]]
)
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "is a terminal, with nothing on it"),
        ("", "standard input is empty"),
        ("{", "standard input is not JSON"),
        ("[]", "standard input is no JSON object"),
    ],
)
def test_nothing_to_read_is_said(
    command: list[str],
    content: str | None,
    says: str,
    pipe: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if content is None:
        monkeypatch.setattr(sys, "stdin", Keyboard())
    else:
        pipe(content)
    assert app.main(command) == 2
    said = capsys.readouterr().err
    assert says in said and "Pipe a JSON document into it" in said


@pytest.mark.usefixtures("files")
def test_two_documents_do_not_come_from_one_input(pipe: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["check", "-", "-"], ["show", "-", "--problem", "-"]):
        pipe(write_plan(PLAN))
        assert app.main(command) == 2
        assert "cannot be standard input too" in capsys.readouterr().err
