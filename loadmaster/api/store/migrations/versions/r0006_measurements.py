"""Measurements of plans when they ran."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Create a table of its own for measurements: rows of jobs are read often, and these seldom."""
    op.create_table(
        "measurement",
        sa.Column("job_id", sa.String(40), sa.ForeignKey("job.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
