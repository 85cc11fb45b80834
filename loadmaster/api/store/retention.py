"""Retention of final jobs: they go when they are old, or when there are too many."""

from __future__ import annotations

import logging
import time

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from loadmaster.api.store import records, schema
from loadmaster.api.store.database import Database, transaction
from loadmaster.api.store.records import Job, State

__all__ = ["Retention", "remove"]

logger = logging.getLogger(__name__)

_DAY_S = 86_400.0
_FINAL = [state.value for state in State if state.final]
# Others who write wait for one of these at most, and whoever calls for all of them.
_IN_ONE_TRANSACTION, _AT_ONCE = 20, 500


class Retention:
    """Purges the final jobs that are over, and gives their space back. Safe to call from any thread. Jobs are kept for
    ``days`` after their end, the latest ``jobs`` of them; 0 is no limit."""

    def __init__(self, database: Database, days: float, jobs: int) -> None:
        self._database, self._days, self._jobs = database, days, jobs

    def apply(self) -> int:
        """Purge some of what is over; returns how many jobs. Called again and again, it comes to an end with them."""
        with self._database.read() as connection:
            over = [*self._too_old(connection), *self._too_many(connection)][:_AT_ONCE]
        for begin in range(0, len(over), _IN_ONE_TRANSACTION):
            self._purge(over[begin : begin + _IN_ONE_TRANSACTION])
        if over:
            logger.info("%d plans were kept for long enough, and are purged", len(over))
        self._database.give_back_space()
        return len(over)

    def _too_old(self, connection: Connection) -> list[str]:
        if not self._days:
            return []
        columns, before = schema.job.c, time.time() - self._days * _DAY_S
        # Ids ascend with the time of submission: the range is short, and its jobs are purged but for those that wait.
        old = sa.and_(columns.id < schema.id_at("plan", before), columns.finished_at < before)
        query = sa.select(columns.id).where(old, columns.state.in_(_FINAL)).order_by(columns.id).limit(_AT_ONCE)
        return list(connection.execute(query).scalars())

    def _too_many(self, connection: Connection) -> list[str]:
        if not self._jobs:
            return []
        columns = schema.job.c
        final = sa.select(columns.id).where(columns.state.in_(_FINAL))
        count = connection.execute(sa.select(sa.func.count()).select_from(final.subquery())).scalar_one()
        if count <= self._jobs:
            return []
        over = final.order_by(columns.id).limit(min(_AT_ONCE, count - self._jobs))
        return list(connection.execute(over).scalars())

    @transaction
    def _purge(self, job_ids: list[str]) -> None:
        with self._database.write() as connection:
            for job_id in job_ids:
                job = records.get_job(connection, job_id, lock=True)
                if job is not None and job.state.final:
                    remove(connection, job)


def remove(connection: Connection, job: Job) -> None:
    """Delete a final job that is locked, what belongs to it, and its documents unless other jobs use them."""
    for table in (schema.event, schema.label, schema.measurement, schema.incumbent):
        connection.execute(sa.delete(table).where(table.c.job_id == job.id))
    connection.execute(sa.delete(schema.job).where(schema.job.c.id == job.id))
    # What two jobs share is locked before it is asked for users: of two that are purged at the same time, the second
    # must see that the first is gone.
    records.lock(connection, schema.frontier.c.id, job.frontier_id)
    for key in filter(None, (job.problem_sha256, job.plan_sha256)):
        records.lock(connection, schema.document.c.sha256, key)
        users = sa.select(schema.job.c.id).where(
            sa.or_(schema.job.c.problem_sha256 == key, schema.job.c.plan_sha256 == key)
        )
        connection.execute(sa.delete(schema.document).where(schema.document.c.sha256 == key, ~users.exists()))
    siblings = sa.select(schema.job.c.id).where(schema.job.c.frontier_id == job.frontier_id)
    connection.execute(sa.delete(schema.frontier).where(schema.frontier.c.id == job.frontier_id, ~siblings.exists()))
