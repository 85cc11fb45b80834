"""API keys: who may do what, and how many jobs of each may wait and run.

The secret of a key is shown once and never kept. It is 256 random bits, so a plain SHA-256 of it can be kept: there is
nothing to guess that a slow hash would protect.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from loadmaster.api.store import schema
from loadmaster.api.store.database import Database, transaction
from loadmaster.api.store.records import State
from loadmaster.errors import InputError, LoadmasterError
from loadmaster.models.fields import LARGEST_BYTES

__all__ = ["Key", "Keys", "Owner", "QuotaError", "Scope", "exceeds", "lock_owner", "owners_at_their_limit"]

# Tells those who look for secrets in files and logs what they have found.
_PREFIX = "lm_"
_SECRET_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_LARGEST_QUOTA = 1_000_000_000


class QuotaError(LoadmasterError):
    """So many jobs of one key wait, or so much is stored of them, that no more of it are taken."""


class Scope(enum.StrEnum):
    """Scope of a key: what it may do; each may do what those before it may."""

    READ = "read"
    SUBMIT = "submit"
    ADMIN = "admin"

    def includes(self, other: Scope) -> bool:
        """Return whether this scope is enough where the other one is asked for."""
        order = list(Scope)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True)
class Key:
    """A key without its secret. Its ``name`` owns the jobs submitted with it.

    Attributes:
        max_queued, max_running: its jobs that may wait, and run, at a time; None for no limit of its own.
        max_bytes: that may be stored of its jobs; None for what the service gives every key.
        revoked_at: since when it opens nothing, in seconds since the epoch.
    """

    name: str
    scope: Scope
    max_queued: int | None
    max_running: int | None
    created_at: float
    revoked_at: float | None
    max_bytes: int | None

    @classmethod
    def from_row(cls, row: Row[tuple[object, ...]]) -> Key:
        """The key of a row that has all columns."""
        values = dict(row._mapping)
        del values["secret_sha256"]
        values["scope"] = Scope(values["scope"])
        return cls(**values)


@dataclass(frozen=True)
class Owner:
    """The owner of jobs, and how many of these may wait and run at a time; None where the key does not say."""

    name: str | None
    max_queued: int | None = None
    max_running: int | None = None


class Keys:
    """The keys of a service. Safe to call from any thread and any number of processes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @transaction
    def add(
        self,
        name: str,
        scope: Scope,
        *,
        max_queued: int | None = None,
        max_running: int | None = None,
        max_bytes: int | None = None,
    ) -> str:
        """Make a key and return its secret, which nothing can show again. The name of a revoked key may be given again:
        the new key then owns the jobs of the old one. Raises InputError if the name is taken or cannot be one, or a
        quota is out of range."""
        if not _NAME.fullmatch(name):
            remedy = "Use up to 64 letters, digits and . _ @ -, a letter or digit first."
            raise InputError("name", name, "is no name of a key", remedy)
        quotas = {"max_queued": max_queued, "max_running": max_running}
        for field, value in quotas.items():
            if value is not None and not 1 <= value <= _LARGEST_QUOTA:
                raise InputError(field, value, "is no number of jobs", "Give 1 or more, or leave it out for no limit.")
        if max_bytes is not None and not 1 <= max_bytes <= LARGEST_BYTES:
            raise InputError("max_bytes", max_bytes, "is no size", "Give 1 byte or more, or leave it out.")
        secret = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        values = {
            "scope": scope.value,
            **quotas,
            "max_bytes": max_bytes,
            "secret_sha256": _hash(secret),
            "created_at": time.time(),
            "revoked_at": None,
        }
        columns = schema.api_key.c
        with self._database.write() as connection:
            row = connection.execute(sa.select(columns.revoked_at).where(columns.name == name)).one_or_none()
            if row is None:
                connection.execute(sa.insert(schema.api_key).values(name=name, **values))
            elif row.revoked_at is None:
                raise InputError("name", name, "has a key already", "Revoke that one first, or choose another name.")
            else:
                connection.execute(sa.update(schema.api_key).where(columns.name == name).values(**values))
        return secret

    def all(self) -> list[Key]:
        """Every key, by name, revoked ones too."""
        query = sa.select(schema.api_key).order_by(schema.api_key.c.name)
        with self._database.read() as connection:
            return [Key.from_row(row) for row in connection.execute(query)]

    def in_use(self) -> set[tuple[str, float]]:
        """Name and time of creation of every key that was not revoked."""
        columns = schema.api_key.c
        query = sa.select(columns.name, columns.created_at).where(columns.revoked_at.is_(None))
        with self._database.read() as connection:
            return {(name, created_at) for name, created_at in connection.execute(query)}

    @transaction
    def revoke(self, name: str) -> None:
        """Let a key open nothing any more, on every server and at once. Its jobs and their quotas stay. Raises
        InputError if no key of that name is in use."""
        columns = schema.api_key.c
        with self._database.write() as connection:
            revoked = connection.execute(
                sa.update(schema.api_key)
                .where(columns.name == name, columns.revoked_at.is_(None))
                .values(revoked_at=time.time())
            )
            if revoked.rowcount == 0:
                raise InputError("name", name, "has no key in use", "loadmaster keys list shows those there are.")

    def find(self, secret: str) -> Key | None:
        """The key of a secret, unless it was revoked."""
        hashed = _hash(secret)
        columns = schema.api_key.c
        # How long the index takes can tell of the hash alone, which says nothing about the secret.
        query = sa.select(schema.api_key).where(columns.secret_sha256 == hashed, columns.revoked_at.is_(None))
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return Key.from_row(row) if row is not None and hmac.compare_digest(row.secret_sha256, hashed) else None


def owners_at_their_limit() -> sa.Select[tuple[str]]:
    """A query for the names of those whose jobs run already in the number that may."""
    return (
        sa.select(schema.job.c.owner)
        .join(schema.api_key, schema.api_key.c.name == schema.job.c.owner)
        .where(schema.job.c.state == State.RUNNING.value, schema.api_key.c.max_running.is_not(None))
        .group_by(schema.job.c.owner, schema.api_key.c.max_running)
        .having(sa.func.count() >= schema.api_key.c.max_running)
    )


def lock_owner(connection: Connection, name: str | None) -> Owner:
    """The owner of jobs, by the name of its key; None for jobs that have none. Where it has quotas, no other
    transaction that asks goes on before this one ends: what is counted stays true."""
    if name is None:
        return Owner(None)
    columns = schema.api_key.c
    quotas = (columns.max_queued, columns.max_running)
    limited = sa.or_(*(quota.is_not(None) for quota in quotas))
    query = sa.select(*quotas).where(columns.name == name, limited)
    row = connection.execute(query.with_for_update()).one_or_none()
    return Owner(name) if row is None else Owner(name, *row)


def exceeds(connection: Connection, owner: Owner, state: State) -> bool:
    """Return whether more jobs of an owner are queued, or running, than may be."""
    most = owner.max_queued if state is State.QUEUED else owner.max_running
    if most is None:
        return False
    columns = schema.job.c
    query = sa.select(sa.func.count()).where(columns.owner == owner.name, columns.state == state.value)
    return bool(connection.execute(query).scalar_one() > most)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
