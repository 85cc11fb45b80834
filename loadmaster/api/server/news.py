"""Wakes whoever waits for a job: event streams and long polls. One look at the database serves all of them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence

import anyio.to_thread
from sqlalchemy.exc import SQLAlchemyError

__all__ = ["News"]

logger = logging.getLogger(__name__)


class News:
    """Used within one event loop.

    Args:
        heads: the numbers of the latest events of jobs, by id; a job that is gone is left out.
        poll_s: how often it is asked, while anybody waits.
        stopping: set when the server has begun to shut down.
    """

    def __init__(
        self, heads: Callable[[Sequence[str]], Mapping[str, int]], poll_s: float, stopping: threading.Event
    ) -> None:
        self._heads, self._poll_s, self._stopping = heads, poll_s, stopping
        self._waiting: dict[asyncio.Future[bool], tuple[str, int]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, job_id: str, seen: int) -> bool:
        """Until the job has an event after ``seen``. False: there is no such job any more, or the server stops."""
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
            except SQLAlchemyError:
                logger.exception("the database does not answer; streams wait")
                continue
            for news, (job_id, seen) in self._waiting.items():
                # Who began to wait meanwhile was not asked for.
                if job_id in asked and not news.done() and heads.get(job_id, seen + 1) > seen:
                    news.set_result(job_id in heads)
