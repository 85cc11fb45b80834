"""Choice of the backend that a user's ``to`` stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike, fspath, sep
from pathlib import Path
from typing import cast

from loadmaster.errors import InputError
from loadmaster.executor.placement.cache.backends.files import Files
from loadmaster.executor.placement.cache.backends.host import HostMemory
from loadmaster.executor.placement.cache.backends.protocol import Backend

Place = str | PathLike[str] | Sequence[str | PathLike[str]] | Backend


def opener(to: Place) -> Callable[[], Backend]:
    """Return the function that opens the backend, and opens it again after it was closed.

    Raises:
        InputError: it is not a place for tensors.
    """
    if to == "host":
        return HostMemory
    folders: list[str] | None = None
    if isinstance(to, str | PathLike):
        folders = [fspath(to)]
    elif isinstance(to, Sequence) and to and all(isinstance(folder, str | PathLike) for folder in to):
        folders = [fspath(folder) for folder in to]
    if folders is not None:
        for folder in folders:
            if sep not in folder and not Path(folder).is_dir():
                raise _no_place(to, f"{folder!r} is neither 'host' nor a folder")
        return lambda: Files(folders)
    if all(callable(getattr(to, name, None)) for name in ("store", "load", "free", "counters", "close")):
        return lambda: cast(Backend, to)
    raise _no_place(to, "is no place for tensors")


def _no_place(to: object, problem: str) -> InputError:
    return InputError("to", to, problem, "Give 'host', a folder, several folders, or a backend object.")
