"""Large requests to plan, which are read in processes of their own: the same answers, and nobody waits for them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_planner import problem
from fastapi import FastAPI
from running_service import RunningService, alive, pids, wait_until

from loadmaster.api.server.app import create_app
from loadmaster.api.server.reading.readers import LARGEST_HERE_BYTES
from loadmaster.api.settings import Settings
from loadmaster.models.canonical import canonical_json

JSON = {"Content-Type": "application/json"}
# White space says nothing, and makes any body large.
LARGE = b" " * (LARGEST_HERE_BYTES + 1)


@pytest.fixture
async def app(make_settings: Callable[..., Settings]) -> AsyncIterator[FastAPI]:
    app = create_app(make_settings(planner="odd_reading:OddReading"))
    yield app
    app.state.service.readers.close()


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def body_of(**request: Any) -> bytes:
    return json.dumps(request).encode()


def odd(tmp_path: Path, reading: str) -> tuple[bytes, Path]:
    """A large body that is read in an odd way, and the file in which the processes that do so note themselves."""
    marker = tmp_path / "read_by"
    return body_of(problem=problem(reading=reading, marker=str(marker))) + LARGE, marker


async def post(http: httpx.AsyncClient, body: bytes, path: str = "/v1/plans", **more: Any) -> httpx.Response:
    return await http.post(path, content=body, headers=JSON, **more)


WRONG = [
    b"",
    b"[]",
    b"{nonsense}",
    b'{"problem":{},"options":\xff}',
    b'{"problem":{"kind":"fake","name":1e999}}',
    b'{"problem":{"kind":"fake","forward":' + b"[" * 10_000 + b"]" * 10_000 + b"}}",
    b'{"problem":{"kind":"fake","forward":[' + b"[]," * 3_000_000 + b"[]]}}",
    b'{"problem":{},"labels":' + json.dumps({f"k{n}": 1 for n in range(110_000)}).encode() + b"}",
    body_of(problem=3),
    body_of(problem=problem(), options=[], labels={"a": "\x00"}),
    body_of(problem=problem(), no_field={"a": ["~/\ud800", 2**60]}),
    body_of(problem=problem("no behaviour" * 100)),
    body_of(problem=problem(), options={"time_limit_s": 1e9}),
    body_of(problem=problem(), options={"a/b~c": [1, 2]}),
    body_of(problem={"blob_sha256": "0" * 64}),
    body_of(problem={"blob_sha256": ["x" * 1000]}),
]


@pytest.mark.parametrize("path", ["/v1/plans", "/v1/frontiers"])
async def test_what_is_wrong_is_told_in_the_same_words(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    for body in WRONG:
        there = await post(http, body + LARGE, path)
        with monkeypatch.context() as patch:
            patch.setattr("loadmaster.api.server.reading.readers.LARGEST_HERE_BYTES", 1 << 30)
            here = await post(http, body + LARGE, path)
        assert there.status_code == 422
        assert (there.json(), there.headers) == (here.json(), here.headers)


async def test_what_is_good_is_planned_as_a_small_one_is(http: httpx.AsyncClient, app: FastAPI) -> None:
    request = {"problem": problem(name="n", data=[1.5, "ä"]), "options": {"seed": 3}, "labels": {"a": "b"}}
    key = {"Idempotency-Key": "k"}
    large = await http.post("/v1/plans", content=body_of(**request) + LARGE, headers={**JSON, **key})
    again = await http.post("/v1/plans", content=body_of(**request) + LARGE, headers={**JSON, **key})
    small = await post(http, body_of(**request))
    assert [answer.status_code for answer in (large, again, small)] == [202] * 3
    assert large.json()["id"] == again.json()["id"] != small.json()["id"]
    jobs = [app.state.service.jobs.get(answer.json()["id"]) for answer in (large, small)]
    alike = ("problem_sha256", "kind", "name", "labels", "options", "cache_key", "asked_gap", "time_limit_s", "limit")
    assert [getattr(jobs[0], name) for name in alike] == [getattr(jobs[1], name) for name in alike]
    kept = await http.get(f"{large.headers['location']}/problem")
    assert kept.content == canonical_json(request["problem"])
    sweep = await post(http, body_of(**request, budgets_bytes=[2, 1, 2]) + LARGE, "/v1/frontiers")
    assert [point["budget_bytes"] for point in sweep.json()["points"]] == [1, 2]
    sizes = [
        (await post(http, body_of(**request) + padding, params={"dry_run": True})).json() for padding in (b"", LARGE)
    ]
    assert sizes[0] == sizes[1]
    assert len((await http.get("/v1/plans")).json()["plans"]) == 4


async def test_a_large_blob_is_read_there_too(http: httpx.AsyncClient) -> None:
    async def of_blob(document: dict[str, Any]) -> httpx.Response:
        content = json.dumps(document).encode() + LARGE
        sha256 = hashlib.sha256(content).hexdigest()
        assert (await http.put(f"/v1/blobs/{sha256}", content=content)).status_code == 201
        return await post(http, body_of(problem={"blob_sha256": sha256}, labels={"of": "a blob"}))

    plan = await of_blob(problem(name="of a blob"))
    assert (plan.status_code, plan.json()["name"], plan.json()["labels"]) == (202, "of a blob", {"of": "a blob"})
    refused = await of_blob({"kind": "fake", "name": float("inf")})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/problem/name")


async def test_a_process_that_dies_once_is_replaced(http: httpx.AsyncClient, tmp_path: Path) -> None:
    body, marker = odd(tmp_path, "dies once")
    assert (await post(http, body)).status_code == 202
    assert len(set(pids(marker))) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reading", "status", "tries", "told"),
    [
        ("dies", 503, 2, "SIGKILL"),
        ("takes all memory", 503, 1, "max_job_memory_bytes"),
        ("has a bug", 500, 1, "Please report it"),
    ],
)
async def test_a_body_that_cannot_be_read_harms_nobody_else(
    http: httpx.AsyncClient, tmp_path: Path, reading: str, status: int, tries: int, told: str
) -> None:
    body, marker = odd(tmp_path, reading)
    answer = await post(http, body)
    assert answer.status_code == status
    assert told in answer.json()["detail"]
    assert "inside" not in answer.text
    assert (status == 503) == ("retry-after" in answer.headers)
    assert len(pids(marker)) == tries
    assert (await post(http, body_of(problem=problem()) + LARGE)).status_code == 202
    assert (await http.get("/v1/plans")).json()["plans"][0]["name"] == "a problem"


@pytest.mark.slow
async def test_a_process_that_does_not_come_to_an_end_is_ended(
    http: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmaster.api.server.reading.readers._LONGEST_S", 1.0)
    body, marker = odd(tmp_path, "waits")
    answer = await post(http, body)
    assert (answer.status_code, "longer than 1 second" in answer.json()["detail"]) == (503, True)
    assert [pid for pid in pids(marker) if alive(pid)] == []


@pytest.mark.slow
async def test_small_requests_do_not_wait_for_large_ones(http: httpx.AsyncClient, tmp_path: Path) -> None:
    """Also not where more large ones wait than there are threads for requests."""
    body, marker = odd(tmp_path, "waits")
    large = [asyncio.create_task(post(http, body)) for _ in range(50)]
    while len(pids(marker)) < 2:
        await asyncio.sleep(0.02)
    for path in ("/livez", "/v1/plans"):
        assert (await http.get(path)).status_code == 200
    assert (await post(http, body_of(problem=problem()))).status_code == 202
    assert [task for task in large if task.done()] == []
    marker.with_suffix(".go").touch()
    assert {answer.status_code for answer in await asyncio.gather(*large)} == {202}


async def test_what_is_read_when_the_server_stops_is_refused(
    app: FastAPI, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    body, marker = odd(tmp_path, "waits")
    large = [asyncio.create_task(post(http, body)) for _ in range(3)]
    while len(pids(marker)) < 2:
        await asyncio.sleep(0.02)
    app.state.service.readers.close()
    answers = await asyncio.gather(*large)
    assert {answer.status_code for answer in answers} == {503}
    assert [pid for pid in pids(marker) if alive(pid)] == []


def test_a_server_that_stops_leaves_no_process(start_service: Callable[..., RunningService], tmp_path: Path) -> None:
    service = start_service(planner="odd_reading:OddReading")
    body, marker = odd(tmp_path, "is noted")
    assert httpx.post(f"{service.url}/v1/plans", content=body, headers=JSON, timeout=60).status_code == 202
    (pid,) = pids(marker)
    assert alive(pid)
    service.stop()
    assert not alive(pid)


def test_a_process_does_not_outlive_the_server_that_was_killed(tmp_path: Path) -> None:
    program = """
import os
from loadmaster.api.server.processes.process import WorkProcess
print(WorkProcess(0, "no cap").pid, flush=True)
os.kill(os.getpid(), 9)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    wait_until(lambda: not alive(int(run.stdout)))


async def test_idle_processes_are_ended(
    app: FastAPI, http: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmaster.api.server.processes.pool._IDLE_S", 0.0)
    body, marker = odd(tmp_path, "is noted")
    assert (await post(http, body)).status_code == 202
    while alive(pids(marker)[0]):
        await asyncio.sleep(0.02)
    assert (await post(http, body)).status_code == 202
    assert len(set(pids(marker))) == 2
