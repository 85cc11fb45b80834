"""Progress of a job, for a person who watches it: the end of its log, and its search in as many points as can be told
apart. (:meth:`loadmaster.api.store.jobs.Jobs.events` has every event.)"""

from __future__ import annotations

import sqlalchemy as sa

from loadmaster.api.store import schema
from loadmaster.api.store.database import Database
from loadmaster.api.store.records import Event

__all__ = ["log_tail", "search"]


def log_tail(database: Database, job_id: str, lines: int) -> list[str]:
    """The last lines of a job's log, in order."""
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
