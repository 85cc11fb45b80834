"""Text of others on a terminal: nothing in it is obeyed, and nothing that can be read is changed."""

from __future__ import annotations

import io
import json
import logging
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.api import logs
from loadmaster.api.cli.terminal import Terminal
from loadmaster.api.settings import Settings
from loadmaster.live_line import LiveLine
from loadmaster.printable import printable


@given(st.text())
def test_no_control_is_left(text: str) -> None:
    shown = printable(text)
    assert not [c for c in shown if unicodedata.category(c) == "Cc" and c not in "\t\n"]


@given(st.text(alphabet=st.characters(exclude_categories=["Cc", "Cf", "Cs"])))
def test_what_can_be_read_stays(text: str) -> None:
    assert printable(text) == text


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_json_stays_json(text: str) -> None:
    assert json.loads(printable(json.dumps({"name": text}, ensure_ascii=False))) == {"name": text}


@pytest.mark.parametrize("hostile", ["\x1b[2Jgone", "\x1b]52;c;cm0=\x07", "\x9b31m", "\rpassword:", "a\u202ebc"])
def test_names_do_not_reach_the_terminal_as_commands(hostile: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    terminal = Terminal(out, err)
    terminal.data(hostile)
    terminal.say(hostile)
    terminal.error(hostile)
    terminal.json({"name": hostile})
    LiveLine(err).show(hostile)
    for written in (out.getvalue(), err.getvalue()):
        assert not set("\x1b\x07\x9b\r\u202e") & set(written)


@pytest.mark.parametrize("hostile", ["\x1b[2Jgone", "\x1b]52;c;cm0=\x07", "\x9b31m", "\rpassword:"])
def test_log_lines_in_a_terminal_are_not_obeyed(hostile: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    # pytest's own handlers would be closed by it.
    root.handlers = []
    try:
        logs.configure(Settings(database_url="sqlite:////nowhere"))
        try:
            raise ValueError(hostile)
        except ValueError:
            logging.getLogger("loadmaster").exception("job %s", hostile)
    finally:
        root.handlers = before
        root.setLevel(level)
    written = capsys.readouterr().err
    assert "Traceback" in written
    assert not set("\x1b\x07\x9b\r") & set(written)
