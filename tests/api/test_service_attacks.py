"""What was found by attacking the service: large bodies, slow bodies, full queues, full disks, files, passwords."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from fake_planner import FakePlanner, problem
from fastapi import FastAPI
from running_service import RunningService, alive, parent, pids, wait_until

from loadmaster.api.documents import PlanRequest
from loadmaster.api.planning import FloorPlanner, Request
from loadmaster.api.server.app import create_app
from loadmaster.api.server.reading.submissions import Asked, Reader
from loadmaster.api.settings import Settings
from loadmaster.api.store.database import Database
from loadmaster.api.worker.process import LocalJob
from loadmaster.errors import InputError
from loadmaster.models.documents import Document

GIB = 1 << 30


def command_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def client_of(app: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


@pytest.mark.parametrize(("small", "times"), [(b"[],", 10_000_000), (b'{"a":1},', 2_000_000)])
def test_small_things_by_the_million_are_refused_before_they_take_memory(small: bytes, times: int) -> None:
    body = b'{"problem":{"kind":"fake","forward":[' + small * times + b"[]]}}"
    tracemalloc.start()
    with pytest.raises(InputError) as refused:
        Reader(FakePlanner(), 60.0).read(Asked(PlanRequest, body))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused.value.field == "body"
    # Lists would be twenty times as much as their text.
    assert peak_bytes < len(body)


@pytest.mark.slow
@pytest.mark.parametrize("wide", ['{"problem":%s}', '{"problem":{"forward":[%s]}}', '{"problem":{},"labels":%s}'])
async def test_objects_of_very_many_keys_are_refused_as_a_whole(
    make_settings: Callable[..., Settings], wide: str
) -> None:
    """Each unknown key would be a refusal of its own, of a kilobyte."""
    body = wide % json.dumps({f"k{n}": 1 for n in range(200_000)})
    async with client_of(create_app(make_settings())) as http:
        answer = await http.post("/v1/plans", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["value"] == "200000"


async def test_a_body_that_does_not_come_is_given_up(make_settings: Callable[..., Settings]) -> None:
    async def half_a_body() -> object:  # type: ignore[misc]
        yield b'{"problem":'
        await asyncio.sleep(60)

    async with client_of(create_app(make_settings(request_timeout_s=0.1))) as http:
        answer = await http.post("/v1/plans", content=half_a_body(), headers={"content-type": "application/json"})
        assert answer.status_code == 408
        assert answer.json()["type"].endswith("too-slow")
        assert (await http.get("/livez")).status_code == 200


async def test_a_full_queue_takes_no_more_until_there_is_room(make_settings: Callable[..., Settings]) -> None:
    async with client_of(create_app(make_settings(max_queued_jobs=2))) as http:
        sent = [await http.post("/v1/plans", json={"problem": problem(name=f"n{n}")}) for n in range(3)]
        assert [answer.status_code for answer in sent] == [202, 202, 429]
        assert sent[2].json()["type"].endswith("queue-full")
        assert int(sent[2].headers["retry-after"]) > 0
        listed = (await http.get("/v1/plans")).json()["plans"]
        assert [plan["name"] for plan in listed] == ["n1", "n0"]
        whole = await http.post("/v1/frontiers", json={"problem": problem(name="f"), "budgets_bytes": [1, 2]})
        assert whole.status_code == 429
        assert len((await http.get("/v1/plans")).json()["plans"]) == 2
        await http.post(f"{sent[0].headers['location']}:cancel")
        assert (await http.post("/v1/plans", json={"problem": problem(name="n3")})).status_code == 202


async def test_a_frontier_reads_its_problem_once(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    read_each = FakePlanner.read_each

    def counted(self: FakePlanner, document: Document, options: list[Document]) -> list[Request]:
        asked.append(len(options))
        return read_each(self, document, options)

    monkeypatch.setattr(FakePlanner, "read_each", counted)
    async with client_of(app) as http:
        sweep = {"problem": problem(), "budgets_bytes": list(range(1, 65))}
        assert (await http.post("/v1/frontiers", json=sweep)).status_code == 202
    assert asked == [64]


@pytest.mark.parametrize("after", [100_000, 2**63, 10**18])
async def test_no_stream_goes_on_after_an_event_that_never_was(http: httpx.AsyncClient, after: int) -> None:
    plan = (await http.post("/v1/plans", json={"problem": problem()})).json()["links"]["self"]
    by_query = await http.get(f"{plan}/events", params={"after": after})
    by_header = await http.get(f"{plan}/events", headers={"Last-Event-ID": str(after)})
    assert (by_query.status_code, by_header.status_code) == (422, 422)
    assert "last event" in by_query.json()["detail"]


def test_a_new_database_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "made" / "service.db"
    database = Database(f"sqlite:///{path}")
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = version_num")
    files = [path, *path.parent.glob("service.db-*")]
    assert len(files) > 1
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    database.close()


@pytest.mark.parametrize(
    "url",
    [
        *("postgresql://user:secret@host:secret/x", "secret", "://user:secret@", "a b://secret"),
        # Drivers take passwords as parameters, too, and an @ that is not encoded ends one early.
        *("nosuch://host/x?password=secret", "nosuch://user:secret@host/x", "nosuch://user:a@secret@host/x"),
    ],
)
def test_a_password_in_an_url_is_not_shown(url: str) -> None:
    with pytest.raises(InputError) as error:
        Database(url)
    assert "secret" not in str(error.value)


async def test_a_store_that_takes_no_writes_is_not_ready(app: FastAPI) -> None:
    with app.state.service.database.write() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER full BEFORE UPDATE ON alembic_version BEGIN SELECT RAISE(FAIL, 'full'); END"
        )
    async with client_of(app) as http:
        ready = await http.get("/readyz")
    assert ready.status_code == 503
    assert "no writes" in ready.json()["checks"]["database"]


def test_a_solver_that_pulp_does_not_find_is_refused_at_once() -> None:
    with pytest.raises(InputError, match=r"options\.solver: is not installed here"):
        FloorPlanner().read({"kind": "memory"}, {"solver": "pulp:anything"})


def test_a_job_may_not_take_more_than_the_machine_has() -> None:
    settings = Settings()
    assert GIB / 4 < settings.max_job_memory_bytes < 1 << 60
    assert settings.max_queued_jobs > 0


def test_every_422_is_described_as_it_is_sent(app: FastAPI) -> None:
    described = app.openapi()["paths"]
    answers = [
        (path, method, operation["responses"]["422"]["content"])
        for path, methods in described.items()
        for method, operation in methods.items()
        if "422" in operation["responses"]
    ]
    assert answers
    assert [where for *where, content in answers if set(content) != {"application/problem+json"}] == []


def test_half_sent_headers_do_not_hold_a_connection(start_service: Callable[..., RunningService]) -> None:
    service = start_service(request_timeout_s=0.5)
    host, port = httpx.URL(service.url).host, httpx.URL(service.url).port
    waiting = [socket.create_connection((host, port), timeout=30) for _ in range(50)]
    for connection in waiting:
        connection.sendall(b"GET /v1/plans HTTP/1.1\r\nHost: loc")
    assert httpx.get(f"{service.url}/livez", timeout=30).status_code == 200
    # A connection that was answered may not go on for ever, either.
    again = socket.create_connection((host, port), timeout=30)
    again.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert again.recv(4096).startswith(b"HTTP/1.1 200")
    again.sendall(b"GET /livez HTT")
    for connection in [*waiting, again]:
        while connection.recv(4096):
            pass
        connection.close()


@pytest.mark.parametrize("path", ["/v1/plans", "/v1/frontiers"])
def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_bug(
    start_service: Callable[..., RunningService], caplog: pytest.LogCaptureFixture, path: str
) -> None:
    service = start_service()
    host, port = httpx.URL(service.url).host, httpx.URL(service.url).port
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
    with socket.create_connection((host, port), timeout=30) as connection:
        connection.sendall(head.encode())
        # It waits for the rest, then for nothing more.
        wait_until(lambda: service.server.server_state.tasks)
    wait_until(lambda: not service.server.server_state.tasks)
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.slow
def test_a_slow_answer_is_not_cut_off(start_service: Callable[..., RunningService]) -> None:
    service = start_service(request_timeout_s=0.2)
    plan = httpx.post(f"{service.url}/v1/plans", json={"problem": problem()}).json()["links"]["self"]
    waited = httpx.get(f"{service.url}{plan}", params={"wait": 1.0}, timeout=30)
    assert (waited.status_code, waited.json()["state"]) == (200, "queued")


@pytest.mark.slow
def test_a_stopped_job_does_not_outlive_its_worker(
    start_service: Callable[..., RunningService], tmp_path: Path
) -> None:
    service, marker = start_service(workers=1, max_attempts=1), tmp_path / "pids"
    httpx.post(f"{service.url}/v1/plans", json={"problem": problem("slow", marker=str(marker))})
    (job,) = wait_until(lambda: pids(marker))
    folder = next(Path(word) for word in command_of(job) if "loadmaster-job-" in word)
    assert folder.is_dir()
    os.kill(job, signal.SIGSTOP)
    os.kill(parent(job), signal.SIGKILL)
    wait_until(lambda: not alive(job))
    wait_until(lambda: not folder.exists())


def test_files_of_a_killed_solve_go_with_it(make_settings: Callable[..., Settings], tmp_path: Path) -> None:
    marker = tmp_path / "pids"
    job = LocalJob(json.dumps(problem("deaf", marker=str(marker))).encode(), {}, make_settings())
    (pid,) = wait_until(lambda: pids(marker))
    folder = next(Path(word) for word in command_of(pid) if "loadmaster-job-" in word)
    (folder / "left-by-a-solver.mps").write_text("ROWS")
    job.kill()
    assert not folder.exists()
