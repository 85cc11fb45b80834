"""The queue from the workers' side: a job is leased, kept by heartbeats, and goes back when its worker falls silent.

Heartbeats are counted, not timed: clocks of several machines differ, and any of them may jump. Whoever takes back the
jobs of silent workers watches the counts with a clock of its own that cannot be set (:class:`Silence`).

Every write of a worker names itself as the lease's owner. A worker that has lost its lease (it was stopped for too
long, say) therefore cannot touch a job that another one runs by now.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from loadmaster.api.packed import PackedDocument
from loadmaster.api.store import incumbents, keys, records, schema
from loadmaster.api.store.database import Database, transaction
from loadmaster.api.store.records import Job, Outcome, State
from loadmaster.models.documents import Document

__all__ = ["Beat", "Queue"]


class Beat(enum.Enum):
    """Answer to a heartbeat: whether the lease holds, and whether the job is still wanted."""

    RUN = "run"
    CANCEL = "cancel"
    LOST = "lost"  # the lease is another worker's, or the job is final


class Silence:
    """Time for which counts have not changed, by this process's monotonic clock. Safe to call from any thread."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int, float]] = {}
        self._looked_at = time.monotonic()

    def over(self, counts: Mapping[str, int]) -> list[str]:
        """The names whose counts have not changed for too long. Names that are not given are forgotten."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked_at > self._longest_s:
                # Nobody looked: this process was stopped, or all were. What was seen before says nothing.
                self._seen = {}
            self._looked_at = now
            since = {
                name: (count, self._seen[name][1] if self._seen.get(name, (None,))[0] == count else now)
                for name, count in counts.items()
            }
            self._seen = since
            return [name for name, (_, at) in since.items() if now - at > self._longest_s]


class Queue:
    """Leases of jobs. Safe to call from any thread and any number of processes. A job whose lease is not renewed for
    ``lease_s`` goes back to the queue, if :meth:`reclaim` is called more often than that; one that has been started
    ``max_attempts`` times fails instead."""

    def __init__(self, database: Database, *, lease_s: float, max_attempts: int) -> None:
        self._database = database
        self._lease_s = lease_s
        self._max_attempts = max_attempts
        self._silent_jobs, self._silent_workers = Silence(lease_s), Silence(lease_s)

    @transaction
    def claim(self, owner: str) -> Job | None:
        """Lease a job that waits and may run, or None: the oldest one of whoever was served longest ago. Of equal
        requests only one runs at a time, and of an owner's jobs no more than its key allows."""
        try:
            return self._claim(owner)
        except _QuotaError:
            return None

    def _claim(self, owner: str) -> Job | None:
        with self._database.write() as connection:
            whose = connection.execute(_NEXT_OWNER).scalar()
            if whose is None:
                return None
            oldest = (
                sa.select(schema.job.c.id)
                .where(_MAY_RUN, schema.job.c.owner.is_(None) if whose == _NOBODY else schema.job.c.owner == whose)
                .order_by(schema.job.c.id)
                .limit(1)
                .with_for_update(skip_locked=True)
                .scalar_subquery()
            )
            job_id = connection.execute(
                sa.update(schema.job)
                .where(schema.job.c.id == oldest)
                .values(
                    state=State.RUNNING.value,
                    lease_owner=owner,
                    lease_beats=_JOB_BEATS[1] + 1,
                    attempts=schema.job.c.attempts + 1,
                    started_at=time.time(),
                )
                .returning(schema.job.c.id)
            ).scalar()
            if job_id is None:
                return None
            connection.execute(_SERVED, {"of": whose})
            job = records.require_job(connection, job_id)
            _expect_within_quota(connection, job)
            found = records.find_reusable(connection, job.cache_key, job.asked_gap)
            if found is not None:
                records.finish(connection, job, found, cached=True)
            else:
                data = {"state": State.RUNNING.value, "attempt": job.attempts}
                records.append_event(connection, job_id, "state", data)
            return records.require_job(connection, job_id)

    @transaction
    def beat(self, job_id: str, owner: str) -> Beat:
        """Renew the lease of a job by one heartbeat."""
        with self._database.write() as connection:
            asked = connection.execute(
                sa.update(schema.job)
                .where(*_owned(job_id, owner))
                .values(lease_beats=_JOB_BEATS[1] + 1)
                .returning(schema.job.c.cancel_requested)
            ).scalar()
        return _beat(asked)

    def look(self, job_id: str, owner: str) -> Beat:
        """Ask as :meth:`beat` does, without renewing the lease: cheap enough for several times a second."""
        with self._database.read() as connection:
            asked = connection.execute(sa.select(schema.job.c.cancel_requested).where(*_owned(job_id, owner))).scalar()
        return _beat(asked)

    @transaction
    def record(self, job_id: str, owner: str, events: Iterable[tuple[str, Mapping[str, Any]]]) -> bool:
        """Write events (type, data) of a running job; the last progress or incumbent sets its figures. Returns False,
        and writes nothing, when the lease is lost."""
        with self._database.write() as connection:
            if not _holds(connection, job_id, owner):
                return False
            for type_, data in events:
                records.append_event(connection, job_id, type_, data)
                if type_ in ("progress", "incumbent"):
                    figures = {name: data.get(name) for name in ("objective", "bound", "gap")}
                    connection.execute(sa.update(schema.job).where(schema.job.c.id == job_id).values(**figures))
            return True

    @transaction
    def keep(self, job_id: str, owner: str, objective: float, plan: PackedDocument) -> bool:
        """Keep the best plan so far of a running job, where it is better than the one that is kept. Returns False, and
        writes nothing, when the lease is lost."""
        with self._database.write() as connection:
            if not _holds(connection, job_id, owner):
                return False
            if incumbents.keep(connection, job_id, objective, plan):
                records.append_event(connection, job_id, "log", {"line": f"a plan of {objective:g} can be looked at"})
            return True

    def problem(self, job: Job) -> bytes:
        """The canonical JSON of the job's problem. Raises UnreadableDocumentError if it is gone or damaged."""
        with self._database.read() as connection:
            packed = records.packed_document(connection, job.problem_sha256)
        return packed.content()

    @transaction
    def finish(
        self,
        job_id: str,
        owner: str,
        state: State,
        plan: Document | None = None,
        error: Document | None = None,
        seconds: float | None = None,
    ) -> bool:
        """Make a job final. Returns False, and writes nothing, when the lease is lost."""
        with self._database.write() as connection:
            if not _holds(connection, job_id, owner):
                return False
            outcome = Outcome(state, plan, error, seconds)
            records.finish(connection, records.require_job(connection, job_id), outcome)
            return True

    @transaction
    def run_out(self, job_id: str, owner: str, error: Document, seconds: float) -> State | None:
        """Make a job final whose time is up: with the best plan that was kept of it, or failed where there is none.
        Returns None, and writes nothing, when the lease is lost."""
        with self._database.write() as connection:
            if not _holds(connection, job_id, owner):
                return None
            best = incumbents.best_plan(connection, job_id, "time")
            state = State.FAILED if best is None else State.SUCCEEDED
            outcome = Outcome(state, best, error if best is None else None, seconds)
            records.finish(connection, records.require_job(connection, job_id), outcome)
            return state

    @transaction
    def release(self, job_id: str, owner: str) -> None:
        """Give a job back unharmed, because its worker stops: the start does not count as an attempt."""
        with self._database.write() as connection:
            if _holds(connection, job_id, owner):
                job = records.require_job(connection, job_id)
                if job.cancel_requested:
                    records.finish(connection, job, Outcome(State.CANCELLED))
                else:
                    self._requeue(connection, job, "its worker was stopped", attempts=job.attempts - 1)

    @transaction
    def give_up(self, job_id: str, owner: str, reason: str) -> None:
        """Send a job whose process crashed back to the queue, or make it fail if it has been tried often enough."""
        with self._database.write() as connection:
            if _holds(connection, job_id, owner):
                self._retry(connection, records.require_job(connection, job_id), reason)

    def abandon(self, owner: str) -> int:
        """Send back the jobs of a dead worker before their leases expire. Returns how many."""
        return self._reclaim(schema.job.c.lease_owner == owner, "its worker died")

    def reclaim(self) -> int:
        """Take back the jobs, and forget the workers, that were silent for longer than a lease, as far as this process
        saw. Returns how many jobs."""
        with self._database.read() as connection:
            jobs = _counts(connection, _JOB_BEATS, _is(State.RUNNING))
            workers = _counts(connection, _WORKER_BEATS)
        silent_workers, silent_jobs = self._silent_workers.over(workers), self._silent_jobs.over(jobs)
        if silent_workers:
            self._forget(_unchanged(_WORKER_BEATS, workers, silent_workers))
        if not silent_jobs:
            return 0
        return self._reclaim(_unchanged(_JOB_BEATS, jobs, silent_jobs), "its worker fell silent")

    @transaction
    def seen(self, owner: str) -> None:
        """Note that a worker is alive."""
        columns = schema.worker.c
        with self._database.write() as connection:
            more = sa.update(schema.worker).where(columns.id == owner).values(beats=columns.beats + 1)
            if connection.execute(more).rowcount == 0:
                connection.execute(sa.insert(schema.worker).values(id=owner, beats=1))

    def gone(self, owner: str) -> None:
        """Note that a worker has ended."""
        self._forget(schema.worker.c.id == owner)

    @transaction
    def _forget(self, which: sa.ColumnElement[bool]) -> None:
        with self._database.write() as connection:
            connection.execute(sa.delete(schema.worker).where(which))

    @transaction
    def _reclaim(self, whose: sa.ColumnElement[bool], reason: str) -> int:
        stale = sa.select(schema.job).where(_is(State.RUNNING), whose)
        with self._database.read() as connection:
            if connection.execute(stale.limit(1)).first() is None:
                return 0
        with self._database.write() as connection:
            jobs = [Job.from_row(row) for row in connection.execute(stale.with_for_update(skip_locked=True))]
            for job in jobs:
                self._retry(connection, job, reason)
        return len(jobs)

    def _retry(self, connection: Connection, job: Job, reason: str) -> None:
        if job.cancel_requested:
            records.finish(connection, job, Outcome(State.CANCELLED))
        elif job.attempts < self._max_attempts:
            self._requeue(connection, job, reason, attempts=job.attempts)
        else:
            times = "once" if job.attempts == 1 else f"{job.attempts} times"
            detail = f"The job was started {times} and did not come to an end: the last time {reason}."
            records.finish(connection, job, Outcome(State.FAILED, error={"type": "SolverError", "detail": detail}))

    def _requeue(self, connection: Connection, job: Job, reason: str, *, attempts: int) -> None:
        connection.execute(
            sa.update(schema.job)
            .where(schema.job.c.id == job.id)
            .values(
                state=State.QUEUED.value,
                lease_owner=None,
                attempts=attempts,
                objective=None,
                bound=None,
                gap=None,
            )
        )
        records.append_event(connection, job.id, "state", {"state": State.QUEUED.value, "reason": reason})


