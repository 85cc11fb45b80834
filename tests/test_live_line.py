"""The line of what goes on: in terminals and notebooks unasked, elsewhere only when asked for, and gone afterwards."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

import loadmaster
from loadmaster import live_line
from loadmaster.models.memory.presets import chain
from loadmaster.planner import PlanOptions, PlanProgress


class Terminal(io.StringIO):
    """A stream that somebody looks at."""

    def isatty(self) -> bool:
        return True


class ZMQInteractiveShell:
    """As a notebook's kernel calls its own."""


def looked_at(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error, a terminal from now on. (Set in a fixture, pytest would put its own in place again.)"""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


def left(stream: io.StringIO) -> str:
    """What a reader sees in the end."""
    return stream.getvalue().rpartition("\r")[2].removeprefix("\x1b[2K")


def test_a_terminal_is_told_and_left_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = looked_at(monkeypatch)
    loadmaster.plan(chain(6, 1000), budget_bytes="90%", method="chen")
    assert "bound" in terminal.getvalue()
    assert left(terminal) == ""


@pytest.mark.parametrize("changes", [{"progress": False}, {"on_progress": lambda _: None}])
def test_who_asks_for_silence_or_reads_reports_has_no_line(
    changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = looked_at(monkeypatch)
    loadmaster.plan(chain(6, 1000), budget_bytes="90%", method="chen", **changes)  # type: ignore[arg-type]
    assert terminal.getvalue() == ""


def test_both_where_both_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = looked_at(monkeypatch)
    heard: list[PlanProgress] = []
    loadmaster.frontier(
        chain(6, 1000), PlanOptions(method="chen"), limits=["90%"], on_progress=heard.append, progress=True
    )
    assert heard and heard[0].phase in terminal.getvalue()


def test_nobody_looks_at_a_pipe_unless_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    loadmaster.plan(chain(6, 1000), budget_bytes="90%", method="chen")
    assert pipe.getvalue() == ""
    loadmaster.plan(chain(6, 1000), budget_bytes="90%", method="chen", progress=True)
    assert pipe.getvalue().endswith("\n") and "\r" not in pipe.getvalue()


def test_a_process_without_standard_error_plans_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    for progress in (None, True):
        assert loadmaster.plan(chain(6, 1000), budget_bytes="90%", method="chen", progress=progress).check["ok"]


def test_a_notebook_is_told_without_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=ZMQInteractiveShell))  # type: ignore[arg-type]
    with live_line.line(None) as line:
        line.show("a long line of text")
        line.show("short", begins=True)
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue().split("\r")[2] == "short".ljust(len("a long line of text"))
    assert left(stream) == ""


def test_what_begins_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = looked_at(monkeypatch)
    with live_line.line(None) as line:
        line.show("one", begins=True)
        line.show("two", begins=True)
    assert terminal.getvalue().split("\r\x1b[2K") == ["", "one", "two", ""]


def test_what_goes_on_at_once_shares_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = looked_at(monkeypatch)
    monkeypatch.setenv("COLUMNS", "24")
    with live_line.line(None) as one:
        one.show("compiling the step", begins=True)
        with live_line.line(None) as other:
            other.show("planning the problem", begins=True)
            assert left(terminal) == "compiling  | planning t"
        assert left(terminal) == "compiling the step"
    assert left(terminal) == ""
