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
    """The file of a library, made first if it is not there. Load it before the block ends.

    Args:
        room: whose it is.
        fingerprint: of all that it is made of and for: another one is another library.
        make: makes it at a path whose folder is there, in one step.

    Raises:
        BuildError: there is no compiler.
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
