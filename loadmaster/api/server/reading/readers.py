"""Reads requests to plan without holding up the others: small ones in a thread, larger ones in processes of their own.

The bodies, in whichever process, are counted together (``server/reading/body_memory.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

from loadmaster.api.errors import ProblemType
from loadmaster.api.planning import Planner
from loadmaster.api.server.problems import Refusal
from loadmaster.api.server.processes.pool import Pool
from loadmaster.api.server.processes.process import BrokenWorkError, Work
from loadmaster.api.server.reading.submissions import Asked, NamedBlob, Reader, Submission
from loadmaster.api.settings import Settings

__all__ = ["LARGEST_HERE_BYTES", "Readers"]

# Of a problem full of numbers this takes 6 ms; the way to another process and back takes three.
LARGEST_HERE_BYTES = 32 * 1024
# Threads that read small ones: with more of them, whoever answers anything else waits for the interpreter.
_MOST_HERE = 2
_MOST_PROCESSES = 2
# The largest body takes ten seconds of a processor, on a busy machine a minute: what takes longer has come to a stop.
_LONGEST_S = 300.0
_RETRY_AFTER_S = "5"

_READ = "loadmaster.api.server.reading.submissions:read_submission"

AnswerT = TypeVar("AnswerT")


class Readers:
    """Readers of requests to plan. Used within one event loop; :meth:`close` may be called from anywhere."""

    def __init__(self, settings: Settings, planner: Planner) -> None:
        self._settings = settings
        self._reader = Reader(planner, settings.max_time_limit_s)
        self._pool = Pool(_MOST_PROCESSES, settings.max_job_memory_bytes, "max_job_memory_bytes")
        self._places: anyio.CapacityLimiter | None = None

    async def read(self, asked: Asked, then: Callable[[Submission], AnswerT]) -> AnswerT | NamedBlob:
        """Read a request and return what ``then`` makes of it, in a thread; or return the blob that it names. Raises
        InputError if the request cannot be planned, Refusal 503 if the process that was to read it broke."""
        if asked.size_bytes <= LARGEST_HERE_BYTES:
            if self._places is None:
                self._places = anyio.CapacityLimiter(_MOST_HERE)
            found = await anyio.to_thread.run_sync(self._reader.read, asked, limiter=self._places)
        else:
            found = await self._read_elsewhere(asked)
        return found if isinstance(found, NamedBlob) else await anyio.to_thread.run_sync(then, found)

    def close(self) -> None:
        """End all processes; what they read is refused."""
        self._pool.close()

    async def _read_elsewhere(self, asked: Asked) -> Submission | NamedBlob:
        buffers = (asked.body,) if asked.blob is None else (asked.body, asked.blob)
        given = (self._settings.planner, self._settings.max_time_limit_s, asked.model, asked.dry_run)
        try:
            found = await self._pool.do(Work(_READ, _LONGEST_S, given, buffers))
        except BrokenWorkError as error:
            detail = f"The body could not be read: {error}. Send it again later."
            raise Refusal(503, ProblemType.UNAVAILABLE, detail, {"Retry-After": _RETRY_AFTER_S}) from None
        assert isinstance(found, Submission | NamedBlob)
        return found
