"""Leases: no job is claimed twice, none is lost, and who has lost a lease cannot write."""

from __future__ import annotations

import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from private_postgresql import each_database_url

from loadmaster.api.packed import pack
from loadmaster.api.store import figures, schema
from loadmaster.api.store.database import Database
from loadmaster.api.store.jobs import Jobs, NewJob
from loadmaster.api.store.queue import Beat, Queue
from loadmaster.api.store.records import State

PLAN = {"status": "optimal", "objective": 1.0, "bound": 1.0, "gap": 0.0, "unit": "us"}


def open_queue(url: str, lease_s: float = 5.0) -> tuple[Jobs, Queue]:
    """Submissions and leases of a database."""
    database = Database(url)
    return Jobs(database, 1000), Queue(database, lease_s=lease_s, max_attempts=2)


url = each_database_url


def submit(jobs: Jobs, number: int = 0, key: str | None = None) -> str:
    """A job that is like no other, unless a cache key is given."""
    new = NewJob("fake", str(number), {}, 0.02, 60.0, None, key or f"{number:064d}")
    return jobs.submit(new, pack({"number": number}), {}, request_sha256=f"{number:064d}").id


def claim_all(url: str, owner: str, start: float) -> list[str]:
    """Claim until nothing waits."""
    _, queue = open_queue(url)
    time.sleep(max(0.0, start - time.time()))
    claimed = []
    while (job := queue.claim(owner)) is not None:
        claimed.append(job.id)
    return claimed


def test_threads_claim_every_job_once(url: str) -> None:
    jobs, _ = open_queue(url)
    ids = [submit(jobs, number) for number in range(60)]
    with ThreadPoolExecutor(6) as pool:
        claims = list(pool.map(lambda n: claim_all(url, f"worker-{n}", time.time() + 0.2), range(6)))
    assert sorted(job for claimed in claims for job in claimed) == sorted(ids)


@pytest.mark.slow
def test_processes_claim_every_job_once(url: str) -> None:
    jobs, _ = open_queue(url)
    ids = [submit(jobs, number) for number in range(60)]
    start = time.time() + 2.0
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        claims = pool.starmap(claim_all, [(url, f"worker-{n}", start) for n in range(3)])
    assert sorted(job for claimed in claims for job in claimed) == sorted(ids)


def test_the_oldest_comes_first(url: str) -> None:
    jobs, queue = open_queue(url)
    ids = [submit(jobs, number) for number in range(5)]
    claimed = [queue.claim("w") for _ in range(5)]
    assert ids == [job.id for job in claimed if job is not None]


