"""Compiles the package's C++ sources, by the standard library alone: builds of the wheel run this file by itself."""

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
    """Find the C++ compiler's command, ``CXX`` first; None if there is none. BuildError if ``CXX`` cannot be parsed."""
    for candidate in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        try:
            words = shlex.split(candidate)
        except ValueError as error:
            raise BuildError(f"CXX={candidate!r} is not a command: {error}") from None
        if words and shutil.which(words[0]):
            return words
    return None


def compile_shared(sources: Sequence[Path], target: Path, flags: Sequence[str], libraries: Sequence[str] = ()) -> None:
    """Make a shared library of C++ files and move it to ``target``, whose folder exists, in one step. ``libraries`` are
    flags behind the sources. Raises BuildError if there is no compiler, it fails or takes minutes, or ``target`` cannot
    be written."""
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
    """Fingerprint of the files' names and contents, of the kind of machine, and of ``more``: flags and versions."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(repr((*more, platform.machine(), platform.system(), platform.libc_ver())).encode())
    return digest.hexdigest()[:20]
