"""Quotas of keys: how many jobs of each may wait, and how many may run."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from fake_planner import problem
from fastapi import FastAPI
from private_postgresql import each_database_url

from loadmaster.api.packed import pack
from loadmaster.api.server.app import create_app
from loadmaster.api.settings import Settings
from loadmaster.api.store.database import Database
from loadmaster.api.store.jobs import Jobs, NewJob, QuotaError
from loadmaster.api.store.keys import Keys, Scope
from loadmaster.api.store.queue import Queue
from loadmaster.api.store.records import State

PLAN = {"status": "optimal", "objective": 1.0, "bound": 1.0, "gap": 0.0, "unit": "us"}


@pytest.fixture
def app(make_settings: Callable[..., Settings]) -> FastAPI:
    """A service that asks for keys."""
    return create_app(make_settings(keys="required"))


url = each_database_url


class Store:
    """Submissions, leases and keys of a database."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        self.jobs = Jobs(self.database, 1000)
        self.queue = Queue(self.database, lease_s=5.0, max_attempts=2)
        self.keys = Keys(self.database)
        self._number = 0

    def submit(self, owner: str | None, key: str | None = None) -> str:
        """A job that is like no other, unless a cache key is given."""
        self._number += 1
        name = f"{owner} {self._number}"
        new = NewJob("fake", name, {}, 0.02, 60.0, None, key or name)
        return self.jobs.submit(new, pack({"name": name}), {}, request_sha256=name, owner=owner).id

    def claim(self) -> str | None:
        """Whose job a worker gets next; "-" for one without an owner."""
        job = self.queue.claim("w")
        return None if job is None else job.owner or "-"

    def finish_one(self, owner: str) -> None:
        """Bring the oldest running job of an owner to an end."""
        job = self.jobs.latest(owner=owner, state=State.RUNNING)[-1]
        assert self.queue.finish(job.id, "w", State.SUCCEEDED, plan=PLAN)


@pytest.fixture
def store(url: str) -> Store:
    return Store(url)


