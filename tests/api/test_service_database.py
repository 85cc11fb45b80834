"""The database behind the store: how it is opened, and how one of an earlier release becomes one of this."""

from __future__ import annotations

import multiprocessing
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from private_postgresql import PrivatePostgresql, each_empty_database_url

from loadmaster.api.packed import pack
from loadmaster.api.settings import Settings
from loadmaster.api.store import figures, migrate, schema
from loadmaster.api.store.database import Database
from loadmaster.api.store.jobs import Jobs, NewJob
from loadmaster.api.store.queue import Queue
from loadmaster.api.store.records import State
from loadmaster.api.worker.process import Message
from loadmaster.api.worker.worker import Worker
from loadmaster.errors import InputError

STORES = Path(__file__).parent / "stores"
PLAN = {"status": "optimal", "objective": 1.0, "bound": 1.0, "gap": 0.0, "unit": "us"}
url = each_empty_database_url


def stored(folder: Path, more: str = "") -> str:
    """A database that was written before there were migrations, and then by ``more``."""
    path = folder / "stored.db"
    connection = sqlite3.connect(path)
    connection.executescript((STORES / "version_1.sql").read_text() + more)
    connection.close()
    return f"sqlite:///{path}"


def test_a_database_from_before_migrations_is_upgraded_without_loss(tmp_path: Path) -> None:
    url = stored(tmp_path)
    before = sqlite3.connect(tmp_path / "stored.db")
    tables = ("document", "event", "frontier", "job", "label", "tally")
    rows = {}
    for table in tables:
        found = before.execute(f"SELECT * FROM {table}")
        rows[table] = (", ".join(column[0] for column in found.description), found.fetchall())
    before.close()
    Database(url).close()
    database = Database(url)
    with database.read() as connection:
        for table, (columns, expected) in rows.items():
            assert [tuple(row) for row in connection.exec_driver_sql(f"SELECT {columns} FROM {table}")] == expected
    jobs, queue = Jobs(database, 1000), Queue(database, lease_s=60.0, max_attempts=2)
    assert [job.name for job in jobs.latest(label=("who", "zoë"))] == ["a plan"]
    assert figures.read(database).cache_hits == 1
    assert {job.owner for job in jobs.latest()} == {None}
    (running,) = jobs.latest(state=State.RUNNING)
    assert queue.finish(running.id, "host-1-aaaa", State.SUCCEEDED, plan=PLAN)
    first = queue.claim("w")
    assert first is not None
    assert (first.name, first.limit) == ("sweep", 1 << 30)


def test_a_database_of_earlier_days_gets_its_column(tmp_path: Path) -> None:
    older = "ALTER TABLE job DROP COLUMN lease_beats; ALTER TABLE job ADD COLUMN lease_until FLOAT;"
    database = Database(stored(tmp_path, older))
    queue = Queue(database, lease_s=60.0, max_attempts=2)
    claimed = queue.claim("w")
    assert claimed is not None
    assert claimed.lease_beats == 1


def test_the_steps_lead_to_the_tables_that_the_code_knows(url: str) -> None:
    database = Database(url)
    with database.write() as connection:
        command.check(migrate.configured(connection))
        indexes = {index["name"]: index for index in sa.inspect(connection).get_indexes("job")}
        one_runs = indexes["job_that_runs"]
    assert one_runs["unique"]
    conditions = [str(value) for key, value in one_runs["dialect_options"].items() if key.endswith("_where")]
    assert len(conditions) == 1 and "running" in conditions[0]


def test_steps_of_a_stored_database_lead_there_too(tmp_path: Path) -> None:
    with Database(stored(tmp_path)).write() as connection:
        command.check(migrate.configured(connection))


def open_and_note(url: str, start: float) -> str:
    """Open a database when all others do; what went wrong, if anything."""
    time.sleep(max(0.0, start - time.time()))
    try:
        figures.read(Database(url))
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_many_may_open_a_fresh_database_at_once(url: str) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        pool.map(abs, range(4))
        start = time.time() + 1.0
        assert pool.starmap(open_and_note, [(url, start)] * 12, chunksize=1) == [""] * 12
    with Database(url).read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(schema.tally)).scalar() == 27


