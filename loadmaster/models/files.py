"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from os import PathLike
from pathlib import Path

from loadmaster.errors import InputError


def write_text(path: str | PathLike[str], text: str, field: str) -> None:
    """Write a text file whole or not at all.

    Raises:
        InputError: naming ``field``, when the path cannot be written.
    """
    write_bytes(path, text.encode(), field)


def write_bytes(path: str | PathLike[str], content: bytes, field: str) -> None:
    """Write a file whole or not at all.

    Raises:
        InputError: naming ``field``, when the path cannot be written.
    """
    target = Path(path)
    try:
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except (OSError, ValueError) as error:
        raise _refusal(field, str(path), error) from None
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        # mkstemp makes files private; an output file gets the mode that any other would.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise _refusal(field, str(path), error) from None


def expect_writable(path: str | None, field: str) -> None:
    """Refuse a path in a missing folder before hours are spent on what should be written there.

    Raises:
        InputError: naming ``field``.
    """
    if path is None or path == "-":
        return
    folder = Path(path).parent
    # Unlike those of Path, these take what is no path for a path to nothing.
    if not os.path.isdir(folder):
        raise InputError(field, path, f"the folder {folder} does not exist", "Make it first, or write elsewhere.")
    if os.path.isdir(path):
        raise InputError(field, path, "is a folder", "Give the path of a file.")


def _refusal(field: str, path: str, error: OSError | ValueError) -> InputError:
    reason = getattr(error, "strerror", None) or error
    return InputError(field, path, f"cannot be written: {reason}", "Give a path that can be written.")
