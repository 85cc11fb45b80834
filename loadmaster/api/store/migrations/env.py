"""Environment that Alembic runs before the steps: they use the connection and the transaction of their caller."""

from __future__ import annotations

from alembic import context

from loadmaster.api.store import schema

context.configure(connection=context.config.attributes["connection"], target_metadata=schema.metadata)
with context.begin_transaction():
    context.run_migrations()