def test_a_database_of_a_later_release_is_refused_and_left_alone(url: str) -> None:
    with Database(url).write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    for _ in range(2):
        with pytest.raises(InputError, match=r"later Loadmaster \(revision 9999\).*Upgrade"):
            Database(url)


def test_a_step_that_fails_leaves_the_database_as_it_was(tmp_path: Path) -> None:
    """Two equal jobs that run are what no release wrote: the index that forbids them cannot be made."""
    broken = "UPDATE job SET state = 'running', cache_key = 'same';"
    url = stored(tmp_path, broken)
    before = list(sqlite3.connect(tmp_path / "stored.db").iterdump())
    with pytest.raises(InputError, match="cannot be opened"):
        Database(url)
    assert list(sqlite3.connect(tmp_path / "stored.db").iterdump()) == before


def test_connections_that_broke_are_made_again(postgresql: PrivatePostgresql) -> None:
    """While a job runs, and before its end is written."""
    settings = Settings(database_url=postgresql.new_database(), poll_s=0.05, lease_s=60.0)
    database = Database(settings.database_url)
    jobs = Jobs(database, 1000)
    new = NewJob("fake", "a name", {}, 0.02, 60.0, None, "key")
    job_id = jobs.submit(new, pack({}), {}, request_sha256="0" * 64).id

    class Cut:
        """Breaks all connections once, then goes on and ends."""

        waiting = False

        def __init__(self) -> None:
            self.messages: list[list[Message]] = [[("log", "one")], [("log", "two")], [("plan", PLAN)]]

        def listen(self, timeout_s: float) -> list[Message]:
            postgresql.cut()
            return self.messages.pop(0)

        def cancel(self) -> None: ...

        def kill(self) -> None: ...

    assert Worker(settings, launch=lambda *_: Cut()).work_once()
    job = jobs.get(job_id)
    assert job is not None
    assert (job.state, job.attempts) == (State.SUCCEEDED, 1)
    assert [event.data["line"] for event in jobs.events(job_id, type_="log")] == ["one", "two"]


# In either order: SQLite chooses among indexes that look alike to it by the order they were made in.
OLD_INDEXES = [
    "CREATE INDEX ix_job_state ON job (state);",
    "CREATE INDEX job_by_cache_key ON job (cache_key, reusable);",
]


def with_equal_jobs(folder: Path, count: int, indexes: list[str], analyze: bool) -> str:
    """A database of an earlier release, with its indexes, where ``count`` equal jobs wait."""
    path = folder / f"{count}"
    path.mkdir()
    old = f"DROP INDEX job_by_state; DROP INDEX job_by_answer; {' '.join(indexes)}"
    url = stored(path, f"{old} DELETE FROM job WHERE state != 'queued' OR frontier_id IS NOT NULL;")
    with sqlite3.connect(path / "stored.db") as connection:
        (row,) = connection.execute("SELECT * FROM job")
        places = ", ".join("?" * len(row))
        copies = [(f"{row[0]}_{number:06}", *row[1:]) for number in range(count - 1)]
        connection.executemany(f"INSERT INTO job VALUES ({places})", copies)
        connection.execute("UPDATE job SET event_seq = 100")
        if analyze:
            connection.execute("ANALYZE")
    connection.close()
    return url


