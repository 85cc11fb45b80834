"""A trace: the keys that an index is loaded with, and the operations that are asked of it, in order.

On disk it is a NumPy file (``.npz``) of three arrays: ``keys`` (uint64), ``operations`` (uint8, see :data:`LOOKUP` and
so on) and ``operation_keys`` (uint64), as many as operations.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import InputError

LOOKUP, INSERT, ERASE, SCAN = range(4)
Keys = NDArray[np.uint64]
Codes = NDArray[np.uint8]

_WHAT = {"keys": np.uint64, "operations": np.uint8, "operation_keys": np.uint64}


@dataclass(frozen=True, eq=False)
class Trace:
    """Keys and operations. Raises InputError for arrays of other types or lengths, unknown codes, a key loaded twice.

    Attributes:
        keys: [n] that are loaded first, in any order, none twice.
        operations: [m] codes.
        operation_keys: [m] of each; a scan begins there.
    """

    keys: Keys
    operations: Codes
    operation_keys: Keys

    def __post_init__(self) -> None:
        for name, wanted in _WHAT.items():
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.dtype != wanted or array.ndim != 1:
                found = f"{array.dtype}, {array.ndim} dimensions" if isinstance(array, np.ndarray) else type(array)
                remedy = f"Give one dimension of {np.dtype(wanted).name}."
                raise InputError(name, str(found), "is no array of this kind", remedy)
        if len(self.operations) != len(self.operation_keys):
            raise InputError(
                "operation_keys", len(self.operation_keys), "are not as many as operations", "Give as many."
            )
        if len(self.operations) and int(self.operations.max()) > SCAN:
            remedy = "Give 0 for a lookup, 1 for an insert, 2 for an erase, 3 for a scan."
            raise InputError("operations", int(self.operations.max()), "is no operation", remedy)
        if len(np.unique(self.keys)) != len(self.keys):
            raise InputError("keys", len(self.keys), "holds a key twice", "Load every key once.")


def load_trace(path: str | PathLike[str]) -> Trace:
    """A trace from its file; raise InputError if the file is missing or no trace, or an array is missing or wrong."""
    remedy = "Give an .npz file with the arrays keys, operations and operation_keys."
    try:
        with np.load(Path(path), allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise InputError("path", str(path), "is a single array", remedy)
            missing = [name for name in _WHAT if name not in file.files]
            if missing:
                raise InputError(missing[0], None, f"is missing in {path}", remedy)
            return Trace(**{name: file[name] for name in _WHAT})
    except FileNotFoundError:
        raise InputError("path", str(path), "no such file", remedy) from None
    except IsADirectoryError:
        raise InputError("path", str(path), "is a directory", remedy) from None
    except (OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError("path", str(path), f"cannot be read: {error}", remedy) from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError("path", str(path), "is no file of plain arrays", remedy) from None


def save_trace(trace: Trace, path: str | PathLike[str]) -> None:
    """Write a trace; :func:`load_trace` reads it back. Raises InputError if the path cannot be written."""
    try:
        with Path(path).open("wb") as file:
            np.savez_compressed(file, **{name: getattr(trace, name) for name in _WHAT})
    except OSError as error:
        raise InputError("path", str(path), f"cannot be written: {error.strerror}", "Give another path.") from None
