"""The best plans of jobs that have no result: one a job, replaced by better ones, gone when there is a result.

A job that is tried again keeps the plan of the attempt before until there is a better one, and one that fails keeps it
for good: what was found and checked is not lost with a process.
"""

from __future__ import annotations

import logging
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from loadmaster.api.packed import PackedDocument, UnreadableDocumentError
from loadmaster.api.store import schema

__all__ = ["best_plan", "drop", "keep", "packed_plan"]

logger = logging.getLogger(__name__)

_ROW = schema.incumbent.c


def keep(connection: Connection, job_id: str, objective: float, plan: PackedDocument) -> bool:
    """Keep a plan of a job in the place of a worse one; False, and nothing changes, where the one kept is as good."""
    columns = schema.job.c
    worse = sa.or_(columns.incumbent_objective.is_(None), columns.incumbent_objective > objective)
    better = sa.update(schema.job).where(columns.id == job_id, worse).values(incumbent_objective=objective)
    if connection.execute(better).rowcount == 0:
        return False
    connection.execute(sa.delete(schema.incumbent).where(_ROW.job_id == job_id))
    connection.execute(sa.insert(schema.incumbent).values(job_id=job_id, sha256=plan.sha256, body=plan.body))
    return True


def packed_plan(connection: Connection, job_id: str) -> PackedDocument | None:
    """The plan that is kept of a job."""
    row = connection.execute(sa.select(_ROW.sha256, _ROW.body).where(_ROW.job_id == job_id)).one_or_none()
    return None if row is None else PackedDocument(row.sha256, row.body)


def best_plan(connection: Connection, job_id: str, stopped_by: str) -> dict[str, Any] | None:
    """Return the kept plan as the document that a stopped job ends with; None also where it cannot be read any more."""
    found = packed_plan(connection, job_id)
    try:
        return None if found is None else {**found.document(), "stopped_by": stopped_by}
    except UnreadableDocumentError as error:
        logger.warning("job %s ends without its best plan: %s", job_id, error)
        return None


def drop(connection: Connection, job_id: str) -> None:
    """Drop the plan that is kept of a job."""
    connection.execute(sa.delete(schema.incumbent).where(_ROW.job_id == job_id))