@pytest.mark.parametrize(
    ("indexes", "analyze"), [(OLD_INDEXES, False), (OLD_INDEXES[::-1], False), (OLD_INDEXES, True)]
)
def test_the_work_of_a_claim_hardly_grows_with_the_equal_jobs_that_wait(
    tmp_path: Path, indexes: list[str], analyze: bool
) -> None:
    """Counted in instructions of SQLite's machine, not in seconds; in databases that earlier releases wrote."""

    def work_of_claims(count: int) -> list[int]:
        database = Database(with_equal_jobs(tmp_path, count, indexes, analyze))
        queue = Queue(database, lease_s=60.0, max_attempts=2)
        works: list[int] = []

        @sa.event.listens_for(database.engine, "checkout")
        def count_instructions(connection: sqlite3.Connection, *_: object) -> None:
            def more() -> None:
                works[-1] += 100

            connection.set_progress_handler(more, 100)

        works.append(0)
        job = queue.claim("a")
        assert job is not None
        works.append(0)
        assert queue.claim("b") is None, "an equal one runs"
        works.append(0)
        queue.finish(job.id, "a", State.SUCCEEDED, plan=PLAN)
        with database.write() as connection:
            done = dict(connection.execute(sa.select(schema.job).where(schema.job.c.id == job.id)).one()._mapping)
            same = {name: done[name] for name in ("state", "reusable", "plan_sha256", "gap")}
            half = sa.select(schema.job.c.id).order_by(schema.job.c.id).limit(count // 2)
            connection.execute(sa.update(schema.job).where(schema.job.c.id.in_(half)).values(**same))
        works.append(0)
        answered = queue.claim("b")
        assert answered is not None
        assert answered.cached
        database.close()
        return [works[0], works[1], works[-1]]

    few, many = work_of_claims(100), work_of_claims(800)
    # Where an equal job runs, those that wait are passed over one by one.
    assert many[1] <= 8 * few[1] + 1000
    assert many[1] <= 20 * 800
    assert many[0] <= few[0] + 1000
    assert many[2] <= few[2] + 1000


MANY_THAT_ENDED = """
    INSERT INTO job (id, kind, name, labels, problem_sha256, options, asked_gap, time_limit_s, cache_key,
                     request_sha256, state, cached, reusable, cancel_requested, attempts, created_at, event_seq)
    SELECT 'plan_0' || lpad(n::text, 27, '0'), kind, name, labels, problem_sha256, options, asked_gap, time_limit_s,
           'key ' || n, request_sha256, CASE WHEN n <= 20000 THEN 'succeeded' ELSE 'queued' END, cached, reusable,
           cancel_requested, attempts, created_at, 0
    FROM job, generate_series(1, 22000) n
"""


def test_a_claim_on_postgresql_does_not_pass_over_the_jobs_that_have_ended(postgresql: PrivatePostgresql) -> None:
    """Where many wait, it may take any job for one of them, and look for the oldest from the very first job on."""
    database = Database(postgresql.new_database())
    new = NewJob("fake", "a name", {}, 0.02, 60.0, None, "key")
    Jobs(database, 100_000).submit(new, pack({}), {}, request_sha256="0" * 64)
    with database.write() as connection:
        connection.exec_driver_sql(MANY_THAT_ENDED)
        connection.exec_driver_sql("ANALYZE job")
    rows: list[float] = []

    @sa.event.listens_for(database.engine, "before_cursor_execute")
    def count_rows(connection: Any, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if statement.startswith("UPDATE job SET state") and not rows:
            cursor = connection.connection.cursor()
            cursor.execute("SAVEPOINT before")
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)
            rows.append(_rows(cursor.fetchone()[0][0]["Plan"]))
            cursor.execute("ROLLBACK TO SAVEPOINT before")

    assert Queue(database, lease_s=60.0, max_attempts=2).claim("w") is not None
    assert 0 < rows[0] < 100


def _rows(plan: dict[str, Any]) -> float:
    """Rows that a plan read, kept or not."""
    own = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
    return float(own + sum(map(_rows, plan.get("Plans", []))))


def test_sqlite_is_in_wal_mode(tmp_path: Path) -> None:
    with Database(f"sqlite:///{tmp_path / 'service.db'}").read() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


@pytest.mark.parametrize(
    "bad",
    [
        *("nonsense", "nosuchdialect://x", "sqlite://", "sqlite:///:memory:", "sqlite:////proc/nowhere/x.db"),
        *("mysql://host/x", "postgresql+asyncpg://host/x", "postgresql://127.0.0.1:1/nothing-listens"),
    ],
)
def test_an_unusable_database_is_an_input_error(bad: str) -> None:
    with pytest.raises(InputError, match="database_url"):
        Database(bad)


@pytest.mark.parametrize(
    "url", ["nosuchdialect://user:secret@host/x", "postgresql://user:secret@127.0.0.1:1/x?password=secret"]
)
def test_passwords_stay_out_of_messages(url: str) -> None:
    with pytest.raises(InputError) as error:
        Database(url)
    assert "secret" not in str(error.value)
