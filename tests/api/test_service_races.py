"""Many that write at the same time: whatever the order, the outcome is one that some order of one by one would have."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import sqlalchemy as sa
from private_postgresql import each_database_url

from loadmaster.api.packed import pack
from loadmaster.api.store import figures, schema
from loadmaster.api.store.database import Database
from loadmaster.api.store.jobs import Jobs, NewJob, QueueFullError
from loadmaster.api.store.queue import Queue
from loadmaster.api.store.records import Job, State
from loadmaster.models.documents import Document

ResultT = TypeVar("ResultT")

url = each_database_url
THREADS = 6
PLAN = {"status": "optimal", "objective": 1.0, "bound": 1.0, "gap": 0.0, "unit": "us"}


@pytest.fixture
def database(url: str) -> Database:
    return Database(url)


@pytest.fixture
def jobs(database: Database) -> Jobs:
    return Jobs(database, 1000)


@pytest.fixture
def queue(database: Database) -> Queue:
    return Queue(database, lease_s=60.0, max_attempts=2)


def new(key: str, limit: int | None = None) -> NewJob:
    return NewJob("fake", "a name", {}, 0.02, 60.0, limit, key)


def at_once(call: Callable[[int], ResultT], count: int = THREADS) -> list[ResultT]:
    """What these calls with 0, 1, ... return, made as much at the same time as threads can be."""
    ready = threading.Barrier(count)

    def when_all_are_ready(number: int) -> ResultT:
        ready.wait()
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(when_all_are_ready, range(count)))


def left(database: Database) -> dict[str, int]:
    """How many rows the tables of jobs hold."""
    with database.read() as connection:
        tables = (schema.document, schema.event, schema.frontier, schema.job, schema.label)
        return {table.name: connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0 for table in tables}


def submit(jobs: Jobs, key: str, problem: Document | None = None, idempotency_key: str | None = None) -> Job:
    return jobs.submit(new(key), pack(problem or {}), {}, request_sha256="0" * 64, idempotency_key=idempotency_key)


def test_one_idempotency_key_makes_one_job(database: Database, jobs: Jobs) -> None:
    for turn in range(10):
        made = at_once(lambda _, key=f"key {turn}": submit(jobs, key, {"for": key}, key))
        assert len({job.id for job in made}) == 1
    assert left(database)["job"] == 10


def test_one_idempotency_key_makes_one_frontier(database: Database, jobs: Jobs) -> None:
    for turn in range(5):
        points = [new(f"{turn}-{limit}", limit) for limit in range(3)]
        made = at_once(
            lambda _, p=points, k=f"key {turn}": jobs.submit_frontier(
                p, pack({}), {"run": "x"}, request_sha256="0" * 64, idempotency_key=k
            )
        )
        assert len({frontier.id for frontier in made}) == 1
    assert left(database) == {"document": 1, "event": 15, "frontier": 5, "job": 15, "label": 15}


def test_of_equal_jobs_one_runs(jobs: Jobs, queue: Queue) -> None:
    for number in range(40):
        submit(jobs, f"key {number % 4}", {"number": number})
    at_once(lambda worker: [queue.claim(f"w{worker}-{n}") for n in range(3)])
    running = jobs.latest(state=State.RUNNING)
    assert sorted(job.cache_key for job in running) == [f"key {number}" for number in range(4)]


def test_every_end_is_counted(database: Database, jobs: Jobs, queue: Queue) -> None:
    """Each end writes to several counters: in orders in which none waits for one that waits for it."""
    for number in range(60):
        submit(jobs, f"key {number}", {"number": number})

    def work(worker: int) -> None:
        gap = 0.002 * worker
        while (job := queue.claim(f"w{worker}")) is not None:
            assert queue.finish(job.id, f"w{worker}", State.SUCCEEDED, plan={**PLAN, "gap": gap, "bound": 1 - gap})

    at_once(work)
    found = figures.read(database)
    assert found.jobs == {"succeeded": 60}
    assert {name: dict(h.buckets)["+Inf"] for name, h in found.histograms.items()} == {
        "solve_seconds": 60,
        "gap_at_stop": 60,
    }


def test_jobs_and_frontiers_that_are_answered_at_once_do_not_lock_each_other_out(
    database: Database, jobs: Jobs, queue: Queue
) -> None:
    """They write the same plans and the same counters."""
    keys = [f"key {number}" for number in range(4)]
    for key in keys:
        submit(jobs, key, {"key": key})
        job = queue.claim("w")
        assert job is not None
        queue.finish(job.id, "w", State.SUCCEEDED, plan={**PLAN, "key": key})

    def submit_all(number: int) -> None:
        order = keys if number % 2 else keys[::-1]
        for key in order:
            submit(jobs, key, {"number": number})
        points = [new(key, limit) for limit, key in enumerate(order)]
        jobs.submit_frontier(points, pack({"number": number}), {}, request_sha256="0" * 64)

    at_once(submit_all)
    assert figures.read(database).cache_hits == THREADS * 2 * len(keys)


@pytest.mark.slow
def test_no_more_jobs_wait_than_may(url: str) -> None:
    """Each has connections of its own, as servers have; frontiers are taken as a whole or not at all."""
    most = 7

    def submit_all(number: int) -> int:
        own = Jobs(Database(url), most)
        taken = 0
        for turn in range(3):
            points = [new(f"{number} {turn} {limit}", limit) for limit in range(1 + number % 2)]
            with contextlib.suppress(QueueFullError):
                if len(points) == 1:
                    own.submit(points[0], pack({}), {}, request_sha256="0" * 64)
                else:
                    own.submit_frontier(points, pack({}), {}, request_sha256="0" * 64)
                taken += len(points)
        return taken

    taken = at_once(submit_all)
    waiting = figures.read(Database(url)).jobs["queued"]
    # A pair may be refused where there is room for one.
    assert sum(taken) == waiting
    assert most - 1 <= waiting <= most


def test_a_cancel_and_a_claim_of_the_same_job(jobs: Jobs, queue: Queue) -> None:
    for turn in range(20):
        job_id = submit(jobs, f"key {turn}").id
        claimed, _ = at_once(lambda who, j=job_id: queue.claim("w") if who == 0 else jobs.cancel(j), 2)
        job = jobs.get(job_id)
        assert job is not None
        if claimed is None:
            assert job.state is State.CANCELLED
        else:
            assert (job.state, job.cancel_requested) == (State.RUNNING, True)
            queue.release(job_id, "w")
        assert [event.seq for event in jobs.events(job_id)] == list(range(1, len(jobs.events(job_id)) + 1))


def test_jobs_that_share_everything_are_purged_without_a_rest(database: Database, jobs: Jobs) -> None:
    for _ in range(5):
        points = [new(f"key {limit}", limit) for limit in range(THREADS)]
        ids = [job.id for job in jobs.submit_frontier(points, pack({}), {"run": "x"}, request_sha256="0" * 64).jobs]
        for job_id in ids:
            jobs.cancel(job_id)
        assert all(at_once(lambda number, ids=ids: jobs.purge(ids[number])))
        assert set(left(database).values()) == {0}


@pytest.mark.slow
def test_a_purge_does_not_take_the_document_of_a_new_job(database: Database, jobs: Jobs) -> None:
    for turn in range(15):
        old = submit(jobs, "key", {"the": "same"}).id
        jobs.cancel(old)
        made = at_once(lambda who, old=old: jobs.purge(old) if who == 0 else submit(jobs, "key", {"the": "same"}))
        for job in made[1:]:
            assert not isinstance(job, bool)
            assert jobs.document(job.problem_sha256).content() == b'{"the":"same"}'
            jobs.cancel(job.id)
        assert left(database)["job"] == (turn + 1) * (THREADS - 1)
