"""The tables, and the database behind them.

Times are seconds since the epoch. Ids sort by time of creation, so that lists and the queue need no other order:
exactly where one process makes them, by the clocks of their machines where several do.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from loadmaster.errors import InputError

__all__ = [
    "CACHE_HITS",
    "HISTOGRAMS",
    "INFINITY",
    "SCHEMA_VERSION",
    "Database",
    "api_key",
    "document",
    "event",
    "frontier",
    "job",
    "label",
    "metadata",
    "new_id",
    "schema_version",
    "tally",
    "worker",
]

SCHEMA_VERSION = 1

# Buckets of the histograms kept in the table ``tally``; the last one is everything.
INFINITY = "+Inf"
HISTOGRAMS = {
    "solve_seconds": ("0.1", "0.5", "1", "2", "5", "10", "30", "60", "120", "300", "900", "3600", INFINITY),
    "gap_at_stop": ("0", "0.001", "0.005", "0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1", INFINITY),
}
CACHE_HITS = "cache_hits"

metadata = sa.MetaData()

schema_version = sa.Table("schema_version", metadata, sa.Column("version", sa.Integer, primary_key=True))

# Problems and plans by content: canonical JSON, compressed.
document = sa.Table(
    "document",
    metadata,
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

# Who may use the service. Of a secret only its hash is kept.
api_key = sa.Table(
    "api_key",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("secret_sha256", sa.String(64), nullable=False, unique=True),
    sa.Column("scope", sa.String(12), nullable=False),
    sa.Column("max_queued", sa.Integer),
    sa.Column("max_running", sa.Integer),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("revoked_at", sa.Float),
)

frontier = sa.Table(
    "frontier",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("labels", sa.JSON, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("idempotency_key", sa.String(255), unique=True),
    sa.Column("request_sha256", sa.String(64), nullable=False),
)

job = sa.Table(
    "job",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("frontier_id", sa.ForeignKey("frontier.id"), index=True),
    sa.Column("kind", sa.String(40), nullable=False),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("labels", sa.JSON, nullable=False),
    sa.Column("problem_sha256", sa.ForeignKey("document.sha256"), nullable=False, index=True),
    sa.Column("options", sa.JSON, nullable=False),
    sa.Column("asked_gap", sa.Float, nullable=False),
    sa.Column("time_limit_s", sa.Float, nullable=False),
    # The limit of the problem's kind, in its unit: for the first kind that was a budget in bytes.
    sa.Column("budget_bytes", sa.BigInteger),
    sa.Column("cache_key", sa.String(64), nullable=False),
    sa.Column("idempotency_key", sa.String(255), unique=True),
    sa.Column("request_sha256", sa.String(64), nullable=False),
    sa.Column("state", sa.String(12), nullable=False),
    sa.Column("status", sa.String(12)),
    sa.Column("objective", sa.Float),
    sa.Column("bound", sa.Float),
    sa.Column("gap", sa.Float),
    sa.Column("unit", sa.String(12)),
    sa.Column("plan_sha256", sa.ForeignKey("document.sha256"), index=True),
    sa.Column("error", sa.JSON),
    sa.Column("cached", sa.Boolean, nullable=False, default=False),
    # Proved to the asked gap (or proved infeasible): may answer the same request again.
    sa.Column("reusable", sa.Boolean, nullable=False, default=False),
    sa.Column("cancel_requested", sa.Boolean, nullable=False, default=False),
    sa.Column("attempts", sa.Integer, nullable=False, default=0),
    sa.Column("lease_owner", sa.String(64), index=True),
    # Claims and heartbeats of the job so far: while it runs, this number grows. No clock has a part in it.
    sa.Column("lease_beats", sa.Integer),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("started_at", sa.Float),
    sa.Column("finished_at", sa.Float),
    # Number of the latest event; every change of a job writes one, so this is the job's version as well.
    sa.Column("event_seq", sa.Integer, nullable=False, default=0),
    # The name of the API key that it was submitted with; none where the service asks for no keys.
    sa.Column("owner", sa.String(64)),
    # The oldest job that waits, and keys and owners of those that run: both read from the index alone, in its order.
    sa.Index("job_by_state_and_owner", "state", "id", "cache_key", "owner"),
    # The jobs of one owner: lists, and what counts towards quotas.
    sa.Index("job_by_owner", "owner", "state", "id"),
    # The latest answer to a request.
    sa.Index("job_by_answer", "cache_key", "reusable", "id"),
)

# Of later releases than the table may be of.
_ADDED_COLUMNS = ("lease_beats", "owner")
# Of earlier releases. SQLite could choose the first two for the queue's question, whose cost then grew with the square
# of the number of equal jobs; the third lacks the owners.
_DROPPED_INDEXES = ("ix_job_state", "job_by_cache_key", "job_by_state")

label = sa.Table(
    "label",
    metadata,
    sa.Column("job_id", sa.ForeignKey("job.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("value", sa.String(256), nullable=False),
    sa.Index("label_by_value", "name", "value"),
)

event = sa.Table(
    "event",
    metadata,
    sa.Column("job_id", sa.ForeignKey("job.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("type", sa.String(12), nullable=False),
    sa.Column("data", sa.JSON, nullable=False),
)

worker = sa.Table(
    "worker",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("seen_at", sa.Float, nullable=False),
)

# Counters of /metrics that must survive restarts and purges: cumulative histogram buckets, sums, plain counts.
tally = sa.Table(
    "tally",
    metadata,
    sa.Column("metric", sa.String(40), primary_key=True),
    sa.Column("bucket", sa.String(12), primary_key=True),
    sa.Column("upper", sa.Float, nullable=False),
    sa.Column("value", sa.Float, nullable=False),
)


_RANDOM_BITS = 64
_last_number = 0
_numbering = threading.Lock()


def new_id(prefix: str) -> str:
    """A fresh id: prefix, milliseconds since the epoch, randomness. Sorts after all that this process made before."""
    global _last_number
    fresh = int(time.time() * 1000) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
    with _numbering:
        # Within a millisecond, and where the clock was set back, a random step on: never by chance before.
        _last_number = max(fresh, _last_number + 1 + secrets.randbits(_RANDOM_BITS // 2))
        return f"{prefix}_{_last_number:028x}"


class Database:
    """The database of the service: opens it, creates tables and indexes that are missing, refuses another version.

    Args:
        wait_s: how long a transaction waits for others to end, where only one writes at a time (SQLite).

    Raises:
        InputError: the URL cannot be used, or the database was written by another version.
    """

    def __init__(self, url: str, *, wait_s: float = 30.0) -> None:
        parsed, url = _parsed(url)
        try:
            if parsed.get_backend_name() == "sqlite":
                _expect_file(parsed, url)
            self.engine = _engine(parsed, wait_s)
            self._write_engine = self.engine.execution_options(loadmaster_write=True)
            found = self._create()
        except InputError:
            raise
        except (ArgumentError, NoSuchModuleError, ImportError, OSError, ValueError) as error:
            raise _unusable(url, error) from None
        except SQLAlchemyError as error:
            raise _unusable(url, error) from error
        if found != SCHEMA_VERSION:
            raise InputError(
                "database_url",
                url,
                f"holds a database of version {found}; this Loadmaster uses version {SCHEMA_VERSION}",
                "Give another database, or move this one away.",
            )

    def _create(self) -> int:
        with self.write() as connection:
            metadata.create_all(connection)
            # Tables that were there before have the columns and indexes of their day.
            present = {column["name"] for column in sa.inspect(connection).get_columns(job.name)}
            for name in _ADDED_COLUMNS:
                if name not in present:
                    type_ = job.c[name].type.compile(connection.dialect)
                    connection.exec_driver_sql(f"ALTER TABLE {job.name} ADD COLUMN {name} {type_}")
            for index in job.indexes:
                index.create(connection, checkfirst=True)
            for name in _DROPPED_INDEXES:
                connection.exec_driver_sql(f"DROP INDEX IF EXISTS {name}")
            found = connection.execute(sa.select(schema_version.c.version)).scalar()
            if found is not None:
                return int(found)
            connection.execute(sa.insert(schema_version).values(version=SCHEMA_VERSION))
            rows = [
                {"metric": metric, "bucket": bucket, "upper": float(bucket) if bucket != INFINITY else 1e300}
                for metric, buckets in HISTOGRAMS.items()
                for bucket in buckets
            ]
            # Negative: never counted as a bucket of its metric.
            rows += [{"metric": metric, "bucket": "sum", "upper": -1.0} for metric in HISTOGRAMS]
            rows += [{"metric": CACHE_HITS, "bucket": "count", "upper": -1.0}]
            connection.execute(sa.insert(tally), [{**row, "value": 0.0} for row in rows])
            return SCHEMA_VERSION

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads: it sees one state of the database and blocks nobody."""
        with self.engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that writes: on SQLite the only one at a time, others wait for it."""
        with self._write_engine.begin() as connection:
            yield connection

    def takes_writes(self) -> bool:
        """Whether it does: something is written, and left as it was. Its disk may be full."""
        version = schema_version.c.version
        try:
            with self.write() as connection:
                connection.execute(sa.update(schema_version).values(version=version))
        except SQLAlchemyError:
            return False
        return True

    def close(self) -> None:
        """Give the connections back."""
        self.engine.dispose()


def _parsed(url: str) -> tuple[sa.URL, str]:
    """The URL in its parts, and as it may be shown. One that cannot be read is not: it may hold a password anywhere.

    Raises:
        InputError: it is no URL of a database.
    """
    with contextlib.suppress(ArgumentError, ValueError):
        parsed = make_url(url)
        # An @ that is not encoded ends a password early: the rest of it would be taken for the host's name.
        if "@" not in (parsed.host or ""):
            # Drivers take passwords as parameters, too.
            return parsed, parsed.set(query={}).render_as_string(hide_password=True)
    remedy = "Give dialect://user:password@host/name, with special characters percent-encoded."
    raise InputError("database_url", "...", "is no URL of a database", remedy)


def _expect_file(parsed: sa.URL, url: str) -> None:
    """Make an SQLite file and its folder, for their owner alone; what is there stays as it is.

    A database in memory cannot be shared with workers: refused.
    """
    if parsed.database is None or parsed.database in ("", ":memory:"):
        raise InputError("database_url", url, "is a database in memory", "Name a file: sqlite:////path/to/service.db.")
    if parsed.database.startswith("file:"):
        return
    path = Path(parsed.database)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite gives the files beside it the rights of this one.
    path.touch(mode=0o600, exist_ok=True)


def _unusable(url: str, error: Exception) -> InputError:
    reason = str(error).splitlines()[0]
    return InputError("database_url", url, f"cannot be opened: {reason}", "Give an SQLAlchemy URL that can.")


def _engine(url: sa.URL, wait_s: float) -> Engine:
    if url.get_backend_name() != "sqlite":
        return sa.create_engine(url, pool_pre_ping=True)
    engine = sa.create_engine(url, connect_args={"check_same_thread": False})

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: object, _record: object) -> None:
        # The driver must not open transactions of its own: _begin does.
        connection.isolation_level = None  # type: ignore[attr-defined]
        cursor = connection.cursor()  # type: ignore[attr-defined]
        wait = f"busy_timeout={math.ceil(1000 * wait_s)}"
        for pragma in (wait, "journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that reads first and writes later could otherwise fail at its first write (SQLITE_BUSY).
        write = connection.get_execution_options().get("loadmaster_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine
