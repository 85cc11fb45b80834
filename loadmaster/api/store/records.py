"""Records of the store as typed data, and the small pieces that submissions and the queue share."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from loadmaster.api.packed import GIVEN_BACK, PackedDocument, UnreadableDocumentError, pack
from loadmaster.api.store import incumbents, schema
from loadmaster.models.documents import Document

__all__ = [
    "Event",
    "Job",
    "Outcome",
    "State",
    "append_event",
    "count",
    "find_reusable",
    "finish",
    "get_job",
    "lock",
    "observe",
    "packed_document",
    "put_document",
    "put_event",
    "require_job",
]

logger = logging.getLogger(__name__)


class State(enum.StrEnum):
    """States of a job. The last four are final: nothing about the job changes any more."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self not in (State.QUEUED, State.RUNNING)


@dataclass(frozen=True)
class Job:
    """One row of the table of jobs. Times in seconds since the epoch; see :mod:`loadmaster.api.store.schema`."""

    id: str
    frontier_id: str | None
    kind: str
    name: str
    labels: Mapping[str, str]
    problem_sha256: str
    options: Mapping[str, Any]
    asked_gap: float
    time_limit_s: float
    limit: int | None
    cache_key: str
    idempotency_key: str | None
    request_sha256: str
    state: State
    status: str | None
    objective: float | None
    bound: float | None
    gap: float | None
    unit: str | None
    plan_sha256: str | None
    error: Mapping[str, Any] | None
    cached: bool
    reusable: bool
    cancel_requested: bool
    attempts: int
    lease_owner: str | None
    lease_beats: int | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    event_seq: int
    owner: str | None
    traceparent: str | None
    incumbent_objective: float | None

    @classmethod
    def from_row(cls, row: Row[Any]) -> Job:
        """The job of a row that has all columns."""
        values = dict(row._mapping)
        values["state"] = State(values["state"])
        values["limit"] = values.pop("budget_bytes")
        return cls(**values)


@dataclass(frozen=True)
class Event:
    """One event of a job: type is state, progress, incumbent, log or done; ``seq`` counts from 1 in each job."""

    seq: int
    at: float
    type: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """The end of a job: its final state, the plan or the error that says why, and how long it ran by a clock that
    nobody sets."""

    state: State
    plan: Document | None = None
    error: Mapping[str, Any] | None = None
    seconds: float | None = None


# Made once: what every submission runs. To build one again takes longer than to run it.
_THE_JOB = sa.select(schema.job).where(schema.job.c.id == sa.bindparam("job_id"))
_NEXT_EVENT = (
    sa.update(schema.job)
    .where(schema.job.c.id == sa.bindparam("of_job"))
    .values(event_seq=schema.job.c.event_seq + 1)
    .returning(schema.job.c.event_seq)
)
_NEW_EVENT = sa.insert(schema.event)
# Locked against whoever would give it back before this transaction refers to it.
_IS_KEPT = (
    sa.select(schema.document.c.sha256)
    .where(schema.document.c.sha256 == sa.bindparam("key"))
    .with_for_update(read=True, key_share=True)
)
_NEW_DOCUMENT = sa.insert(schema.document)
_WHOLE_AGAIN = (
    sa.update(schema.document)
    .where(schema.document.c.sha256 == sa.bindparam("key"), schema.document.c.body != sa.bindparam("whole"))
    .values(body=sa.bindparam("whole"))
)
_REUSABLE = (
    sa.select(schema.job.c.state, schema.job.c.plan_sha256)
    .where(
        schema.job.c.cache_key == sa.bindparam("key"),
        schema.job.c.reusable,
        schema.job.c.plan_sha256.is_not(None),
        sa.or_(schema.job.c.state == State.INFEASIBLE.value, schema.job.c.gap <= sa.bindparam("asked_gap")),
    )
    .order_by(schema.job.c.id.desc())
    # More than one, where the latest cannot be read.
    .limit(10)
)


def get_job(connection: Connection, job_id: str, *, lock: bool = False) -> Job | None:
    """Look up a job by its id; locked, nobody else changes it before this transaction ends."""
    row = connection.execute(_THE_JOB.with_for_update() if lock else _THE_JOB, {"job_id": job_id}).one_or_none()
    return None if row is None else Job.from_row(row)


def require_job(connection: Connection, job_id: str) -> Job:
    """The job of an id that this transaction knows to exist."""
    return Job.from_row(connection.execute(_THE_JOB, {"job_id": job_id}).one())


def lock(connection: Connection, column: sa.Column[str], value: str | None) -> None:
    """Let nobody else change the row of that key, or refer to it, before this transaction ends."""
    connection.execute(sa.select(column).where(column == value).with_for_update())


def append_event(connection: Connection, job_id: str, type_: str, data: Mapping[str, Any]) -> None:
    """Write the next event of a job. The counter in the job's row orders writers, on every database."""
    seq = connection.execute(_NEXT_EVENT, {"of_job": job_id}).scalar_one()
    put_event(connection, job_id, seq, type_, data)


def put_event(connection: Connection, job_id: str, seq: int, type_: str, data: Mapping[str, Any]) -> None:
    """Write an event whose number is in the job's row already, as the first one's of a job that is being inserted."""
    row = {"job_id": job_id, "seq": seq, "at": time.time(), "type": type_, "data": dict(data)}
    connection.execute(_NEW_EVENT, row)


