"""Canonical form of documents: typed data as plain JSON values, one byte string, and the hash that identifies it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

_SCALARS = (str, int, float, type(None))


def plain(value: Any) -> Any:
    """Turn typed data into plain JSON values. Dataclasses become objects, tuples lists, sets ascending lists, keys
    text; None is left out, and so are the fields at their default of classes that say ``leave_out_defaults``."""
    if isinstance(value, _SCALARS):  # first, because most are
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = ((name, getattr(value, name), default) for name, default in _fields(value.__class__))
        return {name: plain(v) for name, v, default in given if v is not None and v != default}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


@functools.cache
def _fields(type_: type[Any]) -> tuple[tuple[str, Any], ...]:
    """Fields of a dataclass, each with the value at which it is left out (or MISSING, which nothing equals)."""
    leaves_out = getattr(type_, "leave_out_defaults", False)
    return tuple((f.name, f.default if leaves_out else dataclasses.MISSING) for f in dataclasses.fields(type_))


def canonical_json(document: Mapping[str, Any]) -> bytes:
    """Canonical byte string of a document: sorted keys, no spaces, UTF-8."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256(document: Mapping[str, Any]) -> str:
    """SHA-256 of a document's canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(document)).hexdigest()
