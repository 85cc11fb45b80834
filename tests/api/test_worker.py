"""A worker, driven one job at a time in this process; the jobs' own processes are real, but where they are scripted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from fake_planner import OPTIMUM, problem
from private_postgresql import each_database_url
from running_service import alive, pids, wait_until

from loadmaster.api.packed import pack
from loadmaster.api.planning import load_planner
from loadmaster.api.settings import Settings
from loadmaster.api.store import schema
from loadmaster.api.store.database import Database
from loadmaster.api.store.jobs import Jobs, NewJob
from loadmaster.api.store.queue import Queue
from loadmaster.api.store.records import Job, State
from loadmaster.api.worker.process import Message
from loadmaster.api.worker.work import Crew
from loadmaster.api.worker.worker import Worker

database_url = each_database_url

DONE: Message = ("plan", {"status": "optimal", "objective": OPTIMUM})


class Store:
    """Submissions to a fresh database, and what became of them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = Database(settings.database_url)
        self.jobs = Jobs(self.database, 1000)

    def submit(self, behaviour: str, time_limit_s: float = 60.0, **more: object) -> str:
        document = problem(behaviour, **more)
        read = load_planner(self.settings.planner).read(document, {"time_limit_s": time_limit_s})
        new = NewJob(read.kind, read.name, read.options, read.gap, read.time_limit_s, None, read.cache_key)
        return self.jobs.submit(new, pack(document), {}, request_sha256="0" * 64).id

    def job(self, job_id: str) -> Job:
        found = self.jobs.get(job_id)
        assert found is not None
        return found


@pytest.fixture
def open_store(make_settings: Callable[..., Settings]) -> Callable[..., Store]:
    return lambda **changes: Store(make_settings(**changes))


class ScriptedJob:
    """Says what it is told to, one message at a time."""

    waiting = False

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)
        self.killed = False

    def listen(self, timeout_s: float) -> list[Message]:
        return [self.messages.pop(0)] if self.messages else []

    def cancel(self) -> None:
        raise AssertionError("nobody cancels")

    def kill(self) -> None:
        self.killed = True


def test_a_job_far_beyond_its_time_limit_is_ended_with_all_it_started(
    open_store: Callable[..., Store], tmp_path: Path
) -> None:
    store = open_store(overrun_s=0.2)
    job_id = store.submit("forking", time_limit_s=0.5, marker=str(tmp_path / "m"))
    # The limit runs from the start of the job's process: under load, it may not come as far as to fork.
    worker = Worker(store.settings)
    assert worker.work_once()
    job = store.job(job_id)
    assert job.state is State.FAILED
    assert job.error is not None
    assert (job.error["type"], "time limit of 0.5 s" in job.error["detail"]) == ("LimitReachedError", True)
    for pid in pids(tmp_path / "m"):
        wait_until(lambda pid=pid: not alive(pid))


def test_killing_a_job_ends_what_it_started(open_store: Callable[..., Store], tmp_path: Path) -> None:
    store = open_store(cancel_grace_s=0.1)
    job_id = store.submit("forking", marker=str(tmp_path / "m"))
    worker = threading.Thread(target=Worker(store.settings).work_once)
    worker.start()
    wait_until(lambda: len(pids(tmp_path / "m")) == 2)
    store.jobs.cancel(job_id)
    worker.join()
    assert store.job(job_id).state is State.CANCELLED
    for pid in pids(tmp_path / "m"):
        wait_until(lambda pid=pid: not alive(pid))


@pytest.mark.parametrize("last", [DONE, ("crash", "gone")])
def test_a_busy_database_is_waited_for_and_the_job_goes_on(
    open_store: Callable[..., Store], caplog: pytest.LogCaptureFixture, last: Message
) -> None:
    """Locked from the first incumbent on, for longer than a transaction waits."""
    store = open_store(lease_s=1.0, max_attempts=1)
    job_id = store.submit("quick")
    locked = threading.Event()

    class Locking(ScriptedJob):
        def listen(self, timeout_s: float) -> list[Message]:
            holder.start()
            locked.wait()
            return super().listen(timeout_s)

    def hold() -> None:
        with store.database.write() as connection:
            # SQLite locks all that can be written, PostgreSQL rows.
            connection.execute(sa.select(schema.job.c.id).with_for_update())
            locked.set()
            wait_until(lambda: "does not answer" in caplog.text)

    holder = threading.Thread(target=hold)
    job = Locking(last)
    with caplog.at_level(logging.WARNING):
        Worker(store.settings, launch=lambda *_: job).work_once()
    holder.join()
    assert job.killed
    assert store.job(job_id).state is (State.SUCCEEDED if last[0] == "plan" else State.FAILED)
    assert store.job(job_id).attempts == 1


