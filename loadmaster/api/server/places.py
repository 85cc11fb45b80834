"""Limits on how much of one sort goes on at a time: of one caller, and of all, so that none takes what others need."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from loadmaster.api.errors import ProblemType
from loadmaster.api.server.keys import Caller
from loadmaster.api.server.problems import Refusal

__all__ = ["HoldingResponse", "Places"]

_RETRY_AFTER_S = "5"


class Places:
    """Places for work of one sort, which callers take and give back. Used within one event loop. ``what`` is a plural,
    for refusals; ``most`` at a time, ``most_each`` of one key; where there are no keys, only ``most`` counts."""

    def __init__(self, what: str, most: int, most_each: int) -> None:
        self._what, self._most, self._most_each = what, most, most_each
        self._taken: Counter[str | None] = Counter()

    @contextlib.contextmanager
    def take(self, caller: Caller) -> Iterator[None]:
        """Take a place for as long as the context lasts. Raises Refusal 429 where the caller has all that it may, 503
        where there is none left."""
        retry = {"Retry-After": _RETRY_AFTER_S}
        if caller.name is not None and self._taken[caller.name] >= self._most_each:
            detail = f"{caller.name} has {self._most_each} {self._what} under way, and may have no more at a time."
            raise Refusal(429, ProblemType.QUOTA_REACHED, detail, retry)
        if self._taken.total() >= self._most:
            detail = f"There are {self._most} {self._what} under way already. Try again later."
            raise Refusal(503, ProblemType.BUSY, detail, retry)
        self._taken[caller.name] += 1
        try:
            yield
        finally:
            self._taken[caller.name] -= 1
            if not self._taken[caller.name]:
                del self._taken[caller.name]


class HoldingResponse(StreamingResponse):
    """A stream that holds something, such as a place, until it ends or its reader leaves."""

    held: contextlib.ExitStack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.held:
            await super().__call__(scope, receive, send)
