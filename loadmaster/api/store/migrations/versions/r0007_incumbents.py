"""The best plans of jobs while they run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Create a table of best plans, one a job: each is replaced many times, and nothing else refers to it."""
    op.create_table(
        "incumbent",
        sa.Column("job_id", sa.String(40), sa.ForeignKey("job.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.add_column("job", sa.Column("incumbent_objective", sa.Float))
