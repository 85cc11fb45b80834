"""Make the shared library of the index from its C++ sources.

Builds of the wheel run this file by itself, so it knows nothing but the standard library and what compiles.
"""

from __future__ import annotations

from pathlib import Path

from loadmaster.executor.compiling import BuildError, compile_shared, fingerprint_of

__all__ = ["LIBRARY_NAME", "SOURCES", "BuildError", "compile_library", "fingerprint"]

SOURCES = Path(__file__).parent / "core"
LIBRARY_NAME = "libloadmaster_index.so"

# For any processor of the kind: a wheel and a cache folder may be used on several machines.
_FLAGS = ("-std=c++17", "-O3", "-DNDEBUG", "-fPIC", "-shared", "-fno-plt")


def compile_library(target: Path) -> None:
    """Make the shared library and move it to ``target`` in one step. BuildError: there is no compiler, it fails, or
    ``target`` cannot be written."""
    sources = sorted(SOURCES.glob("*.cpp"))
    if not sources:
        raise BuildError(f"there are no sources in {SOURCES}")
    compile_shared(sources, target, _FLAGS, ("-lpthread",))


def fingerprint() -> str:
    """Fingerprint of the sources, the flags and the kind of machine."""
    return fingerprint_of([path for path in SOURCES.glob("*") if path.suffix in (".cpp", ".h", ".hpp")], _FLAGS)
