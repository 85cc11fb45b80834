"""Streams, requests that wait and connections: counted, so that nobody takes those of everybody else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import httpx
import pytest
from fake_planner import problem
from fastapi import FastAPI
from running_service import RunningService, wait_until

from loadmaster.api.server.app import create_app
from loadmaster.api.settings import Settings
from loadmaster.api.store.keys import Keys, Scope


def client_of(app: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


async def test_requests_that_wait_are_counted(make_settings: Callable[..., Settings]) -> None:
    app = create_app(make_settings(keys="required", max_streams=3, max_key_streams=2))
    keys = Keys(app.state.service.database)
    ann, bob = ({"Authorization": f"Bearer {keys.add(name, Scope.SUBMIT)}"} for name in ("ann", "bob"))
    async with client_of(app) as http:
        plan = (await http.post("/v1/plans", json={"problem": problem()}, headers=ann)).json()["links"]["self"]
        waiting = [asyncio.create_task(http.get(f"{plan}?wait=60", headers=ann)) for _ in range(2)]
        while app.state.service.streams._taken.total() < 2:
            await asyncio.sleep(0.01)
        for path in (f"{plan}?wait=60", f"{plan}/events"):
            refused = await http.get(path, headers=ann)
            assert (refused.status_code, refused.json()["type"]) == (429, "urn:loadmaster:problem:quota-reached")
            assert "retry-after" in refused.headers
        # One that need not wait is answered.
        assert (await http.get(plan, headers=ann)).status_code == 200
        waiting.append(asyncio.create_task(http.get(f"{plan}?wait=60", headers=bob)))
        while app.state.service.streams._taken.total() < 3:
            await asyncio.sleep(0.01)
        full = await http.get(f"{plan}/events", headers=bob)
        assert (full.status_code, full.json()["type"]) == (503, "urn:loadmaster:problem:busy")
        await http.post(f"{plan}:cancel", headers=ann)
        assert {answer.json()["state"] for answer in await asyncio.gather(*waiting)} == {"cancelled"}
        # Their places are free again.
        assert app.state.service.streams._taken.total() == 0
        assert (await http.get(f"{plan}/events", headers=ann)).status_code == 200
        assert app.state.service.streams._taken.total() == 0


def test_a_stream_whose_reader_leaves_gives_its_place_back(start_service: Callable[..., RunningService]) -> None:
    service = start_service(max_streams=1)
    taken = service.app.state.service.streams._taken
    plan = httpx.post(f"{service.url}/v1/plans", json={"problem": problem()}).json()["links"]["self"]
    for _ in range(3):
        with httpx.stream("GET", f"{service.url}{plan}/events") as answer:
            assert answer.status_code == 200
            assert httpx.get(f"{service.url}{plan}/events").status_code == 503
        wait_until(lambda: not taken.total())


def test_connections_beyond_the_most_are_told_so(
    start_service: Callable[..., RunningService], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmaster.api.serve.most_connections", lambda: 5)
    service = start_service()
    where = (httpx.URL(service.url).host, httpx.URL(service.url).port)
    idle = [socket.create_connection(where, timeout=30) for _ in range(5)]
    wait_until(lambda: len(service.server.server_state.connections) == 5)
    with socket.create_connection(where, timeout=30) as refused:
        refused.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert refused.recv(4096).startswith(b"HTTP/1.1 503 ")
    for connection in idle:
        connection.close()
    wait_until(lambda: not service.server.server_state.connections)
    assert httpx.get(f"{service.url}/livez").status_code == 200


async def test_a_pool_without_a_free_thread_is_not_ready(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    import anyio.to_thread

    monkeypatch.setattr("loadmaster.api.server.readiness._LONGEST_WITHOUT_THREAD_S", 0.0)
    goes_on = threading.Event()
    limiter = anyio.to_thread.current_default_thread_limiter()
    held = [asyncio.create_task(anyio.to_thread.run_sync(goes_on.wait)) for _ in range(int(limiter.total_tokens))]
    while limiter.available_tokens:
        await asyncio.sleep(0.01)
    try:
        async with client_of(app) as http:
            ready = await http.get("/readyz")
            assert (ready.status_code, ready.json()["checks"]["threads"]) == (503, "none free")
            assert (await http.get("/livez")).status_code == 200
            goes_on.set()
            await asyncio.gather(*held)
            assert (await http.get("/readyz")).status_code == 200
    finally:
        goes_on.set()


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/plans/plan_1", "DELETE, GET"),
        ("PUT", "/v1/plans/plan_1:cancel", "POST"),
        ("GET", "/v1/plans/plan_1:cancel", "POST"),
        ("DELETE", "/v1/frontiers/frontier_1:cancel", "POST"),
        ("POST", "/v1/frontiers/frontier_1", "GET"),
        ("POST", "/v1/plans/plan_1/measurement", "GET, PUT"),
    ],
)
async def test_a_refused_method_names_all_that_are_allowed(
    http: httpx.AsyncClient, method: str, path: str, allowed: str
) -> None:
    refused = await http.request(method, path)
    assert (refused.status_code, refused.headers["allow"]) == (405, allowed)