def test_a_long_job_keeps_its_lease(open_store: Callable[..., Store]) -> None:
    store = open_store(lease_s=1.0)
    job_id = store.submit("quick")
    leases: list[int] = []

    class Long(ScriptedJob):
        """Says nothing until its lease was renewed twice."""

        def listen(self, timeout_s: float) -> list[Message]:
            lease = store.job(job_id).lease_beats
            assert lease is not None
            leases.append(lease)
            time.sleep(0.02)
            return super().listen(timeout_s) if len(set(leases)) == 3 else []

    Worker(store.settings, launch=lambda *_: Long(DONE)).work_once()
    assert leases == sorted(leases)
    assert store.job(job_id).state is State.SUCCEEDED


def test_a_job_whose_lease_is_lost_is_ended_and_writes_no_more(open_store: Callable[..., Store]) -> None:
    store = open_store()
    job_id = store.submit("quick")
    queue = Queue(store.database, lease_s=60.0, max_attempts=5)

    class Lost(ScriptedJob):
        """Another worker has the job by the time that this one speaks."""

        def listen(self, timeout_s: float) -> list[Message]:
            assert self.messages, "nobody listens any more"
            if len(self.messages) == 2:
                queue.abandon(worker.id)
                assert queue.claim("another") is not None
            return super().listen(timeout_s)

    job = Lost(("log", "too late"), DONE)
    worker = Worker(store.settings, launch=lambda *_: job)
    worker.work_once()
    assert job.killed
    assert (store.job(job_id).state, store.job(job_id).lease_owner) == (State.RUNNING, "another")
    assert "too late" not in str(store.jobs.events(job_id))


@pytest.mark.parametrize(
    ("last", "state"),
    [
        (("plan", {"status": "feasible", "objective": 2.0}), State.CANCELLED),
        (("plan", {"status": "optimal", "objective": 2.0}), State.CANCELLED),
        (("plan", {"status": "infeasible"}), State.INFEASIBLE),
        (("error", {"type": "LimitReachedError", "detail": "too early"}), State.CANCELLED),
        (("error", {"type": "CancelledError", "detail": "nothing yet"}), State.CANCELLED),
        (("crash", "it died"), State.CANCELLED),
    ],
)
def test_how_a_cancelled_job_ends(open_store: Callable[..., Store], last: Message, state: State) -> None:
    """It keeps its plan; a proof that there is none stays an answer; what it failed of meanwhile is of no interest."""
    store = open_store(cancel_grace_s=60.0)
    job_id = store.submit("quick")

    class Cancelled(ScriptedJob):
        """Ends once it was told to."""

        told = False

        def listen(self, timeout_s: float) -> list[Message]:
            store.jobs.cancel(job_id)
            return super().listen(timeout_s) if self.told else []

        def cancel(self) -> None:
            assert not self.told, "told once"
            self.told = True

    Worker(store.settings, launch=lambda *_: Cancelled(last)).work_once()
    job = store.job(job_id)
    assert (job.state, job.error) == (state, None)
    assert (job.plan_sha256 is not None) == (last[0] == "plan")


def test_a_cancelled_error_that_nobody_asked_for_is_a_cancel(open_store: Callable[..., Store]) -> None:
    store = open_store()
    job_id = store.submit("quick")
    answer = ScriptedJob(("error", {"type": "CancelledError", "detail": "by a signal"}))
    Worker(store.settings, launch=lambda *_: answer).work_once()
    assert (store.job(job_id).state, store.job(job_id).error) == (State.CANCELLED, None)


