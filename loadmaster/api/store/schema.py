"""Tables of the store. A change needs a step in :mod:`loadmaster.api.store.migrations`, too: a test compares the two.

Times are seconds since the epoch. Ids sort by time of creation, so that lists and the queue need no other order:
exactly where one process makes them, by the clocks of their machines where several do.
"""

from __future__ import annotations

import secrets
import threading
import time

import sqlalchemy as sa

__all__ = [
    "CACHE_HITS",
    "HISTOGRAMS",
    "INFINITY",
    "api_key",
    "blob",
    "document",
    "event",
    "frontier",
    "id_at",
    "incumbent",
    "job",
    "label",
    "measurement",
    "metadata",
    "new_id",
    "tally",
    "turn",
    "worker",
]

# Buckets of the histograms kept in the table ``tally``; the last one is everything.
INFINITY = "+Inf"
HISTOGRAMS = {
    "solve_seconds": ("0.1", "0.5", "1", "2", "5", "10", "30", "60", "120", "300", "900", "3600", INFINITY),
    "gap_at_stop": ("0", "0.001", "0.005", "0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1", INFINITY),
}
CACHE_HITS = "cache_hits"

metadata = sa.MetaData()

# Problems and plans by content: canonical JSON, compressed.
document = sa.Table(
    "document",
    metadata,
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

# What was sent to be named by requests, by the hash of its bytes, compressed. A cache: those that were used longest ago
# go when there is no room, and whoever needs one again sends it again.
blob = sa.Table(
    "blob",
    metadata,
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    # About how many JSON values it holds: what it takes in memory is known before it is read.
    sa.Column("json_values", sa.BigInteger, nullable=False),
    sa.Column("stored_bytes", sa.BigInteger, nullable=False),
    sa.Column("used_at", sa.Float, nullable=False),
    # Last, so that reading the others does not pass over it.
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
    # Of documents and what else belongs to its jobs, as stored.
    sa.Column("max_bytes", sa.BigInteger),
)

# Owners of jobs take turns in the queue: the one that was served longest ago comes next. Jobs of no owner are of "".
turn = sa.Table(
    "turn",
    metadata,
    sa.Column("owner", sa.String(64), primary_key=True),
    # Grows with every job that is taken from the queue.
    sa.Column("number", sa.BigInteger, nullable=False),
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

_WAITS, _RUNS = sa.text("state = 'queued'"), sa.text("state = 'running'")

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
    # The span of the request that submitted it, as W3C Trace Context writes it.
    sa.Column("traceparent", sa.String(64)),
    # Of the plan in the table ``incumbent``; none where nothing is there.
    sa.Column("incumbent_objective", sa.Float),
    # Keys and owners of those that run, lists of a state, and counts.
    sa.Index("job_by_state_and_owner", "state", "id", "cache_key", "owner"),
    # The jobs of one owner: lists, and what counts towards quotas.
    sa.Index("job_by_owner", "owner", "state", "id"),
    # The oldest that waits, however many have ended: databases that take it for rare would else pass over all of those.
    sa.Index("job_that_waits", "id", "cache_key", "owner", sqlite_where=_WAITS, postgresql_where=_WAITS),
    # Of equal requests one runs at a time, also where several workers claim at once.
    sa.Index("job_that_runs", "cache_key", unique=True, sqlite_where=_RUNS, postgresql_where=_RUNS),
    # The latest answer to a request.
    sa.Index("job_by_answer", "cache_key", "reusable", "id"),
)

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

# What a plan measured when it ran: canonical JSON, compressed. At most one of a job, the latest that was sent.
measurement = sa.Table(
    "measurement",
    metadata,
    sa.Column("job_id", sa.ForeignKey("job.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

# The best plan of a job that has no result, as a document: see :mod:`loadmaster.api.store.incumbents`.
incumbent = sa.Table(
    "incumbent",
    metadata,
    sa.Column("job_id", sa.ForeignKey("job.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

worker = sa.Table(
    "worker",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    # Heartbeats so far: while the worker lives, this number grows.
    sa.Column("beats", sa.Integer, nullable=False),
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


def id_at(prefix: str, at: float) -> str:
    """An id that sorts after those made before a time, in seconds since the epoch, and before those made later."""
    return f"{prefix}_{max(0, int(at * 1000)) << _RANDOM_BITS:028x}"


def new_id(prefix: str) -> str:
    """A fresh id: prefix, milliseconds since the epoch, randomness. Sorts after all that this process made before."""
    global _last_number
    fresh = int(time.time() * 1000) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
    with _numbering:
        # Within a millisecond, and where the clock was set back, a random step on: never by chance before.
        _last_number = max(fresh, _last_number + 1 + secrets.randbits(_RANDOM_BITS // 2))
        return f"{prefix}_{_last_number:028x}"
