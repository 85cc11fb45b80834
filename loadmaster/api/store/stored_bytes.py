"""Counts of the bytes that are stored of each owner's jobs, and whether there is room for more.

To count takes as long as an owner has jobs, so it is not done for every submission: what this process adds is counted
along, and all is counted again now and then, and where it seems too much.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from loadmaster.api.packed import PackedDocument
from loadmaster.api.store import schema
from loadmaster.api.store.database import Database
from loadmaster.api.store.keys import QuotaError

__all__ = ["StoredBytes"]

_COUNT_EVERY_S = 30.0
# Of the time, at most so much goes into counting for one owner.
_SHARE = 0.2


@dataclass
class _Counted:
    """The bytes that are stored, and may be; when that was counted, and how long it took."""

    stored_bytes: int
    most_bytes: int
    at: float
    took_s: float


class StoredBytes:
    """The stored bytes of owners, and the room that is left: ``most_bytes`` for a key without a quota of its own. Safe
    to call from any thread."""

    def __init__(self, database: Database, most_bytes: int) -> None:
        self._database, self._most_bytes = database, most_bytes
        self._lock = threading.Lock()
        self._counted: dict[str | None, _Counted] = {}

    def expect_room(self, owner: str | None, document: PackedDocument) -> None:
        """Take room for a document. Raises QuotaError if there is none."""
        if self._is_stored(document):
            return
        with self._lock:
            found = self._counted.get(owner)
        now, more_bytes = time.monotonic(), len(document.body)
        if found is None or now - found.at > _COUNT_EVERY_S:
            found = self._count(owner)
        if found.stored_bytes + more_bytes > found.most_bytes and now - found.at > found.took_s / _SHARE:
            found = self._count(owner)
        if found.stored_bytes + more_bytes > found.most_bytes:
            raise QuotaError(
                f"The plans of {owner or 'all who send no key'} take {found.stored_bytes} bytes of the store, may take "
                f"{found.most_bytes}, and {more_bytes} are to come. Delete some that are not needed any more "
                "(DELETE /v1/plans/ID)."
            )
        with self._lock:
            found.stored_bytes += more_bytes

    def forget(self, owner: str | None) -> None:
        """Have an owner's bytes counted again, because something has gone."""
        with self._lock:
            self._counted.pop(owner, None)

    def _is_stored(self, document: PackedDocument) -> bool:
        query = sa.select(schema.document.c.sha256).where(schema.document.c.sha256 == document.sha256)
        with self._database.read() as connection:
            return connection.execute(query).scalar() is not None

    def _count(self, owner: str | None) -> _Counted:
        began = time.monotonic()
        of_key = sa.select(schema.api_key.c.max_bytes).where(schema.api_key.c.name == owner)
        with self._database.read() as connection:
            most_bytes = connection.execute(of_key).scalar()
            stored_bytes = _stored_bytes(connection, owner)
        now = time.monotonic()
        found = _Counted(stored_bytes, self._most_bytes if most_bytes is None else most_bytes, now, now - began)
        with self._lock:
            self._counted[owner] = found
        return found


def _stored_bytes(connection: Connection, owner: str | None) -> int:
    """Sum the bytes of an owner's documents, each once even if jobs share it, measurements and best plans."""
    job, document = schema.job.c, schema.document.c
    mine = job.owner.is_(None) if owner is None else job.owner == owner
    keys = sa.union(sa.select(job.problem_sha256).where(mine), sa.select(job.plan_sha256).where(mine))
    documents = sa.select(sa.func.sum(sa.func.length(document.body))).where(document.sha256.in_(keys))
    total = connection.execute(documents).scalar() or 0
    for table in (schema.measurement, schema.incumbent):
        of_jobs = sa.select(sa.func.sum(sa.func.length(table.c.body))).join(schema.job, job.id == table.c.job_id)
        total += connection.execute(of_jobs.where(mine)).scalar() or 0
    return int(total)
