"""Ctrl-C during a solve: the first one asks it to end with what it has, the second one ends the command."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from loadmaster.api.cli.terminal import Terminal


@contextmanager
def interruptible(terminal: Terminal) -> Iterator[Callable[[], bool]]:
    """Let the first interrupt within the block make the yielded function answer True instead of raising."""
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
