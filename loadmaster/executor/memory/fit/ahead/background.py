"""Background work of a fit: plans are made in a thread while the main thread compiles what is tried anyway.

The solver is a process of its own, so that its search and a compilation hardly meet: of the planner, this process runs
what states problems and checks plans. Without cores to spare, work waits until its result is asked for, and runs there.
What is timed is timed alone: :meth:`Background.settle` waits until nothing runs in the background.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from loadmaster.cancelling import cancelled_by
from loadmaster.executor.steps.host_link import cores

# For the solver, the compiler and what it starts: on two the solver would take from the compiler what it gains.
LEAST_CORES = 4
HEAD_START_S = 1.0  # a refusal or a proof that comes at once spares a compilation
_LOOK_EVERY_S = 0.1  # Ctrl-C is answered between two looks
_FAREWELL_S = 2.0  # to end in good order

Found = TypeVar("Found")


class Work(Generic[Found]):
    """A piece of work that runs where its result is asked for, or ``apart``, in a thread of its own, from now on.
    ``took_s`` and ``waited_s`` say how long it ran, and how long somebody waited for it meanwhile."""

    def __init__(self, work: Callable[[], Found], *, apart: bool) -> None:
        self.took_s = self.waited_s = 0.0
        self._work = work
        self._found: list[Found] = []
        self._error: BaseException | None = None
        self._unwanted = threading.Event()
        self._began = time.perf_counter()
        # A daemon: a program that ends takes it along.
        self._thread = threading.Thread(target=self._run, name="loadmaster-background", daemon=True) if apart else None
        if self._thread is not None:
            self._thread.start()

    @property
    def beside_s(self) -> float:
        """Seconds that the work ran while nobody waited for it."""
        return max(0.0, self.took_s - self.waited_s)

    def is_pending(self) -> bool:
        """Return whether the work still runs in its thread after its head start, which this waits for."""
        left_s = HEAD_START_S - (time.perf_counter() - self._began)
        return not self.has_ended(max(0.0, left_s))

    def settle(self) -> None:
        """Wait until the work does not run."""
        while not self.has_ended(_LOOK_EVERY_S):
            pass

    def result(self) -> Found:
        """Return what the work found, or raise its error; runs it here if nothing has run it."""
        self.settle()
        if not (self._found or self._error):
            began = time.perf_counter()
            self._run()
            self.waited_s += time.perf_counter() - began
        if self._error is not None:
            raise self._error
        return self._found[0]

    def end(self) -> None:
        """Cancel the work, and give it a moment to end."""
        self._unwanted.set()
        self.has_ended(_FAREWELL_S)

    def has_ended(self, within_s: float = 0.0) -> bool:
        """Return whether the work does not run, now or within some time."""
        if self._thread is None:
            return True
        began = time.perf_counter()
        self._thread.join(within_s)
        self.waited_s += time.perf_counter() - began
        return not self._thread.is_alive()

    def _run(self) -> None:
        began = time.perf_counter()
        try:
            with cancelled_by(self._unwanted.is_set):
                self._found.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            self._error = error
        self.took_s = time.perf_counter() - began


class Background:
    """One piece of background work at a time, next to what the main thread does."""

    def __init__(self) -> None:
        self._work: Work[Any] | None = None

    def begin(self, work: Callable[[], Found]) -> Work[Found]:
        """Begin work where there are cores to spare; elsewhere it waits until its result is asked for."""
        self.end()
        self._work = begun = Work(work, apart=cores() >= LEAST_CORES)
        return begun

    def is_busy(self) -> bool:
        """Return whether work runs in the background right now."""
        return self._work is not None and not self._work.has_ended()

    def settle(self) -> None:
        """Wait until nothing runs in the background."""
        if self._work is not None:
            self._work.settle()

    def end(self) -> None:
        """Cancel the work that runs, if any."""
        if self._work is not None:
            self._work.end()
        self._work = None
