"""How a row's process speaks with the scheduler, and gets the machine to itself."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

MARK = "@@ "
# Inductor tries the variants of one kernel after the other: between two of them the machine is kept for this long.
BETWEEN_S = 0.5


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
        self._timer: threading.Timer | None = None

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
        self._enter()
        try:
            yield
        finally:
            self._leave(0.0)

    @contextlib.contextmanager
    def alone_with_more_to_come(self) -> Iterator[None]:
        """The same, and for a moment longer: the next one comes soon, or something else begins."""
        self._enter()
        try:
            yield
        finally:
            self._leave(BETWEEN_S)

    @contextlib.contextmanager
    def given(self) -> Iterator[None]:
        """Inside, the scheduler has made this row alone without being asked."""
        with self._lock:
            self.settle()
            self._depth, self._alone = 1, True
        try:
            yield
        finally:
            with self._lock:
                self._depth, self._alone = 0, False

    def settle(self) -> None:
        """Give back what is still held for more to come."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._end()

    def _enter(self) -> None:
        with self._lock:
            self._depth += 1
            if self._timer is not None:
                self._timer.cancel()
            if not self._alone:
                self.say("alone")
                self.hear()
                self._alone = True

    def _leave(self, after_s: float) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth:
                return
            if after_s:
                self._timer = threading.Timer(after_s, self._end)
                self._timer.daemon = True
                self._timer.start()
            else:
                self._end()

    def _end(self) -> None:
        with self._lock:
            if self._alone and not self._depth:
                self._alone = False
                self.say("done")


def tune_alone(link: Link) -> None:
    """From now on, be alone while Inductor tries variants of a kernel: trials beside others mislead it."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    if hasattr(CachingAutotuner, "benchmark_all_configs"):  # no public name: without it, trials are only less exact
        CachingAutotuner.benchmark_all_configs = _alone(CachingAutotuner.benchmark_all_configs, link)


def measure_trials_alone(link: Link) -> None:
    """From now on, be alone while a fitted step is measured."""
    from loadmaster.executor.memory import fit, trial

    trial.measure = _alone(trial.measure, link)
    fit.record = _alone(fit.record, link)


def _alone(function: Callable[..., Any], link: Link) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        with link.alone_with_more_to_come():
            return function(*args, **options)

    return call
