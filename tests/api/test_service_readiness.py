"""/readyz: true, and told without a wait for whoever writes to the store."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from fastapi import FastAPI

from loadmaster.api.server.app import create_app
from loadmaster.api.server.readiness import Readiness
from loadmaster.api.settings import Settings

LONG_S = 3600.0


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


@pytest.mark.slow
async def test_a_long_write_does_not_hold_up_the_answer(app: FastAPI, http: httpx.AsyncClient) -> None:
    assert (await http.get("/readyz")).status_code == 200
    path = app.state.service.database.engine.url.database
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    try:
        # It is answered while the other one writes: nothing else ends the write.
        for _ in range(2):
            ready = await http.get("/readyz")
            assert (ready.status_code, ready.json()["checks"]["database"]) == (200, "ok")
    finally:
        writer.execute("ROLLBACK")
        writer.close()
    assert (await http.get("/readyz")).status_code == 200


class Look:
    """A look at the store that takes as long as the test likes."""

    def __init__(self) -> None:
        self.answer, self.count = {"database": "ok"}, 0
        self.goes_on = threading.Event()
        self.goes_on.set()

    def __call__(self) -> dict[str, str]:
        self.count += 1
        self.goes_on.wait()
        return self.answer


async def test_what_changes_is_told() -> None:
    look = Look()
    readiness = Readiness(look, LONG_S)
    assert await readiness.checks() == {"database": "ok"}
    for word in ("takes no writes", "ok"):
        look.answer = {"database": word}
        while await readiness.checks() != {"database": word}:
            await asyncio.sleep(0.01)


async def test_the_look_before_counts_while_one_takes_long_and_there_is_one_at_a_time() -> None:
    look = Look()
    readiness = Readiness(look, LONG_S)
    await readiness.checks()
    look.goes_on.clear()
    look.answer = {"database": "takes no writes"}
    try:
        assert await asyncio.gather(*(readiness.checks() for _ in range(20))) == [{"database": "ok"}] * 20
        assert look.count == 2
    finally:
        look.goes_on.set()
    while await readiness.checks() != {"database": "takes no writes"}:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("first", [True, False])
async def test_a_look_that_never_ends_is_a_bad_one(first: bool) -> None:
    look = Look()
    readiness = Readiness(look, 0.05)
    if not first:
        while await readiness.checks() != {"database": "ok"}:
            await asyncio.sleep(0.01)
    look.goes_on.clear()
    try:
        assert await readiness.checks() == {"database": "does not answer"}
    finally:
        look.goes_on.set()


@pytest.fixture
def make_app(make_settings: Callable[..., Settings]) -> Callable[[str], FastAPI]:
    """A service that asks for keys, or does not."""
    return lambda keys: create_app(make_settings(keys=keys))


@pytest.mark.parametrize("keys", ["off", "required"])
async def test_it_needs_no_key(make_app: Callable[[str], FastAPI], keys: str) -> None:
    transport = httpx.ASGITransport(make_app(keys))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
