"""Documents packed for the store. Needs no database: the process of a job packs its own plans."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass

from loadmaster.errors import LoadmasterError
from loadmaster.models.canonical import canonical_json
from loadmaster.models.documents import Document

__all__ = ["GIVEN_BACK", "PackedDocument", "UnreadableDocumentError", "pack", "unpack"]


# In the place of a document that nobody needs any more.
GIVEN_BACK = b""


@dataclass(frozen=True)
class PackedDocument:
    """A document as the store keeps it: canonical JSON, compressed, under its hash."""

    sha256: str
    body: bytes

    def content(self) -> bytes:
        """Unpack the canonical JSON of the document. Raises UnreadableDocumentError if the body is not as packed."""
        content = unpack(self.body)
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise UnreadableDocumentError(f"the document {self.sha256} is not what was stored")
        return content

    def document(self) -> Document:
        """Unpack and parse the document; raises as :meth:`content`."""
        found = json.loads(self.content())
        assert isinstance(found, dict), "what is packed is a document"
        return found


class UnreadableDocumentError(LoadmasterError):
    """A stored document is gone or damaged."""


def pack(body: Document) -> PackedDocument:
    """Hash and compress a document: the slow part of keeping it, done before a transaction begins."""
    content = canonical_json(body)
    return PackedDocument(hashlib.sha256(content).hexdigest(), zlib.compress(content))


def unpack(body: bytes) -> bytes:
    """The canonical JSON of a packed document. Raises UnreadableDocumentError if the body is damaged."""
    if body == GIVEN_BACK:
        raise UnreadableDocumentError("it was given back when the last of its plans was cancelled")
    try:
        return zlib.decompress(body)
    except zlib.error as error:
        raise UnreadableDocumentError(f"a stored document cannot be read: {error}") from None
