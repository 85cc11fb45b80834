"""The one byte string of a document, and its hash: what identifies a problem, whoever wrote its JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Drop what is None and turn tuples into lists, all the way down."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def canonical_json(document: Mapping[str, Any]) -> bytes:
    """The one byte string of a document: sorted keys, no spaces, UTF-8."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256(document: Mapping[str, Any]) -> str:
    """Hash of the canonical JSON."""
    return hashlib.sha256(canonical_json(document)).hexdigest()
