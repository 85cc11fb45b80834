"""Makes the shared library of the index from its C++ sources. Builds of the wheel run this file by itself, so it knows
nothing but the standard library.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent / "core"
LIBRARY_NAME = "libloadmaster_index.so"

# For any processor of the kind: a wheel and a cache folder may be used on several machines.
_FLAGS = ("-std=c++17", "-O3", "-DNDEBUG", "-fPIC", "-shared", "-fno-plt")
_LONGEST_S = 300


class BuildError(Exception):
    """There is no library. Says why, in a line."""


def compiler() -> list[str] | None:
    """The C++ compiler's command: what ``CXX`` says, or what is found. None: there is none."""
    for candidate in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        words = shlex.split(candidate)
        if shutil.which(words[0]):
            return words
    return None


def compile_library(target: Path) -> None:
    """Make the shared library and move it to ``target`` in one step.

    Raises:
        BuildError: there is no compiler, it fails, or ``target`` cannot be written.
    """
    command = compiler()
    if command is None:
        raise BuildError("there is no C++ compiler")
    sources = [str(path) for path in _units()]
    if not sources:
        raise BuildError(f"there are no sources in {SOURCES}")
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / LIBRARY_NAME
            words = [*command, *_FLAGS, *sources, "-o", str(made), "-lpthread"]
            done = subprocess.run(words, capture_output=True, text=True, timeout=_LONGEST_S)
            if done.returncode != 0:
                first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-200:])
                raise BuildError(f"{command[0]} failed: {first.strip()}")
            made.replace(target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"it cannot be compiled: {error}") from None


def fingerprint() -> str:
    """Another one for other sources, flags or kinds of machines."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.glob("*")):
        if path.suffix in (".cpp", ".h", ".hpp"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(repr((_FLAGS, platform.machine(), platform.system(), platform.libc_ver())).encode())
    return digest.hexdigest()[:20]


def _units() -> list[Path]:
    return sorted(SOURCES.glob("*.cpp"))
