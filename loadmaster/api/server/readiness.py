"""Readiness of the service, told without a wait: a look at the store may take long while others write to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import anyio
import anyio.to_thread

__all__ = ["Readiness"]

# Load balancers ask every few seconds, and take no answer for a bad one.
_PATIENCE_S = 0.5
# Requests that wait so long for a thread are as good as not answered.
_LONGEST_WITHOUT_THREAD_S = 2.0


class Readiness:
    """Looks at the service when asked, one look at a time. While a look takes long, the one before it counts. Used
    within one event loop. ``look`` gives the checks by name, "ok" is good; it is called in a thread that is not one of
    those that serve requests. A look that takes longer than ``longest_s`` is a bad one."""

    def __init__(self, look: Callable[[], Mapping[str, str]], longest_s: float) -> None:
        self._look, self._longest_s = look, longest_s
        self._latest: Mapping[str, str] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._since = 0.0
        self._thread: asyncio.Task[None] | None = None
        self._waiting_since = 0.0

    async def checks(self) -> Mapping[str, str]:
        """Return the checks as they stand."""
        if self._looking is None or self._looking.done():
            self._since = time.monotonic()
            self._looking = asyncio.create_task(self._ask())
        patience_s = self._longest_s if self._latest is None else _PATIENCE_S
        await asyncio.wait([self._looking], timeout=patience_s)
        if self._latest is None or time.monotonic() - self._since > self._longest_s:
            return {"database": "does not answer"}
        return self._latest

    async def threads(self) -> str:
        """Ask whether a request would find a thread to serve it."""
        if self._thread is None or self._thread.done():
            self._waiting_since = time.monotonic()
            self._thread = asyncio.create_task(anyio.to_thread.run_sync(_nothing))
        await asyncio.wait([self._thread], timeout=_PATIENCE_S)
        waits_s = time.monotonic() - self._waiting_since
        return "none free" if not self._thread.done() and waits_s > _LONGEST_WITHOUT_THREAD_S else "ok"

    async def _ask(self) -> None:
        self._latest = await anyio.to_thread.run_sync(self._look, limiter=anyio.CapacityLimiter(1))


def _nothing() -> None:
    """Do nothing: any thread can do so at once."""
