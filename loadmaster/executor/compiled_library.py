"""Shared libraries that are compiled at their first use, and kept in the user's cache folder for all later ones."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from loadmaster.executor.compiling import BuildError, compiler
from loadmaster.executor.steps.user_cache import user_folder

__all__ = ["kept_library"]


@contextlib.contextmanager
def kept_library(room: str, fingerprint: str, name: str, make: Callable[[Path], None]) -> Iterator[Path]:
    """Give the file of a library, made first if it is not there; load it before the block ends.

    ``fingerprint`` is that of everything the library is made of and for. ``make`` makes it in one step at a path whose
    folder exists. Raises BuildError if there is no compiler.
    """
    library = user_folder(room, fingerprint) / name
    if library.exists():
        yield library
        return
    if compiler() is None:
        raise BuildError("there is no C++ compiler")
    with tempfile.TemporaryDirectory(prefix="loadmaster-") as passing:
        with contextlib.suppress(OSError):
            library.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(library.parent, os.W_OK):
            # Nothing can be kept: this process makes its own, and needs the file no more when it is loaded.
            library = Path(passing) / name
        make(library)
        yield library