def test_ids_of_one_process_sort_in_the_order_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many within a millisecond, then after the clock was set back; never the same one to two threads."""
    monkeypatch.setattr(schema.time, "time", lambda: 1.7e9)
    made = [schema.new_id("plan") for _ in range(500)]
    monkeypatch.setattr(schema.time, "time", lambda: 1.6e9)
    made += [schema.new_id("plan") for _ in range(500)]
    assert made == sorted(set(made))
    with ThreadPoolExecutor(4) as pool:
        by_thread = list(pool.map(lambda _: [schema.new_id("plan") for _ in range(500)], range(4)))
    assert all(ids == sorted(ids) for ids in by_thread)
    assert len({number for ids in by_thread for number in ids}) == 2000
    assert all(len(number) <= schema.job.c.id.type.length for number in made)


def reclaimed(queue: Queue, within_s: float = 20.0) -> int:
    """How many come back, looking often."""
    deadline = time.monotonic() + within_s
    while not (found := queue.reclaim()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


@pytest.mark.slow
def test_a_lease_begins_when_it_is_seen(url: str) -> None:
    """Not when the worker began to wait for the database, however long that took."""
    jobs, queue = open_queue(url, lease_s=0.5)
    submit(jobs)
    database = Database(url)
    with ThreadPoolExecutor(1) as pool:
        with database.write():
            claimed = pool.submit(queue.claim, "w")
            time.sleep(1.0)
        assert claimed.result() is not None
    assert queue.reclaim() == 0


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0, 1e9])
def test_jumps_of_the_clock_neither_end_a_lease_nor_prolong_it(
    url: str, jump_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, queue = open_queue(url, lease_s=0.3)
    job_id = submit(jobs)
    queue.claim("w")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    for _ in range(4):
        assert queue.reclaim() == 0
        assert queue.beat(job_id, "w") is Beat.RUN
    monkeypatch.setattr(time, "time", real)
    assert queue.beat(job_id, "w") is Beat.RUN
    assert reclaimed(queue) == 1


def test_who_did_not_look_takes_nothing_back(url: str) -> None:
    """A process that was stopped for long does not know whether others were, too."""
    jobs, queue = open_queue(url, lease_s=0.2)
    submit(jobs)
    queue.claim("w")
    assert queue.reclaim() == 0
    time.sleep(0.5)
    assert queue.reclaim() == 0
    assert reclaimed(queue) == 1


def test_of_equal_requests_one_runs_and_the_others_take_its_plan(url: str) -> None:
    jobs, queue = open_queue(url)
    first, second = sorted(submit(jobs, n, key="same") for n in range(2))
    assert queue.claim("a") is not None
    assert queue.claim("b") is None, "the second waits"
    assert queue.finish(first, "a", State.SUCCEEDED, plan=PLAN)
    job = queue.claim("b")
    assert job is not None
    assert (job.id, job.state, job.cached) == (second, State.SUCCEEDED, True)


def test_an_unproved_plan_makes_the_second_run_itself(url: str) -> None:
    jobs, queue = open_queue(url)
    first, second = sorted(submit(jobs, n, key="same") for n in range(2))
    queue.claim("a")
    queue.finish(first, "a", State.SUCCEEDED, plan={**PLAN, "bound": 0.5, "gap": 0.5})
    job = queue.claim("b")
    assert job is not None
    assert (job.id, job.state) == (second, State.RUNNING)


@pytest.mark.parametrize(
    ("state", "gap", "asked", "answered"),
    [
        (State.SUCCEEDED, 0.02, 0.02, True),  # exactly as close as was asked for
        (State.SUCCEEDED, 0.021, 0.02, False),
        (State.SUCCEEDED, 0.021, 0.5, False),  # was not proved to what the first one asked for
        (State.SUCCEEDED, 0.02, 0.01, False),
        (State.SUCCEEDED, 0.01, 0.01, True),
        (State.CANCELLED, 0.0, 0.02, False),
        (State.INFEASIBLE, None, 0.0, True),
    ],
)
def test_which_answers_are_given_again(url: str, state: State, gap: float | None, asked: float, answered: bool) -> None:
    """Of an equal request that asked for a gap of 0.02."""
    jobs, queue = open_queue(url)
    first = submit(jobs, key="same")
    queue.claim("w")
    queue.finish(first, "w", state, plan={**PLAN, "gap": gap})
    new = NewJob("fake", "another", {}, asked, 60.0, None, "same")
    second = jobs.submit(new, pack({"number": 2}), {}, request_sha256="2" * 64)
    assert jobs.is_cached("same", asked) == answered
    assert (second.cached, second.state) == ((True, state) if answered else (False, State.QUEUED))


def test_a_silent_worker_loses_its_lease_and_can_write_no_more(url: str) -> None:
    jobs, queue = open_queue(url, lease_s=0.2)
    job_id = submit(jobs)
    queue.claim("silent")
    assert queue.reclaim() == 0
    assert reclaimed(queue) == 1
    assert queue.beat(job_id, "silent") is Beat.LOST
    assert queue.look(job_id, "silent") is Beat.LOST
    assert not queue.record(job_id, "silent", [("log", {"line": "too late"})])
    assert not queue.finish(job_id, "silent", State.SUCCEEDED, plan=PLAN)
    again = queue.claim("other")
    assert again is not None
    assert (again.id, again.attempts) == (job_id, 2)
    queue.release(job_id, "silent")
    queue.give_up(job_id, "silent", "nonsense")
    assert queue.beat(job_id, "other") is Beat.RUN
    assert "too late" not in str(jobs.events(job_id))


def test_heartbeats_keep_the_lease(url: str) -> None:
    jobs, queue = open_queue(url, lease_s=0.4)
    job_id = submit(jobs)
    queue.claim("w")
    for _ in range(6):
        time.sleep(0.1)
        assert queue.beat(job_id, "w") is Beat.RUN
        assert queue.reclaim() == 0


def test_the_second_death_is_a_failure_with_a_reason(url: str) -> None:
    jobs, queue = open_queue(url)
    job_id = submit(jobs)
    for attempt in (1, 2):
        job = queue.claim(f"w{attempt}")
        assert job is not None
        assert job.attempts == attempt
        assert queue.abandon(f"w{attempt}") == 1
    found = jobs.get(job_id)
    assert found is not None
    assert found.state is State.FAILED
    assert found.error is not None
    assert "2 times" in found.error["detail"]
    assert queue.claim("w3") is None


def test_a_released_job_has_lost_no_attempt(url: str) -> None:
    jobs, queue = open_queue(url)
    job_id = submit(jobs)
    for _ in range(5):
        job = queue.claim("w")
        assert job is not None
        assert job.attempts == 1
        queue.release(job_id, "w")


@pytest.mark.parametrize("end", ["release", "give_up", "abandon"])
def test_a_cancel_is_not_forgotten_when_the_worker_goes(url: str, end: str) -> None:
    jobs, queue = open_queue(url)
    job_id = submit(jobs)
    queue.claim("w")
    jobs.cancel(job_id)
    assert queue.look(job_id, "w") is Beat.CANCEL
    if end == "release":
        queue.release(job_id, "w")
    elif end == "give_up":
        queue.give_up(job_id, "w", "it crashed")
    else:
        queue.abandon("w")
    found = jobs.get(job_id)
    assert found is not None
    assert found.state is State.CANCELLED


@pytest.mark.slow
def test_final_jobs_never_change(url: str) -> None:
    jobs, queue = open_queue(url)
    job_id = submit(jobs)
    queue.claim("w")
    queue.finish(job_id, "w", State.SUCCEEDED, plan=PLAN)
    before = jobs.get(job_id)
    queue.finish(job_id, "w", State.FAILED, error={"type": "SolverError", "detail": "no"})
    queue.give_up(job_id, "w", "no")
    queue.release(job_id, "w")
    queue.abandon("w")
    jobs.cancel(job_id)
    assert jobs.get(job_id) == before


def test_events_number_without_gaps_under_many_writers(url: str) -> None:
    jobs, queue = open_queue(url)
    job_id = submit(jobs)
    queue.claim("w")
    threads = [
        threading.Thread(
            target=lambda n=n: [queue.record(job_id, "w", [("log", {"line": f"{n}-{i}"})]) for i in range(10)]
        )
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = jobs.events(job_id)
    assert [event.seq for event in events] == list(range(1, 2 + 1 + 40))
    lines = [event.data["line"] for event in events if event.type == "log"]
    assert len(set(lines)) == 40


def test_nul_is_no_end_of_a_text(url: str) -> None:
    """PostgreSQL's text does not hold it."""
    jobs, queue = open_queue(url)
    new = NewJob("fake", "a\0name", {"an": "option\0"}, 0.02, 60.0, None, "key")
    job = jobs.submit(new, pack({"a": "problem\0"}), {"a": "label\0"}, request_sha256="0" * 64)
    assert queue.claim("w") is not None
    queue.record(job.id, "w", [("log", {"line": "a\0line"})])
    assert job.name in ("a\0name", "a\ufffdname")
    assert (job.options, job.labels) == ({"an": "option\0"}, {"a": "label\0"})
    assert jobs.events(job.id)[-1].data == {"line": "a\0line"}
    assert [found.id for found in jobs.latest(label=("a", "label\0"))] == [job.id]
    assert jobs.get("\0") is None


