"""The solvers by name: ``highs``, ``cpsat``, and ``pulp:NAME`` for any that PuLP finds on this machine."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

from loadmaster.errors import InputError, MissingExtraError
from loadmaster.solvers.solution import Driver

__all__ = [
    "DEFAULT",
    "SolverInfo",
    "available",
    "child_environment",
    "driver",
    "python_path",
    "resolve",
    "takes_intervals",
    "version",
]

DEFAULT = "highs"

# One thread unless asked for: numerical libraries otherwise start one per core in every solve.
_SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class SolverInfo:
    """One solver that can be asked for: its name, the version installed, and what it can do."""

    name: str
    version: str
    features: tuple[str, ...]


@dataclass(frozen=True)
class _Package:
    """A package with solvers in it: its name (as distribution and as import), our driver, what it can do."""

    name: str
    driver_module: str
    features: tuple[str, ...]

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.name) is not None


_PACKAGES = {
    "highs": _Package(
        "highspy",
        "loadmaster.solvers.highs",
        ("continuous", "start", "progress", "incumbents", "cancel", "node_limit", "cutoff"),
    ),
    "cpsat": _Package(
        "ortools",
        "loadmaster.solvers.cpsat",
        ("start", "progress", "incumbents", "cancel", "node_limit", "cutoff", "intervals"),
    ),
    "pulp": _Package("pulp", "loadmaster.solvers.pulp_driver", ("continuous", "start", "cancel", "cutoff")),
}


def resolve(name: str) -> str:
    """The full name of a solver: ``auto`` becomes the default one.

    Raises:
        InputError: no such solver.
        MissingExtraError: its package is not installed.
    """
    name = DEFAULT if name == "auto" else name
    family, separator, inner = name.partition(":")
    if family not in _PACKAGES or (family == "pulp") != bool(inner) or (separator and not inner):
        raise InputError("solver", name, "no such solver", "Use auto, highs, cpsat or pulp:NAME.")
    if not _package(name).installed:
        raise MissingExtraError(_package(name).name, "solver")
    return name


def driver(name: str) -> Driver:
    """Import the driver of a solver, one a process: highspy and ortools cannot share it. Errors as :func:`resolve`."""
    full = resolve(name)
    inner = full.partition(":")[2]
    module = importlib.import_module(_package(full).driver_module)
    return cast(Driver, module.driver(inner) if inner else module.solve)


def takes_intervals(name: str) -> bool:
    """Return whether a solver knows intervals; the others take rows alone."""
    return "intervals" in _package(resolve(name)).features


def version(name: str) -> str:
    """The installed version of the package behind a solver."""
    return importlib.metadata.version(_package(name).name)


def available() -> list[SolverInfo]:
    """The solvers that can be asked for on this machine, those behind PuLP by their full names."""
    found = []
    for name, package in _PACKAGES.items():
        if package.installed:
            names = _behind_pulp() if name == "pulp" else (name,)
            found += [SolverInfo(full, version(name), package.features) for full in names]
    return found


def python_path() -> str:
    """``PYTHONPATH`` of a process that finds every package where this one finds it. Start it with ``python -P``:
    otherwise the folder it happens to start in comes before them all."""
    places = [place for place in sys.path if place]
    places.append(str(Path(__file__).resolve().parents[2]))
    return os.pathsep.join(places)


def child_environment() -> dict[str, str]:
    """Environment of a solve's process: every package where this one finds it, and one thread."""
    return {**os.environ, **_SINGLE_THREADED, "PYTHONPATH": python_path()}


def _package(name: str) -> _Package:
    return _PACKAGES[name.partition(":")[0]]


@cache
def _behind_pulp() -> tuple[str, ...]:
    # In a process of its own: importing PuLP imports highspy, which would lock ortools out of this one.
    listing = subprocess.run(
        [sys.executable, "-P", "-m", "loadmaster.solvers.pulp_driver"],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return tuple(f"pulp:{name}" for name in listing.stdout.split())
