"""Documents packed for the store. Needs no database: the process of a job packs its own plans."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass

from loadmaster.models.canonical import canonical_json
from loadmaster.models.documents import Document

__all__ = ["PackedDocument", "pack", "unpack"]


@dataclass(frozen=True)
class PackedDocument:
    """A document as the store keeps it: canonical JSON, compressed, under its hash."""

    sha256: str
    body: bytes


def pack(body: Document) -> PackedDocument:
    """Hash and compress a document: the slow part of keeping it, done before a transaction begins."""
    content = canonical_json(body)
    return PackedDocument(hashlib.sha256(content).hexdigest(), zlib.compress(content))


def unpack(body: bytes) -> bytes:
    """The canonical JSON of a packed document."""
    return zlib.decompress(body)
