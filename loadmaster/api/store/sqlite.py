"""Parts that only SQLite has: a file for its owner alone, the write-ahead log, one writer at a time."""

from __future__ import annotations

import contextlib
import math
import sqlite3
import threading
import time
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from loadmaster.errors import InputError

__all__ = ["engines", "give_back_space", "lock_queue", "lock_schema", "turn_to_write"]

_PAUSE_S = 0.01
# The write-ahead log grows with the largest transaction, and is cut to this afterwards.
_LONGEST_LOG_BYTES = 64 << 20
# Free space in the file is used again: little of it is left there.
_FREE_BYTES, _FREE_BYTES_TO_REWRITE = 8 << 20, 64 << 20
_AT_ONCE_BYTES = 128 << 20
_INCREMENTAL = 2


def engines(url: sa.URL, wait_s: float) -> tuple[Engine, Engine]:
    """Engines for transactions that read and for those that write: the latter wait ``wait_s`` for one another. Raises
    InputError if the database is in memory."""
    _expect_file(url)
    engine = sa.create_engine(url, connect_args={"check_same_thread": False})

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: object, _record: object) -> None:
        # The driver must not open transactions of its own: _begin does.
        connection.isolation_level = None  # type: ignore[attr-defined]
        cursor = connection.cursor()  # type: ignore[attr-defined]
        cursor.execute(f"PRAGMA busy_timeout={math.ceil(1000 * wait_s)}")
        # Of a new file, before anything is in it; of one that has none, with the next VACUUM.
        cursor.execute("PRAGMA auto_vacuum=INCREMENTAL")
        _log_ahead(cursor, wait_s)
        for pragma in ("synchronous=NORMAL", "foreign_keys=ON", f"journal_size_limit={_LONGEST_LOG_BYTES}"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that reads first and writes later could otherwise fail at its first write (SQLITE_BUSY).
        write = connection.get_execution_options().get("loadmaster_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine, engine.execution_options(loadmaster_write=True)


def turn_to_write() -> threading.Lock:
    """The lock on which threads of this process wait to write: SQLite would let them sleep, ever longer."""
    return threading.Lock()


def lock_schema(connection: Connection) -> None:
    """Do nothing: a transaction that writes keeps all others out already."""


def lock_queue(connection: Connection) -> None:
    """Do nothing: a transaction that writes keeps all others out already."""


def give_back_space(engine: Engine) -> None:
    """Cut free pages off the file. One of an earlier release, which cannot, is rewritten when much of it is free."""
    with contextlib.closing(engine.raw_connection()) as connection:
        cursor = connection.cursor()

        def ask(pragma: str) -> int:
            return int(cursor.execute(f"PRAGMA {pragma}").fetchone()[0])

        page_bytes = ask("page_size")
        free_bytes = page_bytes * ask("freelist_count")
        if ask("auto_vacuum") == _INCREMENTAL:
            if free_bytes > _FREE_BYTES:
                # As a script, which goes on to its end: any other call frees one page.
                cursor.executescript(f"PRAGMA incremental_vacuum({_AT_ONCE_BYTES // page_bytes})")
        elif free_bytes > _FREE_BYTES_TO_REWRITE:
            cursor.execute("VACUUM")


def _log_ahead(cursor: sqlite3.Cursor, wait_s: float) -> None:
    """Use the write-ahead log. When several open a new file at once, SQLite refuses some, without waiting."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)


def _expect_file(url: sa.URL) -> None:
    """Make the file and its folder, for their owner alone; what is there stays as it is. A database in memory cannot be
    shared with workers: refused."""
    if url.database is None or url.database in ("", ":memory:"):
        shown = url.set(query={}).render_as_string(hide_password=True)
        raise InputError(
            "database_url", shown, "is a database in memory", "Name a file: sqlite:////path/to/service.db."
        )
    if url.database.startswith("file:"):
        return
    path = Path(url.database)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite gives its other files the rights of this one.
    path.touch(mode=0o600, exist_ok=True)
