"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from os import PathLike
from pathlib import Path

from loadmaster.errors import InputError

# Characters, each of four bytes at most, of the 255 bytes that a name may have.
_BEGINNING = 40


def write_text(path: str | PathLike[str], text: str, field: str) -> None:
    """Write a text file whole or not at all; raise InputError, naming ``field``, when the path cannot be written."""
    write_bytes(path, text.encode(), field)


def write_bytes(path: str | PathLike[str], content: bytes, field: str) -> None:
    """Write a file whole or not at all. A link stays a link, and a device or a pipe is written to, not replaced. Raises
    InputError, naming ``field``, when the path cannot be written."""
    try:
        there = _status(path)
        if _is_file(there):
            _replace(Path(os.path.realpath(path)), content, there)
        else:
            with open(path, "wb") as stream:
                stream.write(content)
    except (OSError, ValueError) as error:
        raise _refusal(field, str(path), error) from None


def _status(path: str | PathLike[str]) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _is_file(there: os.stat_result | None) -> bool:
    """Return whether a path is a regular file, or nothing yet."""
    return there is None or stat.S_ISREG(there.st_mode)


def _replace(target: Path, content: bytes, there: os.stat_result | None) -> None:
    # Only the beginning of a long name: with the rest it would be longer than names may be.
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:_BEGINNING]}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        # mkstemp makes files private; an output file keeps its mode, or gets the one that any other would.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask if there is None else stat.S_IMODE(there.st_mode))
        os.replace(temporary, target)
    except BaseException:  # an interrupt leaves nothing behind, either
        Path(temporary).unlink(missing_ok=True)
        raise


def expect_writable(path: str | None, field: str) -> None:
    """Refuse a path that cannot be written, before hours are spent on the content; the InputError names ``field``."""
    if path is None or path == "-":
        return
    folder = Path(path).parent
    # Unlike those of Path, these functions take an invalid path for a path to nothing.
    if not os.path.isdir(folder):
        raise InputError(field, path, f"the folder {folder} does not exist", "Make it first, or write elsewhere.")
    if os.path.isdir(path):
        raise InputError(field, path, "is a folder", "Give the path of a file.")
    try:
        if _is_file(_status(path)):
            # Tried, because permissions do not tell of file systems that are mounted to be read.
            with tempfile.TemporaryFile(dir=Path(os.path.realpath(path)).parent):
                pass
    except (OSError, ValueError) as error:
        raise _refusal(field, path, error) from None


def _refusal(field: str, path: str, error: OSError | ValueError) -> InputError:
    reason = getattr(error, "strerror", None) or error
    return InputError(field, path, f"cannot be written: {reason}", "Give a path that can be written.")
