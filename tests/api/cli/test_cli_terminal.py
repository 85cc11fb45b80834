"""What goes to stdout and stderr, on a terminal and elsewhere."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from loadmaster import live_line
from loadmaster.api.cli import app
from loadmaster.api.cli.terminal import Terminal
from loadmaster.api.columns import table


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_line, "_LIVE_EVERY_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_on_a_terminal_progress_is_one_line_that_goes_away() -> None:
    out, err = io.StringIO(), Screen()
    said = Terminal(out, err)
    said.progress("one")
    said.progress("two")
    said.data("result")
    assert out.getvalue() == "result\n"
    assert "\n" not in err.getvalue()
    assert err.getvalue().endswith("\r\x1b[2K")


def test_a_live_line_is_never_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    err = Screen()
    Terminal(io.StringIO(), err).progress("x" * 100)
    assert err.getvalue().count("x") == 19


def test_elsewhere_progress_is_a_plain_line_now_and_then() -> None:
    err = io.StringIO()
    said = Terminal(io.StringIO(), err)
    said.progress("one")
    said.progress("two")
    assert err.getvalue() == "one\n"


@pytest.mark.parametrize("variable", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_turned_off(variable: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    err = Screen()
    Terminal(io.StringIO(), err).error("wrong")
    assert "\x1b[31;1m" in err.getvalue()
    monkeypatch.setenv(*variable)
    err = Screen()
    Terminal(io.StringIO(), err).error("wrong")
    assert err.getvalue() == "error: wrong\n"


def test_numbers_stand_to_the_right() -> None:
    assert table([["a", "5"], ["bb", "10"]], ["name", "n"]).splitlines() == ["name   n", "a      5", "bb    10"]
    assert table([], ["name", "n"]) == "name  n"


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m loadmaster.api.cli new memory --example resnet50-b184"
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -c 10; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_extra_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "loadmaster.api.serve", raising=False)
    assert app.main(["serve", "--database-url", f"sqlite:///{tmp_path}/x.db"]) == 2
    assert "pip install '.[server]'" in capsys.readouterr().err
