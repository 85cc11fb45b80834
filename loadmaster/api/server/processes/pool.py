"""A few processes that work for the server, started when they are needed.

To parse, check and pack a large body, or to write a plan as something else, holds the interpreter for seconds, and
nobody else in this process is answered meanwhile, whatever the thread. So a process does it. Whoever waits takes none
of the threads that serve requests, and work that nobody waits for any more is ended.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import anyio
import anyio.to_thread

from loadmaster.api.errors import ProblemType
from loadmaster.api.server.problems import Refusal
from loadmaster.api.server.processes.process import BrokenWorkError, Work, WorkProcess

__all__ = ["Pool"]

logger = logging.getLogger(__name__)

_MOST_TRIES = 2
# One that has done large work keeps some of the memory that this took.
_IDLE_S = 30.0
_RETRY_AFTER_S = "5"


class Pool:
    """Processes that work for the server, so many at a time; more work waits for its turn. Used within one event loop;
    :meth:`close` may be called from anywhere. ``memory_bytes``: that each may take, 0 is no cap; ``cap``: the name of
    the setting that says so."""

    def __init__(self, processes: int, memory_bytes: int, cap: str) -> None:
        self._processes, self._memory_bytes, self._cap = processes, memory_bytes, cap
        self._lock = threading.Lock()
        self._busy: set[WorkProcess] = set()
        # With the times at which they came to be so, in this order.
        self._idle: list[tuple[WorkProcess, float]] = []
        self._closed = False
        self._places: anyio.CapacityLimiter | None = None

    async def do(self, work: Work) -> Any:
        """Return what the work returns, or raise what it raises. Cancelled, it is ended. Raises BrokenWorkError if its
        process broke, Refusal 503 when the server stops."""
        if self._places is None:
            self._places = anyio.CapacityLimiter(self._processes)
        doing = _Doing(work)
        try:
            # Not among the threads that serve requests.
            answer = await anyio.to_thread.run_sync(self._do, doing, abandon_on_cancel=True, limiter=self._places)
        except asyncio.CancelledError:
            doing.give_up()
            raise
        asyncio.get_running_loop().call_later(_IDLE_S, self._end_idle)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """End all processes; what they do is refused."""
        with self._lock:
            self._closed = True
            for process in self._busy:
                process.kill()
            idle, self._idle = self._idle, []
        for process, _ in idle:
            process.end()

    def _do(self, doing: _Doing) -> Any:
        for tries_left in reversed(range(_MOST_TRIES)):
            process = self._take()
            kept = False
            try:
                doing.begin(process)
                answer = process.do(doing.work)
                kept = doing.end()
                return answer
            except BrokenWorkError as error:
                if self._closed or doing.is_given_up:
                    raise _stopping() from None
                logger.warning("%s broke: %s", doing.work.function, error)
                if not (tries_left and error.by_chance):
                    raise
            finally:
                self._give_back(process, kept=kept)
        raise AssertionError("the last try returns or raises")

    def _take(self) -> WorkProcess:
        with self._lock:
            if self._closed:
                raise _stopping()
            process = self._idle.pop()[0] if self._idle else WorkProcess(self._memory_bytes, self._cap)
            self._busy.add(process)
            return process

    def _give_back(self, process: WorkProcess, *, kept: bool) -> None:
        with self._lock:
            self._busy.discard(process)
            kept = kept and not self._closed
            if kept:
                self._idle.append((process, time.monotonic()))
        if not kept:
            process.end()

    def _end_idle(self) -> None:
        """End the processes that nobody has needed for long."""
        with self._lock:
            since = time.monotonic() - _IDLE_S
            over = [process for process, at in self._idle if at <= since]
            self._idle = [(process, at) for process, at in self._idle if at > since]
        for process in over:
            process.end()


class _Doing:
    """A piece of work on its way: by which process it is done now, and whether anybody waits for it."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.is_given_up = False
        self._lock = threading.Lock()
        self._process: WorkProcess | None = None

    def begin(self, process: WorkProcess) -> None:
        """Note which process does the work; one that nobody waits for is ended at once."""
        with self._lock:
            self._process = process
            if self.is_given_up:
                process.kill()

    def end(self) -> bool:
        """Note that the work is done; returns whether its process can do more."""
        with self._lock:
            self._process = None
            return not self.is_given_up

    def give_up(self) -> None:
        """End the work: nobody waits for it any more."""
        with self._lock:
            self.is_given_up = True
            if self._process is not None:
                self._process.kill()


def _stopping() -> Refusal:
    detail = "The server is stopping. Send it again later."
    return Refusal(503, ProblemType.UNAVAILABLE, detail, {"Retry-After": _RETRY_AFTER_S})
