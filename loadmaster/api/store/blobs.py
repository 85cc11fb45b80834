"""Blobs: bytes that were sent once, under their hash, for requests to name. A cache, with a limit of its own."""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from loadmaster.api.packed import UnreadableDocumentError
from loadmaster.api.store import schema
from loadmaster.api.store.database import Database, transaction

__all__ = ["BlobHead", "BlobPacker", "Blobs", "PackedBlob"]

# Most of a problem is digits: more work would win little.
_LEVEL = 3
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class BlobHead:
    """The size of a blob: its bytes, and about how many values they are as JSON."""

    size_bytes: int
    json_values: int


@dataclass(frozen=True)
class PackedBlob(BlobHead):
    """A blob as the store keeps it."""

    sha256: str
    body: bytes

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes as they were sent, in pieces. Raises UnreadableDocumentError if the body is damaged."""
        unpack, rest = zlib.decompressobj(), self.body
        while not unpack.eof:
            try:
                piece = unpack.decompress(rest, _PIECE_BYTES)
            except zlib.error as error:
                raise UnreadableDocumentError(f"the blob {self.sha256} cannot be read: {error}") from None
            rest = unpack.unconsumed_tail
            if not (piece or rest or unpack.eof):
                raise UnreadableDocumentError(f"the blob {self.sha256} is cut off")
            yield piece


class BlobPacker:
    """Hashes and compresses a blob piece by piece, so that it is never whole in memory."""

    def __init__(self) -> None:
        self._hash, self._compress = hashlib.sha256(), zlib.compressobj(_LEVEL)
        self._pieces: list[bytes] = []
        self._size_bytes = self._json_values = 0

    def add(self, piece: bytes, json_values: int) -> None:
        """Take the next piece, with about so many values in it."""
        self._hash.update(piece)
        self._pieces.append(self._compress.compress(piece))
        self._size_bytes += len(piece)
        self._json_values += json_values

    def packed(self) -> PackedBlob:
        """Return the whole blob. Nothing can be added afterwards."""
        body = b"".join([*self._pieces, self._compress.flush()])
        return PackedBlob(self._size_bytes, self._json_values, self._hash.hexdigest(), body)


class Blobs:
    """The blobs of a store, ``max_bytes`` together, compressed; one alone is always kept. Safe in any thread."""

    def __init__(self, database: Database, max_bytes: int) -> None:
        self._database, self._max_bytes = database, max_bytes

    @transaction
    def put(self, blob: PackedBlob) -> bool:
        """Keep a blob, in the place of those that were used longest ago; False if it was there already."""
        with self._database.write() as connection:
            if _touch(connection, blob.sha256):
                return False
            row = {"sha256": blob.sha256, "size_bytes": blob.size_bytes, "json_values": blob.json_values}
            stored = {"stored_bytes": len(blob.body), "used_at": time.time(), "body": blob.body}
            connection.execute(sa.insert(schema.blob).values(**row, **stored))
            self._make_room(connection, blob.sha256)
            return True

    def head(self, sha256: str) -> BlobHead | None:
        """The size of a blob, or None if it is not here."""
        columns = schema.blob.c
        query = sa.select(columns.size_bytes, columns.json_values).where(columns.sha256 == sha256)
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else BlobHead(*row)

    def get(self, sha256: str) -> PackedBlob | None:
        """The blob, or None if it is not here."""
        columns = schema.blob.c
        query = sa.select(columns.size_bytes, columns.json_values, columns.sha256, columns.body)
        with self._database.read() as connection:
            row = connection.execute(query.where(columns.sha256 == sha256)).one_or_none()
        return None if row is None else PackedBlob(*row)

    @transaction
    def use(self, sha256: str) -> None:
        """Note that a blob is used: it is then among the last to go."""
        with self._database.write() as connection:
            _touch(connection, sha256)

    @transaction
    def drop(self, sha256: str) -> None:
        """Drop a blob: whoever names it sends it again."""
        with self._database.write() as connection:
            connection.execute(sa.delete(schema.blob).where(schema.blob.c.sha256 == sha256))

    def _make_room(self, connection: Connection, kept: str) -> None:
        columns = schema.blob.c
        others = sa.select(columns.sha256, columns.stored_bytes).where(columns.sha256 != kept)
        room = (
            self._max_bytes
            - connection.execute(sa.select(columns.stored_bytes).where(columns.sha256 == kept)).scalar_one()
        )
        for sha256, stored_bytes in connection.execute(others.order_by(columns.used_at.desc())).all():
            room -= stored_bytes
            if room < 0:
                connection.execute(sa.delete(schema.blob).where(columns.sha256 == sha256))


def _touch(connection: Connection, sha256: str) -> bool:
    used = sa.update(schema.blob).where(schema.blob.c.sha256 == sha256).values(used_at=time.time())
    return connection.execute(used).rowcount > 0