async def test_no_more_wait_than_may(app: FastAPI) -> None:
    keys = Keys(app.state.service.database)
    transport = httpx.ASGITransport(app)
    ann = {"Authorization": f"Bearer {keys.add('ann', Scope.SUBMIT, max_queued=2)}"}
    bob = {"Authorization": f"Bearer {keys.add('bob', Scope.SUBMIT)}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:

        async def submit(name: str, who: dict[str, str]) -> httpx.Response:
            return await http.post("/v1/plans", json={"problem": problem(name=name)}, headers=who)

        sent = [await submit(f"n{n}", ann) for n in range(3)]
        assert [answer.status_code for answer in sent] == [202, 202, 429]
        refused = sent[2]
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["type"] == "urn:loadmaster:problem:quota-reached"
        assert "ann" in refused.json()["detail"] and "2" in refused.json()["detail"]
        assert int(refused.headers["retry-after"]) > 0
        # A quota is one's own.
        assert [(await submit(f"b{n}", bob)).status_code for n in range(4)] == [202] * 4
        # A frontier counts as its points, and is taken as a whole or not at all.
        await http.post(f"{sent[0].headers['location']}:cancel", headers=ann)
        sweep = {"problem": problem(name="f"), "budgets_bytes": [1, 2]}
        assert (await http.post("/v1/frontiers", json=sweep, headers=ann)).status_code == 429
        listed = (await http.get("/v1/plans", params={"owner": "ann", "state": "queued"}, headers=ann)).json()
        assert [plan["name"] for plan in listed["plans"]] == ["n1"]
        assert (await submit("n3", ann)).status_code == 202
        # A dry run queues nothing.
        dry = await http.post("/v1/plans", params={"dry_run": "true"}, json={"problem": problem()}, headers=ann)
        assert dry.status_code == 200


def test_what_is_known_already_needs_no_room(store: Store) -> None:
    store.keys.add("ann", Scope.SUBMIT, max_queued=1)
    store.submit(None, "known")
    assert store.claim() == "-"
    job = store.jobs.latest()[0]
    store.queue.finish(job.id, "w", State.SUCCEEDED, plan=PLAN)
    store.submit("ann")
    found = store.jobs.get(store.submit("ann", "known"))
    assert found is not None and found.cached
    with pytest.raises(QuotaError):
        store.submit("ann")


def test_running_jobs_do_not_count_as_waiting(store: Store) -> None:
    store.keys.add("ann", Scope.SUBMIT, max_queued=1)
    for _ in range(3):
        store.submit("ann")
        assert store.claim() == "ann"


def test_no_more_run_than_may_and_the_rest_wait(store: Store) -> None:
    store.keys.add("ann", Scope.SUBMIT, max_running=2)
    store.keys.add("bob", Scope.SUBMIT, max_running=1)
    store.keys.add("eve", Scope.SUBMIT)
    for owner in ("ann", "ann", "ann", "bob", "bob", None, "eve", "eve"):
        store.submit(owner)
    # One of each in turn, but for those whose owner has as many as may run.
    claimed = [store.claim() for _ in range(8)]
    assert claimed == ["-", "ann", "bob", "eve", "ann", "eve", None, None]
    store.finish_one("bob")
    assert [store.claim(), store.claim()] == ["bob", None]
    store.finish_one("ann")
    assert [store.claim(), store.claim()] == ["ann", None]
    assert {job.owner for job in store.jobs.latest(state=State.QUEUED)} == set()


@pytest.mark.parametrize("end", ["cancel", "give_up", "abandon", "release"])
def test_every_end_of_a_run_gives_its_place_back(store: Store, end: str) -> None:
    store.keys.add("ann", Scope.SUBMIT, max_running=1)
    first, _ = store.submit("ann"), store.submit("ann")
    assert [store.claim(), store.claim()] == ["ann", None]
    if end == "cancel":
        store.jobs.cancel(first)
        store.queue.finish(first, "w", State.CANCELLED)
    elif end == "give_up":
        store.queue.give_up(first, "w", "it crashed")
    elif end == "abandon":
        store.queue.abandon("w")
    else:
        store.queue.release(first, "w")
    assert [store.claim(), store.claim()] == ["ann", None]


def test_a_revoked_key_keeps_its_quota(store: Store) -> None:
    store.keys.add("ann", Scope.SUBMIT, max_running=1)
    for _ in range(3):
        store.submit("ann")
    store.keys.revoke("ann")
    assert [store.claim(), store.claim()] == ["ann", None]


@pytest.mark.slow
def test_quotas_hold_for_many_at_once(url: str) -> None:
    """Each with connections of its own, as servers and workers have."""
    Store(url).keys.add("ann", Scope.SUBMIT, max_queued=5, max_running=3)

    def submit(number: int) -> bool:
        new = NewJob("fake", str(number), {}, 0.02, 60.0, None, str(number))
        try:
            Store(url).jobs.submit(new, pack({"number": number}), {}, request_sha256=str(number), owner="ann")
        except QuotaError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(submit, range(12))) == 5
        claimed = [who for who in pool.map(lambda _: Store(url).claim(), range(12)) if who is not None]
    # Where two claim at the same moment, both may go away with nothing, and come back.
    store = Store(url)
    while (who := store.claim()) is not None:
        claimed.append(who)
    assert claimed == ["ann"] * 3


