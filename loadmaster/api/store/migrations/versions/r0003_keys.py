"""Keys, and the owners of jobs: those from before have none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_WAITS = sa.text("state = 'queued'")


def upgrade() -> None:
    """Create keys and owners; the queue's question is answered from an index alone, which needs the owners, too."""
    op.create_table(
        "api_key",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("secret_sha256", sa.String(64), nullable=False, unique=True),
        sa.Column("scope", sa.String(12), nullable=False),
        sa.Column("max_queued", sa.Integer),
        sa.Column("max_running", sa.Integer),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("revoked_at", sa.Float),
    )
    op.add_column("job", sa.Column("owner", sa.String(64)))
    op.drop_index("job_that_waits", "job")
    op.create_index("job_that_waits", "job", ["id", "cache_key", "owner"], sqlite_where=_WAITS, postgresql_where=_WAITS)
    op.drop_index("job_by_state", "job")
    op.create_index("job_by_state_and_owner", "job", ["state", "id", "cache_key", "owner"])
    op.create_index("job_by_owner", "job", ["owner", "state", "id"])