class _QuotaError(Exception):
    """The undoing of a claim: another worker claimed a job of the same owner at the same moment."""


def _expect_within_quota(connection: Connection, job: Job) -> None:
    # Where several transactions write at a time, neither saw the other's claim; here they come one after the other.
    if keys.exceeds(connection, keys.lock_owner(connection, job.owner), State.RUNNING):
        raise _QuotaError


# The columns of heartbeats that are counted: the name of who sends them, and their number.
_Counted = tuple[sa.ColumnElement[str], sa.ColumnElement[int]]
_JOB_BEATS: _Counted = (schema.job.c.id, sa.func.coalesce(schema.job.c.lease_beats, 0))
_WORKER_BEATS: _Counted = (schema.worker.c.id, schema.worker.c.beats)


def _is(state: State) -> sa.ColumnElement[bool]:
    """Condition of a state, written out: only without a parameter do databases see that an index of it is enough."""
    return schema.job.c.state == sa.literal(state.value, literal_execute=True)


# Stands for the owner of jobs that have none.
_NOBODY = ""
_running = schema.job.alias("running")
# Without a correlation: what runs is looked up once, not once for every job that waits.
_MAY_RUN = sa.and_(
    _is(State.QUEUED),
    schema.job.c.cache_key.not_in(
        sa.select(_running.c.cache_key).where(_running.c.state == sa.literal(State.RUNNING.value, literal_execute=True))
    ),
)
_NEXT_OWNER = (
    sa.select(schema.turn.c.owner)
    .where(
        schema.turn.c.owner.not_in(keys.owners_at_their_limit()),
        sa.or_(
            sa.exists().where(_MAY_RUN, schema.job.c.owner == schema.turn.c.owner),
            sa.and_(schema.turn.c.owner == _NOBODY, sa.exists().where(_MAY_RUN, schema.job.c.owner.is_(None))),
        ),
    )
    .order_by(schema.turn.c.number, schema.turn.c.owner)
    .limit(1)
)
_last = schema.turn.alias("last")
_SERVED = (
    sa.update(schema.turn)
    .where(schema.turn.c.owner == sa.bindparam("of"))
    .values(number=sa.select(sa.func.max(_last.c.number) + 1).scalar_subquery())
)


def _counts(connection: Connection, counted: _Counted, *which: sa.ColumnElement[bool]) -> dict[str, int]:
    return {name: count for name, count in connection.execute(sa.select(*counted).where(*which))}


def _unchanged(counted: _Counted, counts: Mapping[str, int], names: Iterable[str]) -> sa.ColumnElement[bool]:
    """The condition that a name is one of these and its count is still the same: any other was heard of since then."""
    name, beats = counted
    return sa.or_(*(sa.and_(name == one, beats == counts[one]) for one in names))


def _owned(job_id: str, owner: str) -> tuple[sa.ColumnElement[bool], ...]:
    columns = schema.job.c
    return (columns.id == job_id, columns.lease_owner == owner, columns.state == State.RUNNING.value)


def _holds(connection: Connection, job_id: str, owner: str) -> bool:
    held = sa.select(schema.job.c.id).where(*_owned(job_id, owner)).with_for_update()
    return connection.execute(held).scalar() is not None


def _beat(cancel_requested: bool | None) -> Beat:
    if cancel_requested is None:
        return Beat.LOST
    return Beat.CANCEL if cancel_requested else Beat.RUN
