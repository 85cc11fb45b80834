"""A line that says what goes on right now, written over: for the command line, and Python in terminals and notebooks.

Where nobody watches (a log file, CI) it is a plain line now and then, if it is asked for at all. What goes on at the
same time, in several threads, shares the line.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
import weakref
from types import TracebackType
from typing import Any, Self, TextIO

from loadmaster.printable import printable

_PLAIN_EVERY_S = 5.0
_LIVE_EVERY_S = 0.1
_NOTEBOOK_COLUMNS = 120
_BESIDE = " | "
# What is shown right now, and how much of a notebook's line was written last. Both under the lock.
_lock = threading.Lock()
_shown: weakref.WeakKeyDictionary[LiveLine, str] = weakref.WeakKeyDictionary()
_widths: weakref.WeakKeyDictionary[TextIO, int] = weakref.WeakKeyDictionary()


class LiveLine:
    """One line on a stream, or on none: then it says nothing. Used as a context, it is gone afterwards."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._terminal = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
        self.live = self._terminal or (stream is not None and in_notebook())
        self.quiet = stream is None
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
            with _lock:
                _shown[self] = text
                self._write()
        else:
            self._stream.write(text + "\n")
            self._stream.flush()

    def settle(self) -> None:
        """Clear the line, if there is one; what others show stays."""
        with _lock:
            if _shown.pop(self, None) is not None:
                self._write()

    def _write(self) -> None:
        """Write the texts of this stream over its line. A notebook knows no escape that clears a line."""
        assert self._stream is not None
        texts = [text for line, text in _shown.items() if line._stream is self._stream]
        columns = shutil.get_terminal_size().columns - 1 if self._terminal else _NOTEBOOK_COLUMNS
        each = max(0, columns + len(_BESIDE)) // max(1, len(texts)) - len(_BESIDE)
        text = _BESIDE.join(text[: max(0, each)] for text in texts)
        if self._terminal:
            self._stream.write("\r\x1b[2K" + text)
        else:
            self._stream.write("\r" + text.ljust(_widths.get(self._stream, 0)) + ("" if text else "\r"))
            _widths[self._stream] = len(text)
        self._stream.flush()


def line(progress: bool | None) -> LiveLine:
    """The line on standard error of a function that takes long: always, never, or (None) in a terminal or notebook."""
    found = LiveLine(sys.stderr)
    return found if (found.live if progress is None else progress) else LiveLine(None)


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"
