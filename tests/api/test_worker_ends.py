"""How jobs end that go wrong: time that is up, documents that are damaged, clocks that are set back, no database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fake_planner import OPTIMUM, problem
from private_postgresql import each_database_url
from running_service import wait_until

from loadmaster.api.packed import pack
from loadmaster.api.planning import load_planner
from loadmaster.api.settings import Settings
from loadmaster.api.store import figures, schema
from loadmaster.api.store.database import Database, DatabaseAwayError
from loadmaster.api.store.jobs import Jobs, NewJob
from loadmaster.api.store.queue import Queue
from loadmaster.api.store.records import Job, State
from loadmaster.api.worker import work
from loadmaster.api.worker.process import Message
from loadmaster.api.worker.worker import Worker

database_url = each_database_url

PLAN = {"kind": "fake", "status": "optimal", "objective": OPTIMUM, "bound": OPTIMUM, "gap": 0.0, "unit": "us"}
BEST = {**PLAN, "status": "feasible", "objective": 120.0, "gap": 1 / 6, "stopped_by": "nothing"}


class Store:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = Database(settings.database_url)
        self.jobs = Jobs(self.database, 1000)
        self.queue = Queue(self.database, lease_s=5.0, max_attempts=2)

    def submit(self, name: str = "a problem", time_limit_s: float = 60.0) -> str:
        document = problem(name=name)
        read = load_planner(self.settings.planner).read(document, {"time_limit_s": time_limit_s})
        new = NewJob(read.kind, read.name, read.options, read.gap, read.time_limit_s, None, read.cache_key)
        return self.jobs.submit(new, pack(document), {}, request_sha256="0" * 64).id

    def job(self, job_id: str) -> Job:
        found = self.jobs.get(job_id)
        assert found is not None
        return found

    def plan(self, job_id: str) -> dict[str, Any]:
        key = self.job(job_id).plan_sha256
        assert key is not None
        return self.jobs.document(key).document()

    def damage(self, key: str | None, body: bytes) -> None:
        with self.database.write() as connection:
            connection.execute(sa.update(schema.document).where(schema.document.c.sha256 == key).values(body=body))


@pytest.fixture
def open_store(make_settings: Callable[..., Settings]) -> Callable[..., Store]:
    return lambda **changes: Store(make_settings(**changes))


class Deaf:
    """Says what it is told to, does not stop at its time limit, and when it is asked to stop says its last word."""

    waiting = False

    def __init__(self, *messages: Message, last: Message | None = None) -> None:
        self.messages, self.last = list(messages), last
        self.killed = False

    def listen(self, timeout_s: float) -> list[Message]:
        if not self.messages:
            time.sleep(0.01)
            return []
        return [self.messages.pop(0)]

    def cancel(self) -> None:
        if self.last is not None:
            self.messages.append(self.last)

    def kill(self) -> None:
        self.killed = True


FOUND: Message = ("best_plan", (120.0, pack(BEST)))


@pytest.mark.parametrize(
    ("last", "objective"),
    [
        (None, 120.0),
        (("crash", "killed"), 120.0),
        (("error", {"type": "CancelledError", "detail": "stopped"}), 120.0),
        (("plan", {**BEST, "objective": 110.0, "stopped_by": "cancel"}), 110.0),
    ],
)
def test_a_job_whose_time_is_up_ends_with_its_best_plan(
    open_store: Callable[..., Store], last: Message | None, objective: float
) -> None:
    store = open_store(overrun_s=0.0, cancel_grace_s=0.3)
    job_id, deaf = store.submit(time_limit_s=0.1), Deaf(FOUND, last=last)
    assert Worker(store.settings, launch=lambda *_: deaf).work_once()
    job = store.job(job_id)
    assert (job.state, job.error, job.objective, job.status) == (State.SUCCEEDED, None, objective, "feasible")
    assert store.plan(job_id) == {**BEST, "objective": objective, "stopped_by": "time"}
    assert deaf.killed


def test_a_job_whose_time_is_up_without_a_plan_fails(open_store: Callable[..., Store]) -> None:
    store = open_store(overrun_s=0.0, cancel_grace_s=0.1)
    job_id = store.submit(time_limit_s=0.1)
    assert Worker(store.settings, launch=lambda *_: Deaf()).work_once()
    job = store.job(job_id)
    assert job.state is State.FAILED
    assert job.error is not None
    assert job.error["detail"] == "Planning did not stop at its time limit of 0.1 s and was ended 0 s later."


def damaged(document: dict[str, Any]) -> list[bytes]:
    whole = pack(document).body
    return [b"nonsense", whole[:-5], pack({"another": "document"}).body, b""]


@pytest.mark.parametrize("how", range(4))
def test_a_damaged_problem_fails_its_own_job_alone(open_store: Callable[..., Store], how: int) -> None:
    store = open_store()
    first, second = store.submit("first"), store.submit("second")
    store.damage(store.job(first).problem_sha256, damaged(problem(name="first"))[how])
    worker = Worker(store.settings, launch=lambda *_: Deaf(("plan", PLAN)))
    assert [worker.work_once(), worker.work_once(), worker.work_once()] == [True, True, False]
    assert [store.job(job_id).state for job_id in (first, second)] == [State.FAILED, State.SUCCEEDED]
    error = store.job(first).error
    assert error is not None
    assert error["detail"].startswith("The problem cannot be read any more")
    # Whoever submits it again brings it along.
    third = store.submit("first")
    assert worker.work_once()
    assert store.job(third).state is State.SUCCEEDED


@pytest.mark.parametrize("how", range(4))
def test_an_answer_that_cannot_be_read_is_none(open_store: Callable[..., Store], how: int) -> None:
    store = open_store()
    worker = Worker(store.settings, launch=lambda *_: Deaf(("plan", PLAN)))
    first = store.submit()
    # Queued before the answer is known, so that the claim is what finds it.
    with store.database.write() as connection:
        row = dict(connection.execute(sa.select(schema.job).where(schema.job.c.id == first)).one()._mapping)
        connection.execute(sa.insert(schema.job).values(**{**row, "id": schema.new_id("plan")}))
    assert worker.work_once()
    store.damage(store.job(first).plan_sha256, damaged(PLAN)[how])
    later = store.submit()
    assert store.job(later).state is State.QUEUED
    while worker.work_once():
        pass
    assert {job.state for job in store.jobs.latest()} == {State.SUCCEEDED}
    # Planned again, it is whole again.
    assert store.plan(first) == PLAN
    assert store.job(store.submit()).cached


def test_a_damaged_best_plan_keeps_no_job_from_its_end(open_store: Callable[..., Store]) -> None:
    store = open_store()
    job_id = store.submit()
    assert store.queue.claim("w") is not None
    assert store.queue.keep(job_id, "w", 120.0, pack(BEST))
    with store.database.write() as connection:
        connection.execute(sa.update(schema.incumbent).values(body=b"nonsense"))
    assert store.queue.run_out(job_id, "w", {"type": "LimitReachedError", "detail": "late"}, 1.0) is State.FAILED


def test_no_clock_makes_a_sum_negative(open_store: Callable[..., Store]) -> None:
    """Where the time of day was set back while jobs ran."""
    store = open_store()
    worker = Worker(store.settings, launch=lambda *_: Deaf(("plan", PLAN)))
    for name in "ab":
        store.submit(name)
    assert worker.work_once()
    second = store.queue.claim("w")
    assert second is not None
    with store.database.write() as connection:
        connection.execute(sa.update(schema.job).values(started_at=time.time() + 1e6))
    store.queue.keep(second.id, "w", 120.0, pack(BEST))
    store.jobs.cancel(second.id)
    store.queue.release(second.id, "w")
    assert store.job(second.id).state is State.CANCELLED
    found = figures.read(store.database).histograms["solve_seconds"]
    assert 0.0 <= found.total < 1e3
    assert found.buckets[-1][1] == 2


def test_a_worker_waits_for_its_database(
    make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings, tries = make_settings(), []

    def away_twice(settings: Settings, worker_id: str | None) -> Worker:
        tries.append(worker_id)
        if len(tries) < 3:
            raise DatabaseAwayError("database_url", "postgresql://...", "cannot be opened: it starts", "Wait.")
        return Worker(settings, worker_id=worker_id)

    monkeypatch.setattr(work, "_worker", away_twice)
    monkeypatch.setattr(work, "_FIRST_PAUSE_S", 0.01)
    with caplog.at_level("WARNING"):
        worker = work._worker_when_it_can(settings, "me", work._Life(None))
    assert worker is not None
    assert (worker.id, tries) == ("me", ["me"] * 3)
    assert [record.message.partition(",")[0] for record in caplog.records] == ["waiting for the database"] * 2


def test_a_worker_that_waits_for_its_database_can_be_ended(tmp_path: Path) -> None:
    url = f"postgresql://nobody@/nothing?host={tmp_path}"
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "LOADMASTER_DATABASE_URL": url, "PYTHONPATH": path}
    said = tmp_path / "said"
    with said.open("w") as output:
        command = [sys.executable, "-m", "loadmaster.api.worker"]
        worker = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    wait_until(lambda: "waiting for the database" in said.read_text())
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=60) == 0
    assert "Traceback" not in said.read_text()
