"""Jobs from their owners' side: submit, look, list, follow, cancel, purge."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from loadmaster.api.packed import PackedDocument
from loadmaster.api.store import incumbents, keys, records, schema
from loadmaster.api.store.database import Database, transaction
from loadmaster.api.store.keys import Owner, QuotaError
from loadmaster.api.store.records import Event, Job, Outcome, State
from loadmaster.api.store.retention import remove
from loadmaster.api.store.stored_bytes import StoredBytes
from loadmaster.errors import InputError, LoadmasterError
from loadmaster.models.fields import LARGEST_BYTES

__all__ = ["Frontier", "Jobs", "NewJob", "NotFinalError", "QueueFullError", "QuotaError", "log_tail", "search"]

# Made once, see records.
_NEW_JOB, _NEW_LABEL = sa.insert(schema.job), sa.insert(schema.label)
_WAITING = sa.select(sa.func.count()).where(schema.job.c.state == State.QUEUED.value)
_HAS_TURN = sa.select(schema.turn.c.owner).where(schema.turn.c.owner == sa.bindparam("of"))
# Ids in one query: databases take a limited number of parameters.
_AT_ONCE = 500


@dataclass(frozen=True)
class NewJob:
    """A submission, validated: the columns of the job that its owner decides."""

    kind: str
    name: str
    options: Mapping[str, Any]
    asked_gap: float
    time_limit_s: float
    limit: int | None
    cache_key: str
    unit: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True)
class Frontier:
    """A sweep of limits: a parent and its jobs, in ascending order of their limits."""

    id: str
    labels: Mapping[str, str]
    created_at: float
    jobs: tuple[Job, ...]


class NotFinalError(LoadmasterError):
    """The job is not final yet, and only final jobs can be purged."""


class QueueFullError(LoadmasterError):
    """So many jobs wait already that no more are taken."""


class Jobs:
    """Submissions and reads. Safe to call from any thread. ``max_queued`` jobs may wait; of one key without a quota of
    its own at most half as many, and ``max_bytes`` may be stored."""

    def __init__(self, database: Database, max_queued: int, max_bytes: int = LARGEST_BYTES) -> None:
        self._database, self._max_queued = database, max_queued
        self._stored = StoredBytes(database, max_bytes)

    @transaction
    def submit(
        self,
        new: NewJob,
        problem: PackedDocument,
        labels: Mapping[str, str],
        *,
        request_sha256: str,
        idempotency_key: str | None = None,
        owner: str | None = None,
    ) -> Job:
        """Queue a job, or finish it at once from the cache; the same idempotency key of an owner gives the same job.

        Raises:
            InputError: the idempotency key was used for another request.
            QueueFullError: too many wait.
            QuotaError: too many of this owner's wait, or too much is stored of them.
        """
        self._stored.expect_room(owner, problem)
        with self._database.write() as connection:
            known = _by_key(connection, schema.job, idempotency_key, owner, request_sha256)
            if known is not None:
                return records.require_job(connection, known)
            whose = keys.lock_owner(connection, owner)
            job_id = self._insert(connection, new, problem, labels, request_sha256, idempotency_key, None, whose)
            job = records.require_job(connection, job_id)
            self._expect_room(connection, whose, [job])
            return job

    @transaction
    def submit_frontier(
        self,
        points: Sequence[NewJob],
        problem: PackedDocument,
        labels: Mapping[str, str],
        *,
        request_sha256: str,
        idempotency_key: str | None = None,
        owner: str | None = None,
    ) -> Frontier:
        """Queue one job per point, under one parent; raises as :meth:`submit`."""
        self._stored.expect_room(owner, problem)
        with self._database.write() as connection:
            known = _by_key(connection, schema.frontier, idempotency_key, owner, request_sha256)
            if known is not None:
                return _frontier(connection, known)
            frontier_id = schema.new_id("frontier")
            connection.execute(
                sa.insert(schema.frontier).values(
                    id=frontier_id,
                    labels=dict(labels),
                    created_at=time.time(),
                    idempotency_key=_of_owner(idempotency_key, owner),
                    request_sha256=request_sha256,
                )
            )
            whose = keys.lock_owner(connection, owner)
            for point in points:
                self._insert(connection, point, problem, labels, request_sha256, None, frontier_id, whose)
            frontier = _frontier(connection, frontier_id)
            self._expect_room(connection, whose, frontier.jobs)
            return frontier

    def get(self, job_id: str) -> Job | None:
        """The job, or None for an id that is not known."""
        with self._database.read() as connection:
            return records.get_job(connection, job_id)

    def heads(self, job_ids: Sequence[str]) -> dict[str, int]:
        """The number of the latest event of each of these jobs; those that are not known are left out."""
        found: dict[str, int] = {}
        with self._database.read() as connection:
            for begin in range(0, len(job_ids), _AT_ONCE):
                some = schema.job.c.id.in_(job_ids[begin : begin + _AT_ONCE])
                query = sa.select(schema.job.c.id, schema.job.c.event_seq).where(some)
                found |= {job_id: seq for job_id, seq in connection.execute(query)}
        return found

    def get_frontier(self, frontier_id: str) -> Frontier | None:
        """The frontier with its jobs, or None for an id that is not known."""
        with self._database.read() as connection:
            known = sa.select(schema.frontier.c.id).where(schema.frontier.c.id == frontier_id)
            return None if connection.execute(known).scalar() is None else _frontier(connection, frontier_id)

    def latest(
        self,
        *,
        state: State | None = None,
        kind: str | None = None,
        label: tuple[str, str] | None = None,
        owner: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[Job]:
        """Jobs, newest first; ``before`` is the id of the last one already seen."""
        query = sa.select(schema.job).order_by(schema.job.c.id.desc()).limit(limit)
        if state is not None:
            query = query.where(schema.job.c.state == state.value)
        if kind is not None:
            query = query.where(schema.job.c.kind == kind)
        if owner is not None:
            query = query.where(schema.job.c.owner == owner)
        if label is not None:
            query = query.join(schema.label, schema.label.c.job_id == schema.job.c.id).where(
                schema.label.c.name == label[0], schema.label.c.value == label[1]
            )
        if before is not None:
            query = query.where(schema.job.c.id < before)
        with self._database.read() as connection:
            return [Job.from_row(row) for row in connection.execute(query)]

    def is_cached(self, cache_key: str, asked_gap: float) -> bool:
        """Return whether a submission would be answered at once from the cache."""
        with self._database.read() as connection:
            return records.find_reusable(connection, cache_key, asked_gap) is not None

    def document(self, key: str) -> PackedDocument:
        """A problem or plan by its hash. Raises UnreadableDocumentError if it is not there."""
        with self._database.read() as connection:
            return records.packed_document(connection, key)

    def incumbent(self, job_id: str) -> PackedDocument | None:
        """The best plan so far of a job without a result; None where there is none, or a result."""
        with self._database.read() as connection:
            return incumbents.packed_plan(connection, job_id)

    def events(self, job_id: str, after: int = 0, *, type_: str | None = None, limit: int | None = 500) -> list[Event]:
        """The events of a job that follow event ``after``, in order."""
        columns = schema.event.c
        query = sa.select(columns.seq, columns.at, columns.type, columns.data).order_by(columns.seq).limit(limit)
        query = query.where(columns.job_id == job_id, columns.seq > after)
        if type_ is not None:
            query = query.where(columns.type == type_)
        with self._database.read() as connection:
            return [Event(*row) for row in connection.execute(query)]

    @transaction
    def cancel(self, job_id: str) -> Job | None:
        """Cancel a queued job at once, ask the worker of a running one to stop; nothing happens to a final one."""
        with self._database.write() as connection:
            job = records.get_job(connection, job_id, lock=True)
            if job is None:
                return None
            if job.state is State.QUEUED:
                records.finish(connection, job, Outcome(State.CANCELLED))
            elif job.state is State.RUNNING and not job.cancel_requested:
                connection.execute(sa.update(schema.job).where(schema.job.c.id == job_id).values(cancel_requested=True))
                records.append_event(connection, job_id, "state", {"state": "running", "cancel_requested": True})
            return records.get_job(connection, job_id)

    @transaction
    def purge(self, job_id: str) -> bool:
        """Remove a final job, what belongs to it, and its documents unless other jobs use them; False if not known.
        Raises NotFinalError if it is queued or running."""
        with self._database.write() as connection:
            job = records.get_job(connection, job_id, lock=True)
            if job is None:
                return False
            if not job.state.final:
                raise NotFinalError(f"{job_id} is {job.state}: cancel it before it can be purged")
            remove(connection, job)
        self._stored.forget(job.owner)
        return True

    def _insert(
        self,
        connection: Connection,
        new: NewJob,
        problem: PackedDocument,
        labels: Mapping[str, str],
        request_sha256: str,
        idempotency_key: str | None,
        frontier_id: str | None,
        owner: Owner,
    ) -> str:
        job_id = schema.new_id("plan")
        connection.execute(
            _NEW_JOB,
            {
                "id": job_id,
                "frontier_id": frontier_id,
                "kind": new.kind,
                "name": new.name,
                "labels": dict(labels),
                "problem_sha256": records.put_document(connection, problem),
                "options": dict(new.options),
                "asked_gap": new.asked_gap,
                "time_limit_s": new.time_limit_s,
                "budget_bytes": new.limit,
                "cache_key": new.cache_key,
                "unit": new.unit,
                "idempotency_key": _of_owner(idempotency_key, owner.name),
                "request_sha256": request_sha256,
                "state": State.QUEUED.value,
                "event_seq": 1,
                "created_at": time.time(),
                "owner": owner.name,
                "traceparent": new.traceparent,
            },
        )
        if connection.execute(_HAS_TURN, {"of": owner.name or ""}).scalar() is None:
            connection.execute(sa.insert(schema.turn).values(owner=owner.name or "", number=0))
        if labels:
            connection.execute(_NEW_LABEL, [{"job_id": job_id, "name": n, "value": v} for n, v in labels.items()])
        records.put_event(connection, job_id, 1, "state", {"state": State.QUEUED.value})
        found = records.find_reusable(connection, new.cache_key, new.asked_gap)
        if found is not None:
            job = records.require_job(connection, job_id)
            records.finish(connection, job, found, cached=True)
        return job_id

    def _expect_room(self, connection: Connection, owner: Owner, new: Sequence[Job]) -> None:
        """Raise, which undoes the submission, when more jobs wait than may. It is the last thing in a transaction."""
        if all(job.state.final for job in new):
            return
        _expect_turn(connection, owner)
        # Others wait no longer than it takes to count and to commit.
        self._database.lock_queue(connection)
        if owner.name is not None and owner.max_queued is None:
            # Only now is no other transaction counting.
            _expect_turn(connection, replace(owner, max_queued=max(1, self._max_queued // 2)))
        if connection.execute(_WAITING).scalar_one() > self._max_queued:
            raise QueueFullError(f"{self._max_queued} jobs wait already, and no more may. Send it again later.")


def _expect_turn(connection: Connection, owner: Owner) -> None:
    if keys.exceeds(connection, owner, State.QUEUED):
        raise QuotaError(
            f"{owner.name} may have {owner.max_queued} jobs that wait, and there is no room for what was sent. "
            "Send it again when some are done, or cancel some."
        )


def _of_owner(idempotency_key: str | None, owner: str | None) -> str | None:
    """An idempotency key as it is kept: two owners may choose the same one, and neither meets the other's jobs."""
    if idempotency_key is None or owner is None:
        return idempotency_key
    return hashlib.sha256(f"{owner}\n{idempotency_key}".encode()).hexdigest()


