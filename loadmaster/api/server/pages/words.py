"""A job in the words of pages: what its table, its own page and comparisons show of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from loadmaster.api.comparison import cost
from loadmaster.api.server.resources import limit_document
from loadmaster.api.store.records import Job, State
from loadmaster.models.units import show_limit, show_share

_AGES = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))


@dataclass(frozen=True)
class JobWords:
    """A job; what it does not have is empty.

    Attributes:
        state: ``cancelling`` of one that was told to stop and goes on.
        ran: how long it ran, or has run so far.
        labels: as they are filtered by.
        owner: the name of the key that it was submitted with, if any.
        has_plan: there is a plan to open, be it the answer that none exists.
        has_incumbent: there is a best plan so far, in place of a final one.
    """

    id: str
    name: str
    kind: str
    state: str
    final: bool
    cached: bool
    limit_name: str
    limit: str
    objective: str
    bound: str
    gap: str
    created: str
    created_at: str
    ran: str
    has_plan: bool
    has_incumbent: bool
    frontier_id: str
    labels: tuple[str, ...]
    owner: str


def job_words(job: Job) -> JobWords:
    """Put a job into the words that pages show of it."""
    limit = limit_document(job.kind, job.limit)
    return JobWords(
        id=job.id,
        name=job.name,
        kind=job.kind,
        state="cancelling" if job.cancel_requested and job.state is State.RUNNING else job.state.value,
        final=job.state.final,
        cached=job.cached,
        limit_name="" if limit is None else limit.name,
        limit="" if limit is None else show_limit(limit.value, limit.unit),
        objective=cost(job.objective, job.unit),
        bound=cost(job.bound, job.unit),
        gap="" if job.gap is None else show_share(job.gap),
        created=f"{age(time.time() - job.created_at)} ago",
        created_at=moment(job.created_at),
        ran="" if job.started_at is None else age(max(0.0, (job.finished_at or time.time()) - job.started_at)),
        has_plan=job.plan_sha256 is not None,
        has_incumbent=job.incumbent_objective is not None,
        frontier_id=job.frontier_id or "",
        labels=tuple(f"{name}:{value}" for name, value in job.labels.items()),
        owner=job.owner or "",
    )


def age(seconds: float) -> str:
    """A duration in its largest unit: ``12 s``, ``3 min``, ``2 d``."""
    for length, unit in _AGES:
        if seconds >= length:
            return f"{int(seconds / length)} {unit}"
    return f"{max(0.0, seconds):.0f} s" if seconds >= 10 else f"{max(0.0, seconds):.1f} s"


def moment(at: float) -> str:
    """Write a time in UTC, the same for every reader."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
