"""Waiting for events of jobs, by event streams and long polls. One look at the database serves all who wait."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import anyio.to_thread
from fastapi.sse import format_sse_event
from sqlalchemy.exc import SQLAlchemyError

from loadmaster.api.store.database import log_error
from loadmaster.api.store.records import Event

__all__ = ["News", "Sent"]

_RECONNECT_MS = 1000

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sent:
    """An event as streams send it: its number, its type, and its text in the format of server-sent events."""

    seq: int
    type: str
    text: bytes


class News:
    """News of jobs for all who wait for them. Used within one event loop.

    Args:
        events: the events of a job that follow event ``after``.
        heads: the numbers of the latest events of jobs, by id; a job that is gone is left out.
        poll_s: how often the store is asked, while anybody waits.
        stopping: set when the server has begun to shut down.
    """

    def __init__(
        self,
        events: Callable[[str, int], Sequence[Event]],
        heads: Callable[[Sequence[str]], Mapping[str, int]],
        poll_s: float,
        stopping: threading.Event,
    ) -> None:
        self._events, self._heads, self._poll_s, self._stopping = events, heads, poll_s, stopping
        self._reads: dict[tuple[str, int], asyncio.Task[list[Sent]]] = {}
        self._waiting: dict[asyncio.Future[bool], tuple[str, int]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def events(self, job_id: str, seen: int) -> list[Sent]:
        """Return the events of a job that follow event ``seen``. Streams that are as far share one read."""
        key = (job_id, seen)
        read = self._reads.get(key)
        if read is None:
            read = self._reads[key] = asyncio.create_task(anyio.to_thread.run_sync(self._read, job_id, seen))
            read.add_done_callback(lambda _: self._reads.pop(key))
        # One that leaves takes nothing from the others.
        return await asyncio.shield(read)

    def _read(self, job_id: str, seen: int) -> list[Sent]:
        return [_sent(event) for event in self._events(job_id, seen)]

    async def wait(self, job_id: str, seen: int) -> bool:
        """Wait until the job has an event after ``seen``. False: there is no such job any more, or the server stops."""
        news: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[news] = (job_id, seen)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            return await news
        finally:
            del self._waiting[news]

    async def _look(self) -> None:
        while self._waiting:
            await asyncio.sleep(self._poll_s)
            asked = {job_id for job_id, _ in self._waiting.values()}
            try:
                heads = {} if self._stopping.is_set() else await anyio.to_thread.run_sync(self._heads, sorted(asked))
            except SQLAlchemyError as error:
                log_error(logger, "streams wait", error)
                continue
            for news, (job_id, seen) in self._waiting.items():
                # Who began to wait meanwhile was not asked for.
                if job_id in asked and not news.done() and heads.get(job_id, seen + 1) > seen:
                    news.set_result(job_id in heads)


def _sent(event: Event) -> Sent:
    data = json.dumps({"at": event.at, **event.data}, ensure_ascii=False, allow_nan=False)
    text = format_sse_event(data_str=data, event=event.type, id=str(event.seq), retry=_RECONNECT_MS)
    return Sent(event.seq, event.type, text)
