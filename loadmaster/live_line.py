"""What goes on right now, as one line that is written over: of the command line, and of Python in terminals, notebooks.

Where nobody watches (a log file, CI) it is a plain line now and then, if it is asked for at all.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from types import TracebackType
from typing import Any, Self, TextIO

from loadmaster.printable import printable

_PLAIN_EVERY_S = 5.0
_LIVE_EVERY_S = 0.1
_NOTEBOOK_COLUMNS = 120


class LiveLine:
    """One line on a stream, or on none: then it says nothing. Used as a context, it is gone afterwards."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._terminal = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
        self.live = self._terminal or (stream is not None and in_notebook())
        self.quiet = stream is None
        self._written = 0
        self._shown_at = -_PLAIN_EVERY_S

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.settle()

    def show(self, text: str, *, begins: bool = False) -> None:
        """Say what is going on; seldom enough to be read, unless something ``begins``, which may take long."""
        if self._stream is None:
            return
        now = time.monotonic()
        if now - self._shown_at < (_LIVE_EVERY_S if self.live else _PLAIN_EVERY_S) and not (begins and self.live):
            return
        self._shown_at = now
        text = printable(text)
        if self.live:
            columns = shutil.get_terminal_size().columns - 1 if self._terminal else _NOTEBOOK_COLUMNS
            self._write(text[:columns])
        else:
            self._stream.write(text + "\n")
            self._stream.flush()

    def settle(self) -> None:
        """Clear the line, if there is one."""
        if self._written:
            self._write("")

    def _write(self, text: str) -> None:
        """Over what is there. A notebook knows no escape that clears a line."""
        assert self._stream is not None
        if self._terminal:
            self._stream.write("\r\x1b[2K" + text)
        else:
            self._stream.write("\r" + text.ljust(self._written) + ("" if text else "\r"))
        self._written = len(text)
        self._stream.flush()


def line(progress: bool | None) -> LiveLine:
    """The line on standard error of a function that takes long.

    Args:
        progress: True: always; False: never; None: in a terminal or a notebook.
    """
    found = LiveLine(sys.stderr)
    return found if (found.live if progress is None else progress) else LiveLine(None)


def in_notebook() -> bool:
    """Whether this process answers to a notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"
