"""Turns of owners in the queue, and the number of bytes that a key may store."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Create a turn for every owner of jobs, none of them served yet, and add the bytes to keys."""
    turn = op.create_table(
        "turn",
        sa.Column("owner", sa.String(64), primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
    )
    job = sa.table("job", sa.column("owner", sa.String(64)))
    owners = sa.select(sa.func.coalesce(job.c.owner, ""), sa.literal(0)).distinct()
    op.execute(sa.insert(turn).from_select(["owner", "number"], owners))
    op.add_column("api_key", sa.Column("max_bytes", sa.BigInteger))
