"""Indexes for several writers at a time, and workers that are counted without a clock.

The revision takes the place of the version that was kept in a table of its own.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_WAITS, _RUNS = sa.text("state = 'queued'"), sa.text("state = 'running'")


def upgrade() -> None:
    """Add the indexes, and create the table of workers again: those alive note themselves in it within seconds."""
    op.create_index("job_that_waits", "job", ["id", "cache_key"], sqlite_where=_WAITS, postgresql_where=_WAITS)
    op.create_index("job_that_runs", "job", ["cache_key"], unique=True, sqlite_where=_RUNS, postgresql_where=_RUNS)
    op.drop_table("worker")
    op.create_table(
        "worker",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("beats", sa.Integer, nullable=False),
    )
    op.drop_table("schema_version")