def test_who_waits_for_a_quota_hardly_holds_up_the_others(tmp_path: Path) -> None:
    """Counted in instructions of SQLite's machine, not in seconds."""

    def work_of_a_claim(waiting: int) -> int:
        store = Store(f"sqlite:///{tmp_path / f'{waiting}.db'}")
        store.keys.add("ann", Scope.SUBMIT, max_running=1)
        for _ in range(waiting):
            store.submit("ann")
        store.submit("bob")
        assert store.claim() == "ann"
        instructions = 0

        @sa.event.listens_for(store.database.engine, "checkout")
        def count_instructions(connection: sqlite3.Connection, *_: object) -> None:
            def more() -> None:
                nonlocal instructions
                instructions += 100

            connection.set_progress_handler(more, 100)

        assert store.claim() == "bob"
        store.database.close()
        return instructions

    few, many = work_of_a_claim(20), work_of_a_claim(220)
    # They are passed over one by one, in an index.
    assert many - few <= 40 * 200


def test_owners_take_turns(store: Store) -> None:
    """However many jobs one of them has submitted, and however early."""
    for owner in ("ann", "bob"):
        store.keys.add(owner, Scope.SUBMIT)
    for owner in ("ann", "ann", "ann", "ann", None, "bob", "bob"):
        store.submit(owner)
    claims = [store.claim() for _ in range(7)]
    assert sorted(map(str, claims[:3])) == ["-", "ann", "bob"]
    assert sorted(map(str, claims[3:5])) == ["ann", "bob"]
    assert claims[5:] == ["ann", "ann"]
    assert store.claim() is None


def test_an_owners_own_jobs_run_in_their_order(store: Store) -> None:
    store.keys.add("ann", Scope.SUBMIT)
    ids = [store.submit("ann") for _ in range(3)]
    claimed = [store.queue.claim("w") for _ in range(3)]
    assert [job and job.id for job in claimed] == ids


def test_who_comes_later_does_not_wait_for_all_who_came_before(store: Store) -> None:
    for owner in ("ann", "bob"):
        store.keys.add(owner, Scope.SUBMIT)
    for _ in range(5):
        store.submit("ann")
    assert [store.claim(), store.claim()] == ["ann", "ann"]
    store.submit("bob")
    assert store.claim() == "bob"


def test_no_key_fills_the_queue(store: Store) -> None:
    jobs = Jobs(store.database, 4)
    for owner in ("ann", "bob"):
        store.keys.add(owner, Scope.SUBMIT)
    store.keys.add("cid", Scope.SUBMIT, max_queued=3)

    def submit(owner: str, number: int) -> None:
        new = NewJob("fake", f"{owner} {number}", {}, 0.02, 60.0, None, f"{owner} {number}")
        jobs.submit(new, pack({"name": number}), {}, request_sha256="r", owner=owner)

    for number in range(2):
        submit("ann", number)
    with pytest.raises(QuotaError, match="ann may have 2 jobs that wait"):
        submit("ann", 2)
    submit("bob", 0)
    # A quota of its own is what counts.
    submit("cid", 0)


@pytest.mark.parametrize("own", [True, False])
def test_no_key_fills_the_disk(store: Store, own: bool) -> None:
    """Documents that jobs share count once; what is deleted counts no more."""
    jobs = Jobs(store.database, 100, max_bytes=10**9 if own else 3000)
    store.keys.add("ann", Scope.SUBMIT, max_bytes=3000 if own else None)
    store.keys.add("bob", Scope.SUBMIT)

    def submit(owner: str, content: int, number: int = 0) -> str:
        # What cannot be compressed.
        document = {"content": random.Random(content).randbytes(700).hex()}
        new = NewJob("fake", "n", {}, 0.02, 60.0, None, f"{content} {number}")
        return jobs.submit(new, pack(document), {}, request_sha256="r", owner=owner).id

    first = submit("ann", 1)
    for number in range(5):
        submit("ann", 1, number + 1)
    submit("ann", 2)
    submit("ann", 3)
    with pytest.raises(QuotaError, match=r"The plans of ann take \d+ bytes of the store, may take 3000, and"):
        submit("ann", 4)
    submit("bob", 4)
    for job in jobs.latest(owner="ann"):
        jobs.cancel(job.id)
        if job.id != first:
            assert jobs.purge(job.id)
    submit("ann", 5)
