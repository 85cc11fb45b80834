"""Reads requests to plan without holding up the others: small ones in a thread, large ones in processes of their own.

To parse, check and pack a large body holds the interpreter for seconds, and nobody else in this process is answered
meanwhile, whatever the thread. So a process does it, one of a few that are started when they are needed, and gives back
what the store keeps. The bodies, in whichever process, are counted together (``server/reading/body_memory.py``).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

from loadmaster.api.errors import ProblemType
from loadmaster.api.planning import Planner
from loadmaster.api.server.problems import Refusal
from loadmaster.api.server.reading.reader_process import BrokenReaderError, ReaderProcess
from loadmaster.api.server.reading.submissions import Asked, NamedBlob, Reader, Submission
from loadmaster.api.settings import Settings

__all__ = ["LARGEST_HERE_BYTES", "Readers"]

logger = logging.getLogger(__name__)

# Of a problem full of numbers this takes 50 ms; the way to another process and back takes three.
LARGEST_HERE_BYTES = 256 * 1024

_MOST_PROCESSES = 2
_MOST_TRIES = 2
# One that has read a large body keeps some of the memory that this took.
_IDLE_S = 30.0
_RETRY_AFTER_S = "5"

AnswerT = TypeVar("AnswerT")


class Readers:
    """Used within one event loop; :meth:`close` may be called from anywhere."""

    def __init__(self, settings: Settings, planner: Planner) -> None:
        self._settings = settings
        self._reader = Reader(planner, settings.max_time_limit_s)
        self._lock = threading.Lock()
        self._busy: set[ReaderProcess] = set()
        # With the times at which they came to be so, in this order.
        self._idle: list[tuple[ReaderProcess, float]] = []
        self._closed = False
        self._places: anyio.CapacityLimiter | None = None

    async def read(self, asked: Asked, then: Callable[[Submission], AnswerT]) -> AnswerT | NamedBlob:
        """What ``then`` makes of what a request says, in a thread; or the blob that it names.

        Raises:
            InputError: the request cannot be planned.
            Refusal: 503, the process that was to read it broke.
        """
        if asked.size_bytes <= LARGEST_HERE_BYTES:
            return await anyio.to_thread.run_sync(self._read_here, asked, then)
        if self._places is None:
            self._places = anyio.CapacityLimiter(_MOST_PROCESSES)
        # Not among the threads that serve requests: small ones do not wait for large ones.
        found = await anyio.to_thread.run_sync(self._read_elsewhere, asked, limiter=self._places)
        asyncio.get_running_loop().call_later(_IDLE_S, self._end_idle)
        return found if isinstance(found, NamedBlob) else await anyio.to_thread.run_sync(then, found)

    def close(self) -> None:
        """End all processes; what they read is refused."""
        with self._lock:
            self._closed = True
            for process in self._busy:
                process.kill()
            idle, self._idle = self._idle, []
        for process, _ in idle:
            process.end()

    def _read_here(self, asked: Asked, then: Callable[[Submission], AnswerT]) -> AnswerT | NamedBlob:
        found = self._reader.read(asked)
        return found if isinstance(found, NamedBlob) else then(found)

    def _read_elsewhere(self, asked: Asked) -> Submission | NamedBlob:
        for tries_left in reversed(range(_MOST_TRIES)):
            process = self._take()
            try:
                answer = process.read(asked)
            except BrokenReaderError as error:
                self._give_back(process, broken=True)
                logger.warning("the process that read a body of %d bytes broke: %s", asked.size_bytes, error)
                if not (tries_left and error.by_chance):
                    detail = f"The body could not be read: {error}. Send it again later."
                    raise _unavailable(detail) from None
            else:
                self._give_back(process)
                if isinstance(answer, Exception):
                    raise answer
                return answer
        raise AssertionError("the last try returns or raises")

    def _take(self) -> ReaderProcess:
        with self._lock:
            if self._closed:
                raise _unavailable("The server is stopping. Send it again later.")
            process = self._idle.pop()[0] if self._idle else ReaderProcess(self._settings)
            self._busy.add(process)
            return process

    def _give_back(self, process: ReaderProcess, *, broken: bool = False) -> None:
        with self._lock:
            self._busy.discard(process)
            keep = not (broken or self._closed)
            if keep:
                self._idle.append((process, time.monotonic()))
        if not keep:
            process.end()

    def _end_idle(self) -> None:
        """End those that nobody has needed for long."""
        with self._lock:
            since = time.monotonic() - _IDLE_S
            over = [process for process, at in self._idle if at <= since]
            self._idle = [(process, at) for process, at in self._idle if at > since]
        for process in over:
            process.end()


def _unavailable(detail: str) -> Refusal:
    return Refusal(503, ProblemType.UNAVAILABLE, detail, {"Retry-After": _RETRY_AFTER_S})
