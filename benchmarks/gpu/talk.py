"""How a row's process speaks with the scheduler, and gets the machine to itself."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

MARK = "@@ "


class Link:
    """The line to the scheduler, and the right to be alone that is asked for over it.

    Args:
        hears, says: where the scheduler's lines come from, and where this row's go.
    """

    def __init__(self, hears: TextIO, says: TextIO) -> None:
        self._hears, self._says = hears, says
        self.waited_s = 0.0
        self._lock = threading.RLock()
        self._depth = 0
        self._alone = False

    def say(self, word: str, **facts: Any) -> None:
        """Tell the scheduler."""
        with self._lock:
            self._says.write(MARK + json.dumps({"say": word, **facts}) + "\n")
            self._says.flush()

    def hear(self) -> str:
        """What the scheduler says next; ``quit`` if it is gone."""
        start = time.perf_counter()
        line = self._hears.readline().strip() or "quit"
        self.waited_s += time.perf_counter() - start
        return line

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, no other row runs."""
        with self._lock:
            self._depth += 1
            if not self._alone:
                self.say("alone")
                self.hear()
                self._alone = True
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if not self._depth:
                    self._alone = False
                    self.say("done")

    @contextlib.contextmanager
    def given(self) -> Iterator[None]:
        """Inside, the scheduler has made this row alone without being asked."""
        with self._lock:
            self._depth, self._alone = 1, True
        try:
            yield
        finally:
            with self._lock:
                self._depth, self._alone = 0, False


def measure_trials_alone(link: Link) -> None:
    """From now on, be alone while a fitted step is measured."""
    from loadmaster.executor.memory import fit, trial

    trial.measure = _alone(trial.measure, link)
    fit.record = _alone(fit.record, link)


def _alone(function: Callable[..., Any], link: Link) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        with link.alone():
            return function(*args, **options)

    return call
