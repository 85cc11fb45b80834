"""What is kept, for how long, and that the disk has back what is not."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from fake_planner import problem
from fastapi import FastAPI
from private_postgresql import each_database_url

from loadmaster.api.packed import UnreadableDocumentError, pack
from loadmaster.api.server.app import create_app
from loadmaster.api.settings import Settings
from loadmaster.api.store import schema, sqlite
from loadmaster.api.store.database import Database
from loadmaster.api.store.jobs import Jobs, NewJob
from loadmaster.api.store.queue import Queue
from loadmaster.api.store.records import State
from loadmaster.api.store.retention import Retention

url = each_database_url

MEBIBYTE = 1 << 20
DAY_S = 86_400.0
PLAN = {"status": "optimal", "objective": 1.0, "bound": 1.0, "gap": 0.0, "unit": "us"}


class Store:
    def __init__(self, url: str) -> None:
        self.database = Database(url)
        self.jobs = Jobs(self.database, 1000)
        self.queue = Queue(self.database, lease_s=5.0, max_attempts=2)

    def submit(self, name: str, document: dict[str, object] | None = None) -> str:
        new = NewJob("fake", name, {}, 0.02, 60.0, None, name)
        return self.jobs.submit(new, pack(document or {"name": name}), {}, request_sha256="r").id

    def planned(self, name: str) -> str:
        job_id = self.submit(name)
        assert self.queue.claim("w") is not None
        assert self.queue.finish(job_id, "w", State.SUCCEEDED, plan={**PLAN, "name": name})
        return job_id

    def age(self, job_id: str, days: float) -> str:
        """Let a job have been submitted, and done, so long ago; its id then."""
        with self.database.write() as connection:
            job = schema.job.c
            finished_at = connection.execute(sa.select(job.finished_at).where(job.id == job_id)).scalar()
            ended_at = (finished_at or 0.0) - days * DAY_S
            older = schema.id_at("plan", ended_at) + "-" + job_id[-4:]
            connection.execute(sa.delete(schema.event).where(schema.event.c.job_id == job_id))
            changed = {"id": older, "finished_at": None if finished_at is None else ended_at}
            connection.execute(sa.update(schema.job).where(job.id == job_id).values(**changed))
        return older

    def names(self) -> list[str]:
        return [job.name for job in self.jobs.latest()][::-1]

    def documents(self) -> int:
        with self.database.read() as connection:
            return connection.execute(sa.select(sa.func.count()).select_from(schema.document)).scalar_one()


@pytest.fixture
def store(url: str) -> Store:
    return Store(url)


def test_what_is_old_goes_and_what_is_not_final_stays(store: Store) -> None:
    for name, days in (("old", 11.0), ("young", 9.0)):
        store.age(store.planned(name), days)
    waiting = store.submit("waiting")
    with store.database.write() as connection:
        connection.execute(sa.update(schema.job).where(schema.job.c.id == waiting).values(created_at=0.0))
    assert Retention(store.database, 10.0, 0).apply() == 1
    assert Retention(store.database, 10.0, 0).apply() == 0
    assert sorted(store.names()) == ["waiting", "young"]
    assert store.documents() == 3


def test_the_latest_ones_are_kept(store: Store) -> None:
    for name in "abcd":
        store.planned(name)
    store.submit("waiting")
    assert Retention(store.database, 0.0, 2).apply() == 2
    assert store.names() == ["c", "d", "waiting"]
    assert Retention(store.database, 0.0, 0).apply() == 0


def test_a_problem_that_was_cancelled_takes_no_room_and_comes_back_with_the_next_submission(store: Store) -> None:
    document = {"content": os.urandom(2000).hex()}
    key = pack(document).sha256
    first, second = store.submit("first", document), store.submit("second", document)
    store.jobs.cancel(first)
    assert store.jobs.document(key).document() == document
    store.jobs.cancel(second)
    assert store.jobs.document(key).body == b""
    with pytest.raises(UnreadableDocumentError, match="given back when the last of its plans was cancelled"):
        store.jobs.document(key).content()
    third = store.submit("third", document)
    assert store.jobs.document(key).document() == document
    claimed = store.queue.claim("w")
    assert claimed is not None
    assert claimed.id == third
    assert store.queue.problem(claimed) == store.jobs.document(key).content()
    # One that has a plan to look at keeps its problem.
    assert store.queue.keep(third, "w", 2.0, pack({**PLAN, "objective": 2.0}))
    store.jobs.cancel(third)
    store.queue.release(third, "w")
    assert store.jobs.document(key).document() == document


async def test_who_asks_for_what_was_given_back_is_told(app: FastAPI) -> None:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        plan = (await http.post("/v1/plans", json={"problem": problem()})).json()["links"]["self"]
        await http.post(f"{plan}:cancel")
        asked = await http.get(f"{plan}/problem")
        assert (asked.status_code, asked.json()["type"]) == (410, "urn:loadmaster:problem:gone")
        assert "given back" in asked.json()["detail"]
        assert (await http.get(plan)).json()["state"] == "cancelled"


@pytest.mark.parametrize("earlier", [False, True])
def test_the_file_shrinks_with_what_is_purged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool) -> None:
    for name in ("_FREE_BYTES", "_FREE_BYTES_TO_REWRITE"):
        monkeypatch.setattr(sqlite, name, MEBIBYTE)
    path = tmp_path / "service.db"
    if earlier:
        # A file that cannot be cut off as it is.
        with sqlite3.connect(path) as made:
            made.execute("CREATE TABLE of_an_earlier_release (x)")
    store = Store(f"sqlite:///{path}")
    for n in range(4):
        store.jobs.cancel(store.submit(f"n{n}", {"content": os.urandom(MEBIBYTE).hex()}))
    with sqlite3.connect(path) as looked_at:
        looked_at.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert path.stat().st_size > MEBIBYTE
    store.database.give_back_space()
    with sqlite3.connect(path) as looked_at:
        assert looked_at.execute("PRAGMA auto_vacuum").fetchone() == (2,)
        looked_at.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert path.stat().st_size < MEBIBYTE
    assert len(store.names()) == 4


async def test_a_text_without_end_is_refused(make_settings: Callable[..., Settings]) -> None:
    from loadmaster.models.memory.presets import chain

    app = create_app(make_settings(planner="loadmaster.api.planning:FloorPlanner"))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        for field in ("title", "name"):
            body = {"problem": {**chain(3, 1000), field: "x" * 20_000}, "options": {"budget_bytes": "50%"}}
            answer = await http.post("/v1/plans", json=body)
            assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, f"problem.{field}")
