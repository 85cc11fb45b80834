"""Makes shared libraries of the package's C++ sources. Builds of the wheel run this file by itself, so it knows nothing
but the standard library.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

_LONGEST_S = 300


class BuildError(Exception):
    """Raised where a library cannot be made; says why, in a line."""


def compiler() -> list[str] | None:
    """Return the C++ compiler's command: what ``CXX`` says, or what is found; None where there is none.

    Raises:
        BuildError: ``CXX`` is not a command.
    """
    for candidate in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        try:
            words = shlex.split(candidate)
        except ValueError as error:
            raise BuildError(f"CXX={candidate!r} is not a command: {error}") from None
        if words and shutil.which(words[0]):
            return words
    return None


def compile_shared(sources: Sequence[Path], target: Path, flags: Sequence[str], libraries: Sequence[str] = ()) -> None:
    """Make a shared library and move it to ``target`` in one step.

    Args:
        sources: C++ files.
        target: where it goes; its folder is there.
        flags: of the compiler.
        libraries: flags behind the sources.

    Raises:
        BuildError: there is no compiler, it fails or takes minutes, or ``target`` cannot be written.
    """
    command = compiler()
    if command is None:
        raise BuildError("there is no C++ compiler")
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            words = [*command, *flags, *map(str, sources), "-o", str(made), *libraries]
            done = subprocess.run(words, capture_output=True, text=True, timeout=_LONGEST_S)
            if done.returncode != 0:
                first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-200:])
                raise BuildError(f"{command[0]} failed: {first.strip()}")
            made.replace(target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"it cannot be compiled: {error}") from None


def fingerprint_of(files: Sequence[Path], *more: object) -> str:
    """Fingerprint of sources, the kind of machine, and whatever else matters.

    Args:
        files: whose names and contents count.
        more: flags and versions.
    """
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(repr((*more, platform.machine(), platform.system(), platform.libc_ver())).encode())
    return digest.hexdigest()[:20]
