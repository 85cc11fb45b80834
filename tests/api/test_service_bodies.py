"""The bodies that are in memory at a time: no more than a budget, however many send them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from fake_planner import problem

from loadmaster.api.server.app import create_app
from loadmaster.api.settings import Settings
from loadmaster.errors import InputError

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
    app = create_app(make_settings(max_body_bytes=1500, max_bodies_bytes=1700))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


async def test_bodies_share_a_budget(http: httpx.AsyncClient) -> None:
    first = Sender()
    under_way = asyncio.create_task(http.post("/v1/plans", content=first.body(), headers=JSON))
    await first.half_sent.wait()
    # 600 bytes are held: a body of 1,000 and some fits beside them, two do not.
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


async def test_a_body_counts_until_it_is_answered(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """As objects it takes more memory than as bytes."""
    from loadmaster.api.server import plans

    loop, parsing, may_go_on = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    parse = plans.parse_body

    def slowly(*arguments: object) -> object:
        loop.call_soon_threadsafe(parsing.set)
        asyncio.run_coroutine_threadsafe(may_go_on.wait(), loop).result()
        return parse(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(plans, "parse_body", slowly)
    first = asyncio.create_task(http.post("/v1/plans", content=BODY, headers=JSON))
    await parsing.wait()
    assert (await http.post("/v1/plans", content=BODY, headers=JSON)).status_code == 503
    may_go_on.set()
    assert (await first).status_code == 202
    assert (await http.post("/v1/plans", content=BODY, headers=JSON)).status_code == 202


def test_the_largest_body_must_fit_the_budget() -> None:
    with pytest.raises(InputError, match="max_bodies_bytes"):
        Settings(max_body_bytes=100, max_bodies_bytes=99)
    Settings(max_body_bytes=100, max_bodies_bytes=100)