@pytest.mark.parametrize("type_", ["progress", "incumbent"])
def test_a_job_shows_the_figures_of_its_latest_report(url: str, type_: str) -> None:
    jobs, queue = open_queue(url)
    job_id = submit(jobs)
    queue.claim("w")
    reports = [{"objective": 3.0, "bound": None, "gap": None}, {"objective": 3.0, "bound": 2.0, "gap": 1 / 3}]
    queue.record(job_id, "w", [(type_, reports[0]), ("log", {"line": "a line"}), (type_, reports[1])])
    job = jobs.get(job_id)
    assert job is not None
    assert {"objective": job.objective, "bound": job.bound, "gap": job.gap} == reports[1]


def test_workers_count_until_they_go_or_fall_silent(url: str) -> None:
    _, queue = open_queue(url, lease_s=0.3)
    database = Database(url)
    for worker in ("a", "b", "c"):
        queue.seen(worker)
        queue.seen(worker)
    assert figures.read(database).workers == 3
    queue.gone("c")
    assert figures.read(database).workers == 2
    deadline = time.monotonic() + 20.0
    while figures.read(database).workers == 2 and time.monotonic() < deadline:
        queue.seen("b")
        queue.reclaim()
        time.sleep(0.02)
    assert figures.read(database).workers == 1
    queue.seen("a")
    assert figures.read(database).workers == 2, "it was only slow"


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_jumps_of_the_clock_make_no_worker_silent(url: str, jump_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    _, queue = open_queue(url, lease_s=5.0)
    queue.seen("w")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    for _ in range(3):
        queue.reclaim()
    assert figures.read(Database(url)).workers == 1


def test_purging_leaves_no_document_behind(url: str) -> None:
    jobs, queue = open_queue(url)
    job_id = submit(jobs)
    queue.claim("w")
    queue.finish(job_id, "w", State.SUCCEEDED, plan=PLAN)
    assert jobs.purge(job_id)
    with Database(url).read() as connection:
        for table in (schema.document, schema.event, schema.job, schema.label):
            assert connection.execute(sa.select(sa.func.count()).select_from(table)).scalar() == 0