def put_document(connection: Connection, packed: PackedDocument) -> str:
    """Keep a document under the hash of its content; returns the hash. One that was damaged is whole again."""
    if connection.execute(_IS_KEPT, {"key": packed.sha256}).scalar() is None:
        connection.execute(_NEW_DOCUMENT, {"sha256": packed.sha256, "body": packed.body})
    else:
        connection.execute(_WHOLE_AGAIN, {"key": packed.sha256, "whole": packed.body})
    return packed.sha256


def packed_document(connection: Connection, key: str) -> PackedDocument:
    """A document by its hash. Raises UnreadableDocumentError if it is not there."""
    body = connection.execute(sa.select(schema.document.c.body).where(schema.document.c.sha256 == key)).scalar()
    if body is None:
        raise UnreadableDocumentError(f"the document {key} is not in the store")
    return PackedDocument(key, body)


def count(connection: Connection, metric: str) -> None:
    """Add one to a plain counter."""
    connection.execute(_add(metric, 1.0).where(schema.tally.c.bucket == "count"))


def observe(connection: Connection, metric: str, value: float) -> None:
    """Add a value to a histogram: to the sum, and to every bucket it falls in."""
    # The one row of the sum first: who has it has them all. Two that took the buckets in different orders could each
    # hold what the other waits for.
    connection.execute(_add(metric, value).where(schema.tally.c.bucket == "sum"))
    connection.execute(_add(metric, 1.0).where(schema.tally.c.upper >= value))


def _add(metric: str, amount: float) -> sa.Update:
    return sa.update(schema.tally).where(schema.tally.c.metric == metric).values(value=schema.tally.c.value + amount)


def finish(connection: Connection, job: Job, outcome: Outcome, *, cached: bool = False) -> None:
    """Make a job final: state, figures of its plan, the last two events, the counters. A cancelled one that hands
    nothing over ends with the best plan that was kept of it."""
    if outcome.plan is None and outcome.state is State.CANCELLED:
        outcome = replace(outcome, plan=incumbents.best_plan(connection, job.id, "cancel"))
    if cached and outcome.plan is not None:
        # The name is not a part of what makes two requests equal.
        outcome = replace(outcome, plan={**outcome.plan, "name": job.name})
    plan = outcome.plan or {}
    now = time.time()
    gap = plan.get("gap")
    proved = outcome.state is State.INFEASIBLE or (gap is not None and gap <= job.asked_gap)
    figures = {name: plan.get(name) for name in ("status", "objective", "bound", "gap", "unit")}
    if outcome.plan is not None:
        incumbents.drop(connection, job.id)
    connection.execute(
        sa.update(schema.job)
        .where(schema.job.c.id == job.id)
        .values(
            state=outcome.state.value,
            plan_sha256=put_document(connection, pack(outcome.plan)) if outcome.plan is not None else None,
            error=dict(outcome.error) if outcome.error is not None else None,
            cached=cached,
            reusable=proved and outcome.state in (State.SUCCEEDED, State.INFEASIBLE),
            lease_owner=None,
            finished_at=now,
            incumbent_objective=job.incumbent_objective if outcome.plan is None else None,
            **figures,
        )
    )
    if outcome.plan is None and outcome.state is State.CANCELLED:
        _give_back(connection, job.problem_sha256)
    append_event(connection, job.id, "state", {"state": outcome.state.value, "cached": cached})
    error = None if outcome.error is None else dict(outcome.error)
    append_event(connection, job.id, "done", {"state": outcome.state.value, **figures, "error": error})
    # Last, because all ends write these rows, one after the other.
    if cached:
        count(connection, schema.CACHE_HITS)
    elif outcome.plan is not None and job.started_at is not None:
        # Of two times of day, the later one may be before the other.
        seconds = max(0.0, now - job.started_at) if outcome.seconds is None else outcome.seconds
        observe(connection, "solve_seconds", seconds)
        if gap is not None:
            observe(connection, "gap_at_stop", gap)


def _give_back(connection: Connection, key: str) -> None:
    """Empty a problem all of whose jobs were cancelled before there was a plan: nobody asks for it any more, and
    whoever submits it again brings it along."""
    lock(connection, schema.document.c.sha256, key)
    columns = schema.job.c
    has_nothing = sa.and_(columns.state == State.CANCELLED.value, columns.plan_sha256.is_(None))
    users = sa.select(columns.id).where(
        sa.or_(columns.plan_sha256 == key, sa.and_(columns.problem_sha256 == key, sa.not_(has_nothing)))
    )
    connection.execute(
        sa.update(schema.document).where(schema.document.c.sha256 == key, ~users.exists()).values(body=GIVEN_BACK)
    )


def find_reusable(connection: Connection, cache_key: str, asked_gap: float) -> Outcome | None:
    """The latest end of a job of the same problem and options that was proved to the asked gap. An answer that cannot
    be read any more does not count."""
    for row in connection.execute(_REUSABLE, {"key": cache_key, "asked_gap": asked_gap}):
        try:
            return Outcome(State(row.state), packed_document(connection, row.plan_sha256).document())
        except UnreadableDocumentError as error:
            logger.warning("an answer to a request like this is planned again: %s", error)
    return None