def _by_key(
    connection: Connection, table: sa.Table, key: str | None, owner: str | None, request_sha256: str
) -> str | None:
    """Look up the id of what an idempotency key of this owner made before."""
    if key is None:
        return None
    row = connection.execute(
        sa.select(table.c.id, table.c.request_sha256).where(table.c.idempotency_key == _of_owner(key, owner))
    ).one_or_none()
    if row is None:
        return None
    if row.request_sha256 != request_sha256:
        raise InputError(
            "Idempotency-Key",
            key,
            "was used for another request",
            "Use a new key for every new request, the same key only to repeat one.",
        )
    return str(row.id)


def _frontier(connection: Connection, frontier_id: str) -> Frontier:
    columns = schema.frontier.c
    row = connection.execute(
        sa.select(columns.id, columns.labels, columns.created_at).where(columns.id == frontier_id)
    ).one()
    jobs = connection.execute(
        sa.select(schema.job).where(schema.job.c.frontier_id == frontier_id).order_by(schema.job.c.budget_bytes)
    )
    return Frontier(row.id, row.labels, row.created_at, tuple(Job.from_row(job) for job in jobs))


def log_tail(database: Database, job_id: str, lines: int) -> list[str]:
    """The last lines of a job's log, in order (:meth:`Jobs.events` has all of them)."""
    of_log = sa.and_(schema.event.c.job_id == job_id, schema.event.c.type == "log")
    query = sa.select(schema.event.c.data).where(of_log).order_by(schema.event.c.seq.desc()).limit(lines)
    with database.read() as connection:
        return [str(data["line"]) for data in connection.execute(query).scalars()][::-1]


def search(database: Database, job_id: str, about: int) -> list[Event]:
    """Read every incumbent, and of a long search about so many of the other reports, in order."""
    columns = schema.event.c
    count = sa.select(schema.job.c.event_seq).where(schema.job.c.id == job_id)
    with database.read() as connection:
        step = max(1, (connection.execute(count).scalar() or 0) // about)
        reports = sa.and_(columns.type == "progress", columns.seq % step == 0)
        wanted = sa.and_(columns.job_id == job_id, sa.or_(columns.type == "incumbent", reports))
        query = sa.select(columns.seq, columns.at, columns.type, columns.data).where(wanted).order_by(columns.seq)
        return [Event(*row) for row in connection.execute(query)]
