"""The bodies that are in memory at a time: no more than a budget, however many send them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from fake_planner import problem

from loadmaster.api.server.app import create_app
from loadmaster.api.server.reading import readers, submissions
from loadmaster.api.settings import Settings

BODY = json.dumps({"problem": problem(name="n", data="x" * 1000)}).encode()
JSON = {"Content-Type": "application/json"}


class Sender:
    """A body in two halves; the second one waits for :meth:`go_on`."""

    def __init__(self) -> None:
        self.half_sent, self._go_on = asyncio.Event(), asyncio.Event()

    async def body(self) -> AsyncIterator[bytes]:
        yield BODY[:600]
        self.half_sent.set()
        await self._go_on.wait()
        yield BODY[600:]

    def go_on(self) -> None:
        self._go_on.set()


@pytest.fixture
async def http(make_settings: Callable[..., Settings]) -> AsyncIterator[httpx.AsyncClient]:
    """A service with room for one body and a half."""
    app = create_app(make_settings(max_body_bytes=1500, max_bodies_memory_bytes=7000))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


async def test_bodies_share_a_budget(http: httpx.AsyncClient) -> None:
    first = Sender()
    under_way = asyncio.create_task(http.post("/v1/plans", content=first.body(), headers=JSON))
    await first.half_sent.wait()
    # Half a body is held: a whole one fits beside it, but not beside two halves.
    assert (await http.post("/v1/plans", content=BODY, headers=JSON)).status_code == 202
    second = Sender()
    beside = asyncio.create_task(http.post("/v1/plans", content=second.body(), headers=JSON))
    await second.half_sent.wait()
    refused = await http.post("/v1/plans", content=BODY, headers=JSON)
    assert refused.status_code == 503
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["type"] == "urn:loadmaster:problem:busy"
    assert int(refused.headers["retry-after"]) > 0
    # What has no body is answered meanwhile, and those under way are not harmed.
    assert (await http.get("/v1/plans")).status_code == 200
    second.go_on()
    assert (await beside).status_code == 202
    first.go_on()
    assert (await under_way).status_code == 202


async def test_what_was_refused_or_broken_off_gives_its_room_back(http: httpx.AsyncClient) -> None:
    for _ in range(5):
        too_large = await http.post("/v1/plans", content=BODY + b" " * 600, headers=JSON)
        assert too_large.status_code == 413
        assert (await http.post("/v1/plans", content=BODY[:-1], headers=JSON)).status_code == 422
        sender = Sender()
        broken_off = asyncio.create_task(http.post("/v1/plans", content=sender.body(), headers=JSON))
        await sender.half_sent.wait()
        broken_off.cancel()
        with pytest.raises(asyncio.CancelledError):
            await broken_off
    assert (await http.post("/v1/plans", content=BODY, headers=JSON)).status_code == 202


async def _with_one_under_way(
    make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, body: bytes, memory_bytes: int
) -> tuple[httpx.AsyncClient, asyncio.Task[httpx.Response], Callable[[], None]]:
    """A client of a service that has read a body and not parsed it yet; the answer to that; and what lets it go on."""
    loop, parsing, may_go_on = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    parse = submissions.parse_body

    def slowly(*arguments: Any) -> Any:
        loop.call_soon_threadsafe(parsing.set)
        asyncio.run_coroutine_threadsafe(may_go_on.wait(), loop).result()
        return parse(*arguments)

    # Here and not in a process of its own, where the parser is not replaced.
    monkeypatch.setattr(readers, "LARGEST_HERE_BYTES", 2 * len(body))
    monkeypatch.setattr(submissions, "parse_body", slowly)
    app = create_app(make_settings(max_bodies_memory_bytes=memory_bytes))
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")
    under_way = asyncio.create_task(http.post("/v1/plans", content=body, headers=JSON))
    await parsing.wait()
    monkeypatch.setattr(submissions, "parse_body", parse)
    return http, under_way, may_go_on.set


async def test_a_body_counts_until_it_is_answered(
    make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As objects it takes more memory than as bytes."""
    http, under_way, go_on = await _with_one_under_way(make_settings, monkeypatch, BODY, 7000)
    assert (await http.post("/v1/plans", content=BODY, headers=JSON)).status_code == 503
    go_on()
    assert (await under_way).status_code == 202
    assert (await http.post("/v1/plans", content=BODY, headers=JSON)).status_code == 202


def body_of(text: bytes) -> bytes:
    return b'{"problem": {"kind": "fake", "name": "n", "behaviour": "quick", "data": ' + text + b"}}"


@pytest.mark.parametrize(
    ("text", "second"),
    [
        (b'"' + 60_000 * b"x" + b'"', 202),  # 180 kB, twice
        (b"[" + b",".join(5_000 * [b"1234567890.5"]) + b"]", 503),  # as long, but 420 kB
        (b"[" + b",".join(2_000 * [b'{"a":1}']) + b"]", 503),  # a quarter as long, 530 kB
    ],
)
async def test_many_small_things_take_more_room_than_their_text(
    make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, text: bytes, second: int
) -> None:
    http, under_way, go_on = await _with_one_under_way(make_settings, monkeypatch, body_of(text), 600_000)
    assert (await http.post("/v1/plans", content=body_of(text), headers=JSON)).status_code == second
    go_on()
    assert (await under_way).status_code == 202


async def test_a_body_alone_is_always_read(make_settings: Callable[..., Settings]) -> None:
    app = create_app(make_settings(max_bodies_memory_bytes=1))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        for _ in range(2):
            assert (await http.post("/v1/plans", content=BODY, headers=JSON)).status_code == 202
