"""Output of the command line: data on stdout, everything else on stderr; and Ctrl-C during a solve.

On a terminal the progress is one live line; elsewhere (a log file, CI) it is a plain line now and then.
``NO_COLOR`` (https://no-color.org) and ``TERM=dumb`` turn colours off.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

from loadmaster.errors import LoadmasterError
from loadmaster.live_line import LiveLine
from loadmaster.printable import printable


class OutputError(LoadmasterError):
    """Standard output takes no more, as on a full disk."""


class Terminal:
    """Writes data to ``out`` and messages to ``err``."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out if out is not None else sys.stdout
        self._err = err if err is not None else sys.stderr
        self._line = LiveLine(self._err)
        self._colour = self._line.live and not os.environ.get("NO_COLOR")

    def data(self, text: str) -> None:
        """Print one line or block of data. Raises OutputError if it cannot be written."""
        self.settle()
        try:
            self._write(_writable(text, self._out), self._out)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"standard output cannot be written: {error.strerror}. Write elsewhere.") from None

    def json(self, document: Mapping[str, Any] | list[Any]) -> None:
        """Print a JSON document, one per call."""
        self.data(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))

    def say(self, text: str) -> None:
        """Print a message that stays, on stderr."""
        self.settle()
        self._write(_writable(text, self._err), self._err)

    def error(self, text: str) -> None:
        """Print an error message, headed ``error:``."""
        self.settle()
        self._write(f"{self._paint('error:', '31;1')} {_writable(text, self._err)}", self._err)

    def progress(self, text: str) -> None:
        """Show what is going on right now: the live line of a terminal, else a plain line every few seconds."""
        self._line.show(text)

    def settle(self) -> None:
        """Clear the live line, if there is one."""
        self._line.settle()

    def _write(self, text: str, stream: TextIO) -> None:
        stream.write(text + "\n")
        stream.flush()

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text


def _writable(text: str, stream: TextIO) -> str:
    """Escape controls, and characters that the encoding lacks: paths may hold bytes that are not text."""
    encoding = stream.encoding or "utf-8"
    return printable(text).encode(encoding, "backslashreplace").decode(encoding)


@contextmanager
def interruptible(terminal: Terminal) -> Iterator[Callable[[], bool]]:
    """Let the first interrupt within the block make the yielded function answer True, so that a solve ends with what it
    has; the second one ends the command."""
    asked = threading.Event()

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        terminal.say("cancelling, keeping the best plan so far (interrupt again to stop at once)")

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
