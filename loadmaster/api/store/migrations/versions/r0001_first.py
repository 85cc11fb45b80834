"""The tables of the first release. A database that this release, or a day before it, made without Alembic is completed.

Numbers of the histograms' buckets are those of that day: what changes them later is a step of its own.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_BUCKETS = {
    "solve_seconds": ("0.1", "0.5", "1", "2", "5", "10", "30", "60", "120", "300", "900", "3600", "+Inf"),
    "gap_at_stop": ("0", "0.001", "0.005", "0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1", "+Inf"),
}
# SQLite could choose them for the queue's question, whose cost then grew with the square of the number of equal jobs.
_INDEXES_OF_OLD = ("ix_job_state", "job_by_cache_key")
_INDEXES = {
    "ix_job_frontier_id": ("frontier_id",),
    "ix_job_problem_sha256": ("problem_sha256",),
    "ix_job_plan_sha256": ("plan_sha256",),
    "ix_job_lease_owner": ("lease_owner",),
    "job_by_state": ("state", "id", "cache_key"),
    "job_by_answer": ("cache_key", "reusable", "id"),
}


def upgrade() -> None:
    """Create all tables, or complete those that are there."""
    tables = sa.inspect(op.get_bind())
    if tables.has_table("job"):
        if "lease_beats" not in {column["name"] for column in tables.get_columns("job")}:
            op.add_column("job", sa.Column("lease_beats", sa.Integer))
    else:
        _create_tables()
    present = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("job")}
    for old in _INDEXES_OF_OLD:
        op.drop_index(old, "job", if_exists=True)
    for name, columns in _INDEXES.items():
        if name not in present:
            op.create_index(name, "job", list(columns))


def _create_tables() -> None:
    op.create_table("schema_version", sa.Column("version", sa.Integer, primary_key=True))
    op.create_table(
        "document",
        sa.Column("sha256", sa.String(64), primary_key=True),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "frontier",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("idempotency_key", sa.String(255), unique=True),
        sa.Column("request_sha256", sa.String(64), nullable=False),
    )
    _create_job()
    op.create_table(
        "label",
        sa.Column("job_id", sa.String(40), sa.ForeignKey("job.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.String(256), nullable=False),
    )
    op.create_index("label_by_value", "label", ["name", "value"])
    op.create_table(
        "event",
        sa.Column("job_id", sa.String(40), sa.ForeignKey("job.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("type", sa.String(12), nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
    )
    op.create_table(
        "worker",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("seen_at", sa.Float, nullable=False),
    )
    _create_tally()


def _create_job() -> None:
    op.create_table(
        "job",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("frontier_id", sa.String(40), sa.ForeignKey("frontier.id")),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("problem_sha256", sa.String(64), sa.ForeignKey("document.sha256"), nullable=False),
        sa.Column("options", sa.JSON, nullable=False),
        sa.Column("asked_gap", sa.Float, nullable=False),
        sa.Column("time_limit_s", sa.Float, nullable=False),
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
        sa.Column("plan_sha256", sa.String(64), sa.ForeignKey("document.sha256")),
        sa.Column("error", sa.JSON),
        sa.Column("cached", sa.Boolean, nullable=False),
        sa.Column("reusable", sa.Boolean, nullable=False),
        sa.Column("cancel_requested", sa.Boolean, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("lease_owner", sa.String(64)),
        sa.Column("lease_beats", sa.Integer),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float),
        sa.Column("finished_at", sa.Float),
        sa.Column("event_seq", sa.Integer, nullable=False),
    )


def _create_tally() -> None:
    tally = op.create_table(
        "tally",
        sa.Column("metric", sa.String(40), primary_key=True),
        sa.Column("bucket", sa.String(12), primary_key=True),
        sa.Column("upper", sa.Float, nullable=False),
        sa.Column("value", sa.Float, nullable=False),
    )
    rows = [
        {"metric": metric, "bucket": bucket, "upper": float(bucket) if bucket != "+Inf" else 1e300}
        for metric, buckets in _BUCKETS.items()
        for bucket in buckets
    ]
    # Negative: never counted as a bucket of its metric.
    rows += [{"metric": metric, "bucket": "sum", "upper": -1.0} for metric in _BUCKETS]
    rows += [{"metric": "cache_hits", "bucket": "count", "upper": -1.0}]
    op.bulk_insert(tally, [{**row, "value": 0.0} for row in rows])
