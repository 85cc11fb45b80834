"""Parts that only PostgreSQL has: its driver, snapshots for readers, limits on waiting, conflicts of transactions."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import psycopg
import sqlalchemy as sa
from psycopg.abc import Buffer
from psycopg.types.string import StrDumperUnknown
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from loadmaster.errors import InputError

__all__ = ["engines", "give_back_space", "is_conflict", "lock_queue", "lock_schema", "turn_to_write"]

_CONNECT_S = 10
# A process that was stopped in the middle of a transaction must not keep its locks.
_LONGEST_IDLE_MS = 60_000
# Any numbers that no other program takes in the same database.
_SCHEMA_LOCK, _QUEUE_LOCK = 7_236_828_793, 7_236_828_794
_CONFLICTS = ("40001", "40P01")  # a snapshot that is too old, a deadlock


class _WithoutNul(StrDumperUnknown):
    """PostgreSQL's text holds all characters but NUL: a name shows a mark in its place, an id with one is not known."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(obj.replace("\0", "\ufffd"))


def engines(url: sa.URL, wait_s: float) -> tuple[Engine, Engine]:
    """Engines for transactions that read, and for those that write. Locks of others are waited for ``wait_s`` at most.
    Raises InputError if the URL asks for another driver."""
    if url.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
        remedy = "Give postgresql://user:password@host/name."
        raise InputError("database_url", url.drivername, "is no driver that the service uses", remedy)
    wait_ms = max(1, math.ceil(1000 * wait_s))
    limits = f"-c lock_timeout={wait_ms} -c idle_in_transaction_session_timeout={_LONGEST_IDLE_MS}"
    # A server that is cut off shows as an error, and the call is made again, instead of hanging for hours.
    arguments = {"connect_timeout": _CONNECT_S, "tcp_user_timeout": wait_ms, "options": limits}
    engine = sa.create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_pre_ping=True,
        connect_args={name: value for name, value in arguments.items() if name not in url.query},
        isolation_level="READ COMMITTED",
    )

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: psycopg.Connection, _record: object) -> None:
        connection.adapters.register_dumper(str, _WithoutNul)

    return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True), engine


def turn_to_write() -> AbstractContextManager[None]:
    """Return a lock that makes nobody wait: the server has several write at a time."""
    return nullcontext()


def lock_schema(connection: Connection) -> None:
    """Keep all others from changing the schema until the transaction ends; wait for one that does."""
    connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})")


def lock_queue(connection: Connection) -> None:
    """Wait for all others who have called this to end their transactions; those who call it later wait for this one."""
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_QUEUE_LOCK})")


def give_back_space(_engine: Engine) -> None:
    """Do nothing: the server's own vacuum gives space back."""


def is_conflict(error: DBAPIError) -> bool:
    """Return whether the transaction was undone only because of others at the same time."""
    return getattr(error.orig, "sqlstate", None) in _CONFLICTS
