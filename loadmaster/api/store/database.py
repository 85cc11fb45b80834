"""The database behind the store: opened by its URL, brought to this release's schema, used in transactions."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
    TimeoutError,
)

from loadmaster.api.store import migrate, postgresql, sqlite
from loadmaster.errors import InputError

__all__ = ["Database", "DatabaseAwayError", "log_error", "transaction"]

ArgumentsP = ParamSpec("ArgumentsP")
ResultT = TypeVar("ResultT")

_BACKENDS = {"sqlite": sqlite, "postgresql": postgresql, "postgres": postgresql}
_MOST_TRIES = 10


class DatabaseAwayError(InputError):
    """A database server does not let anybody in: it may only have to start."""


class Database:
    """The database of the service: SQLite or PostgreSQL. Safe to use from any thread. A transaction waits ``wait_s``
    for what others have locked.

    Raises:
        DatabaseAwayError: the server does not answer, or lets nobody in.
        InputError: the URL cannot be used, or the database was written by a later release.
    """

    def __init__(self, url: str, *, wait_s: float = 30.0) -> None:
        parsed, url = _parsed(url)
        backend = _BACKENDS.get(parsed.get_backend_name())
        if backend is None:
            remedy = "Give sqlite:////path/to/service.db or postgresql://user:password@host/name."
            raise InputError("database_url", url, "is no database that the service runs on", remedy)
        try:
            self._readers, self.engine = backend.engines(parsed, wait_s)
            self._turn, self._lock_queue = backend.turn_to_write(), backend.lock_queue
            self._give_back_space = backend.give_back_space
            with self.write() as connection:
                backend.lock_schema(connection)
                newer = migrate.unknown_revision(connection)
                if newer is None:
                    migrate.upgrade(connection)
        except (ArgumentError, ImportError, OSError, ValueError) as error:
            raise _unusable(url, error) from None
        except OperationalError as error:
            is_server = parsed.get_backend_name() != "sqlite"
            raise _unusable(url, error, DatabaseAwayError if is_server else InputError) from error
        except SQLAlchemyError as error:
            raise _unusable(url, error) from error
        if newer is not None:
            remedy = "Upgrade this Loadmaster, or give another database."
            raise InputError("database_url", url, f"was written by a later Loadmaster (revision {newer})", remedy)

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads: it sees one state of the database and blocks nobody."""
        with self._readers.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that writes: see :func:`transaction`. On SQLite only one runs at a time, others wait for it."""
        with self._turn, self.engine.begin() as connection:
            yield connection

    def lock_queue(self, connection: Connection) -> None:
        """Let nobody else who asks go on before this transaction that writes ends: how many jobs wait stays true."""
        self._lock_queue(connection)

    def give_back_space(self) -> None:
        """Let the system have what deleted rows took of the disk, some of it at a time."""
        with self._turn:
            self._give_back_space(self.engine)

    def takes_writes(self) -> bool:
        """Return whether the database takes writes: something is written, and left as it was. Its disk may be full."""
        try:
            with self.write() as connection:
                connection.exec_driver_sql("UPDATE alembic_version SET version_num = version_num")
        except SQLAlchemyError:
            return False
        return True

    def close(self) -> None:
        """Close the connections to the database."""
        self.engine.dispose()


def transaction(method: Callable[ArgumentsP, ResultT]) -> Callable[ArgumentsP, ResultT]:
    """Mark a method that only writes in one transaction: it is done again when others came in its way. Two that write
    at a time may insert the same key, or wait for each other; then one is undone, and finds at its next try what the
    other one wrote."""

    @functools.wraps(method)
    def until_done(*arguments: ArgumentsP.args, **named: ArgumentsP.kwargs) -> ResultT:
        for _ in range(_MOST_TRIES - 1):
            try:
                return method(*arguments, **named)
            except DBAPIError as error:
                if not isinstance(error, IntegrityError) and not postgresql.is_conflict(error):
                    raise
        return method(*arguments, **named)

    return until_done


def log_error(logger: logging.Logger, words: str, error: SQLAlchemyError) -> None:
    """Log that a database does not answer. In an outage that is said often: the trace is for other errors."""
    is_outage = isinstance(error, OperationalError | InterfaceError | TimeoutError)
    logger.error("the database does not answer; %s: %s", words, _one_line(error), exc_info=None if is_outage else error)


def _one_line(error: BaseException) -> str:
    reason = getattr(error, "orig", None) or error
    return (str(reason).splitlines() or [type(reason).__name__])[0]


def _parsed(url: str) -> tuple[sa.URL, str]:
    """The URL in its parts, and as it may be shown. One that cannot be read is not: it may hold a password anywhere.
    Raises InputError if it is not the URL of a database."""
    with contextlib.suppress(ArgumentError, ValueError):
        parsed = make_url(url)
        # An @ that is not encoded ends a password early: the rest of it would be taken for the host's name.
        if "@" not in (parsed.host or ""):
            # Drivers take passwords as parameters, too.
            return parsed, parsed.set(query={}).render_as_string(hide_password=True)
    remedy = "Give dialect://user:password@host/name, with special characters percent-encoded."
    raise InputError("database_url", "...", "is no URL of a database", remedy)


def _unusable(url: str, error: Exception, kind: type[InputError] = InputError) -> InputError:
    return kind("database_url", url, f"cannot be opened: {_one_line(error)}", "Give the URL of a database that can.")
