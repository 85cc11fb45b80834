"""An index as a file: a line with the version and a checksum of the rest, a line of JSON, then keys and payloads."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.errors import InputError
from loadmaster.executor.index.core_protocol import Words
from loadmaster.models.files import write_bytes
from loadmaster.models.index.configuration import Configuration, FragmentedLog, GappedArray, HashTable, SortedArray

_MARK, _VERSION = b"loadmaster-index", b"1"
_WORD = np.dtype("<u8")
STRUCTURES: dict[str, type[Configuration]] = {
    kind.structure: kind for kind in (GappedArray, FragmentedLog, SortedArray, HashTable)
}
"""Map from the words of structures to their configurations."""
_REMEDY = "Take it from where it was saved, or make the index again from its data."


@dataclass(frozen=True)
class Saved:
    """Content of a file. Keys are as the cores take them, ascending."""

    configuration: Configuration
    limit_bytes: int | None
    signed_keys: bool
    signed_payloads: bool
    keys: Words
    payloads: Words


def write(path: str | PathLike[str], saved: Saved) -> None:
    """Write a file whole or not at all; InputError: the path cannot be written."""
    header: dict[str, Any] = {
        "count": len(saved.keys),
        "configuration": asdict(saved.configuration),
        "limit_bytes": saved.limit_bytes,
        "signed_keys": saved.signed_keys,
        "signed_payloads": saved.signed_payloads,
    }
    line = json.dumps(header).encode() + b"\n"
    body = b"".join([line, *(words.astype(_WORD, copy=False).data for words in (saved.keys, saved.payloads))])
    checksum = hashlib.sha256(body).hexdigest().encode()
    write_bytes(path, b" ".join([_MARK, _VERSION, checksum]) + b"\n" + body, "path")


def read(path: str | PathLike[str]) -> Saved:
    """Read a file that :func:`write` wrote. InputError: it cannot be read, is not a saved index, of another version,
    truncated or corrupted."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        remedy = "Give the path of a file that Index.save wrote."
        raise InputError("path", str(path), f"cannot be read: {error.strerror}", remedy) from None
    first = content.find(b"\n", 0, 200)
    words = content[: max(first, 0)].split(b" ")
    if len(words) != 3 or words[0] != _MARK:
        raise InputError("path", str(path), "is no saved index", "Give the path of a file that Index.save wrote.")
    if words[1] != _VERSION:
        version = words[1].decode(errors="replace")
        remedy = "Load it with the Loadmaster that saved it, or save it again from its data."
        raise InputError("path", str(path), f"has version {version}, not {_VERSION.decode()}", remedy)
    body = memoryview(content)[first + 1 :]
    whole = hashlib.sha256(body).hexdigest().encode() == words[2]
    end = content.find(b"\n", first + 1)
    try:
        header = json.loads(content[first + 1 : end])
        missing_bytes = 16 * header["count"] - (len(content) - end - 1)
    except (ValueError, KeyError, TypeError):
        # The header itself is cut or damaged.
        missing_bytes = 0
    if missing_bytes > 0:
        raise InputError("path", str(path), f"is truncated: {missing_bytes} bytes are missing", _REMEDY)
    if not whole:
        raise InputError("path", str(path), "is truncated or corrupted: its checksum is another", _REMEDY)
    pairs = np.frombuffer(content, _WORD, offset=end + 1).astype(np.uint64)
    structure = header["configuration"].pop("structure")
    return Saved(
        STRUCTURES[structure](**header["configuration"]),
        header["limit_bytes"],
        header["signed_keys"],
        header["signed_payloads"],
        pairs[: header["count"]],
        pairs[header["count"] :],
    )
