"""Who waits for news of jobs: woken by what comes, not by what was known, with one look for all of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence

import pytest
from sqlalchemy.exc import OperationalError

from loadmaster.api.server.news import News
from loadmaster.api.store.records import Event


class Heads:
    """The latest events of jobs, and how often they were asked for."""

    def __init__(self, **heads: int) -> None:
        self.heads, self.asked, self.away = heads, 0, 0

    def __call__(self, ids: Sequence[str]) -> Mapping[str, int]:
        self.asked += 1
        if self.away:
            self.away -= 1
            raise OperationalError("SELECT", {}, Exception("locked"))
        return {name: self.heads[name] for name in ids if name in self.heads}


def news_of(heads: Heads, stopping: threading.Event | None = None) -> News:
    return News(lambda _job, _after: [], heads, 0.005, stopping or threading.Event())


async def test_waiters_wake_for_their_own_jobs_alone() -> None:
    heads = Heads(a=3, b=3)
    news = news_of(heads)
    a, b = (asyncio.create_task(news.wait(name, 3)) for name in "ab")
    await asyncio.sleep(0.05)
    assert not a.done() and not b.done()
    heads.heads["a"] = 4
    assert await asyncio.wait_for(a, 30)
    assert not b.done()
    b.cancel()


async def test_what_came_already_wakes_at_once() -> None:
    assert await asyncio.wait_for(news_of(Heads(a=9)).wait("a", 3), 30)


async def test_a_job_that_is_gone_has_no_news() -> None:
    assert not await asyncio.wait_for(news_of(Heads()).wait("gone", 0), 30)


async def test_a_server_that_stops_lets_everybody_go() -> None:
    stopping = threading.Event()
    waiting = asyncio.create_task(news_of(Heads(a=1), stopping).wait("a", 1))
    await asyncio.sleep(0.02)
    stopping.set()
    assert not await asyncio.wait_for(waiting, 30)


async def test_many_waiters_cost_one_look() -> None:
    heads = Heads(a=1)
    news = news_of(heads)
    waiting = [asyncio.create_task(news.wait("a", 1)) for _ in range(200)]
    while heads.asked < 3:
        await asyncio.sleep(0.005)
    heads.heads["a"] = 2
    assert all(await asyncio.gather(*waiting))
    # Waits that are woken ask no more, and looks end with the last of them.
    asked = heads.asked
    await asyncio.sleep(0.05)
    assert asked < 200 and heads.asked <= asked + 1


async def test_a_database_that_is_away_is_asked_again() -> None:
    heads = Heads(a=2)
    heads.away = 2
    assert await asyncio.wait_for(news_of(heads).wait("a", 1), 30)
    assert heads.asked == 3


async def test_a_wait_that_is_given_up_leaves_nothing_behind() -> None:
    heads = Heads(a=1)
    news = news_of(heads)
    waiting = asyncio.create_task(news.wait("a", 1))
    while not heads.asked:
        await asyncio.sleep(0.005)
    waiting.cancel()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert len(left) == 2  # the wait, and the look for it
    await asyncio.wait_for(asyncio.gather(*left, return_exceptions=True), 30)


async def test_streams_that_are_as_far_share_one_read() -> None:
    asked, go_on = [], threading.Event()

    def read(job_id: str, after: int) -> list[Event]:
        asked.append((job_id, after))
        go_on.wait(30)
        return [Event(after + 1, 12.5, "log", {"line": "caf\u00e9"})]

    news = News(read, Heads(a=9), 0.005, threading.Event())
    streams = [asyncio.create_task(news.events("a", 3)) for _ in range(200)]
    other = asyncio.create_task(news.events("a", 4))
    while len(asked) < 2:
        await asyncio.sleep(0.005)
    streams[0].cancel()  # it leaves: the others stay
    go_on.set()
    found = await asyncio.gather(*streams[1:])
    assert sorted(asked) == [("a", 3), ("a", 4)]
    assert {event.seq for events in found for event in events} == {4} and (await other)[0].seq == 5
    assert found[0][0].text.decode().splitlines()[1] == 'data: {"at": 12.5, "line": "caf\u00e9"}'
    # What was read is old by then: the next one reads again.
    assert (await news.events("a", 3))[0].seq == 4 and len(asked) == 3


async def test_a_read_that_fails_fails_for_all_and_is_tried_again() -> None:
    answers = [OperationalError("SELECT", {}, Exception("locked")), None]

    def read(_job: str, _after: int) -> list[Event]:
        error = answers.pop(0)
        if error is not None:
            raise error
        return []

    news = News(read, Heads(a=9), 0.005, threading.Event())
    with pytest.raises(OperationalError):
        await news.events("a", 3)
    assert await news.events("a", 3) == []
