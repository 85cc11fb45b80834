"""Measurements of plans when they ran: one document of each job, kept until the job is purged."""

from __future__ import annotations

import sqlalchemy as sa

from loadmaster.api.packed import pack
from loadmaster.api.store import records, schema
from loadmaster.api.store.database import Database, transaction
from loadmaster.models.documents import Document

__all__ = ["Measurements"]


class Measurements:
    """The measurements of a store. Safe to call from any thread."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @transaction
    def put(self, job_id: str, document: Document) -> bool:
        """Keep what the plan of a job measured, in the place of what was there; False if the job is not known."""
        table, body = schema.measurement, pack(document).body
        with self._database.write() as connection:
            if records.get_job(connection, job_id, lock=True) is None:
                return False
            connection.execute(sa.delete(table).where(table.c.job_id == job_id))
            connection.execute(sa.insert(table).values(job_id=job_id, body=body))
            return True

    def get(self, job_id: str) -> bytes | None:
        """The measurement of a job, packed, or None where nothing was sent."""
        table = schema.measurement
        with self._database.read() as connection:
            body: bytes | None = connection.execute(sa.select(table.c.body).where(table.c.job_id == job_id)).scalar()
        return body