def test_a_cancelled_job_that_does_not_end_is_ended(open_store: Callable[..., Store]) -> None:
    store = open_store(cancel_grace_s=0.1)
    job_id = store.submit("quick")

    class Deaf(ScriptedJob):
        def listen(self, timeout_s: float) -> list[Message]:
            store.jobs.cancel(job_id)
            return []

        def cancel(self) -> None:
            """Does nothing."""

    job = Deaf()
    Worker(store.settings, launch=lambda *_: job).work_once()
    assert job.killed
    assert (store.job(job_id).state, store.job(job_id).error) == (State.CANCELLED, None)


def test_figures_of_a_job_that_is_queued_again_are_gone(open_store: Callable[..., Store]) -> None:
    store = open_store()
    job_id = store.submit("quick")
    figures = {"objective": 3.0, "bound": 1.0, "gap": 2 / 3}
    job = ScriptedJob(("incumbent", figures), ("crash", "it died"))
    Worker(store.settings, launch=lambda *_: job).work_once()
    again = store.job(job_id)
    assert (again.state, again.attempts) == (State.QUEUED, 1)
    assert (again.objective, again.bound, again.gap, again.lease_owner) == (None,) * 4
    incumbents = [event.data for event in store.jobs.events(job_id) if event.type == "incumbent"]
    assert incumbents == [figures]


@pytest.mark.slow
def test_a_cancelled_job_that_has_found_nothing_is_ended_at_once(open_store: Callable[..., Store]) -> None:
    """Nobody waits for a plan of it."""
    store = open_store(cancel_grace_s=3600.0)
    job_id = store.submit("quick")
    told: list[str] = []

    class Deaf(ScriptedJob):
        def listen(self, timeout_s: float) -> list[Message]:
            store.jobs.cancel(job_id)
            return []

        def cancel(self) -> None:
            told.append("cancel")

    job = Deaf()
    assert Worker(store.settings, launch=lambda *_: job).work_once()
    assert (told, job.killed, store.job(job_id).state) == (["cancel"], True, State.CANCELLED)


def test_the_time_of_a_job_that_waits_for_a_place_does_not_count(open_store: Callable[..., Store]) -> None:
    store = open_store(overrun_s=0.0)
    job_id = store.submit("quick", time_limit_s=0.1)

    class Waiting(ScriptedJob):
        """Has its place after four times its limit."""

        waiting = True
        asked = 0

        def listen(self, timeout_s: float) -> list[Message]:
            self.asked += 1
            if self.asked < 5:
                time.sleep(0.1)
                return []
            self.waiting = False
            return super().listen(timeout_s)

    Worker(store.settings, launch=lambda *_: Waiting(DONE)).work_once()
    assert store.job(job_id).state is State.SUCCEEDED


class Held(ScriptedJob):
    """Ends when it is let go."""

    def __init__(self) -> None:
        super().__init__(DONE)
        self.let_go = threading.Event()

    def listen(self, timeout_s: float) -> list[Message]:
        return super().listen(timeout_s) if self.let_go.wait(timeout_s) else []


def test_a_crew_has_as_many_jobs_under_way_as_there_are_places(open_store: Callable[..., Store]) -> None:
    store = open_store()
    ids = [store.submit("quick", name=str(n)) for n in range(4)]
    places, held = 2, [Held() for _ in ids]
    launched = iter(held)
    crew = Crew(store.settings, launch=lambda *_: next(launched), places=lambda: places)

    def states() -> list[str]:
        return [store.job(job_id).state.value for job_id in ids]

    assert [crew.work_once() for _ in range(3)] == [True, True, False]
    assert states() == ["running", "running", "queued", "queued"]
    places = 3
    assert [crew.work_once() for _ in range(2)] == [True, False]
    for job in held:
        job.let_go.set()
    wait_until(lambda: states() == ["succeeded"] * 3 + ["queued"])
    crew.close()
    assert [job.killed for job in held] == [True, True, True, False]


def test_a_crew_that_loses_its_places_ends_and_its_jobs_go_back(open_store: Callable[..., Store]) -> None:
    store = open_store()
    ids = [store.submit("quick", name=str(n)) for n in range(2)]
    answers = iter([2, 2])

    def places() -> int:
        for answer in answers:
            return answer
        raise ConnectionError("the cluster is gone")

    with pytest.raises(ConnectionError):
        Crew(store.settings, launch=lambda *_: Held(), places=places).run()
    assert [(store.job(job_id).state, store.job(job_id).attempts) for job_id in ids] == [(State.QUEUED, 0)] * 2
