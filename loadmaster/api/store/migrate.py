"""Migration of a database to this release's schema, step by step: Alembic runs what ``migrations/versions`` holds."""

from __future__ import annotations

import logging
import threading
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

__all__ = ["configured", "unknown_revision", "upgrade"]

logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent / "migrations"
# Alembic hands the steps their connection in a variable of the whole process.
_one_at_a_time = threading.Lock()


def configured(connection: Connection) -> Config:
    """Alembic's settings for this connection."""
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def unknown_revision(connection: Connection) -> str | None:
    """The revision of a database that a later release wrote; None: this one can use it."""
    found = _revision(connection)
    return None if found is None or found in _revisions() else found


def upgrade(connection: Connection) -> None:
    """Run the steps that the database lacks, in the caller's transaction."""
    before = _revision(connection)
    if before == _revisions()[0]:
        return
    with _one_at_a_time:
        command.upgrade(configured(connection), "head")
    logger.info("the schema of the database is now of revision %s (before: %s)", _revisions()[0], before or "none")


@cache
def _revisions() -> list[str]:
    """The revisions that this release knows, the latest first."""
    return [script.revision for script in ScriptDirectory(str(_FOLDER)).walk_revisions()]


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()
