"""The trace that a job was submitted in."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the trace to jobs, as W3C Trace Context writes it."""
    op.add_column("job", sa.Column("traceparent", sa.String(64)))
