"""Options of a solve, its progress and its answer: the same words for every solver, and the interface of drivers.

A solver driver is a function that runs in the solve's own process and keeps its caller informed.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from loadmaster.solvers.program import FloatArray, IntArray, Program

__all__ = [
    "OUT_OF_MEMORY",
    "STOP",
    "Driver",
    "Incumbent",
    "Link",
    "Progress",
    "Solution",
    "SolveOptions",
    "SolverStatus",
    "StoppedBy",
    "relative_gap",
]


class SolverStatus(enum.Enum):
    """State in which a solve ended."""

    OPTIMAL = "optimal"  # incumbent within the asked gap of the bound
    FEASIBLE = "feasible"  # stopped by a limit or a cancel, with an incumbent
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    NO_SOLUTION = "no_solution"  # stopped by a limit or a cancel, without an incumbent


class StoppedBy(enum.Enum):
    """Reason why a solve ended. Stops by gap, nodes or proof repeat exactly; the others do not."""

    GAP = "gap"
    NODES = "nodes"
    TIME = "time"
    CANCEL = "cancel"
    CRASH = "crash"  # the solver failed or its process died; what it had reported is the answer
    PROOF = "proof"  # infeasible or unbounded


@dataclass(frozen=True, eq=False)
class SolveOptions:
    """Limits and hints for one solve. None is no limit, no cap and no cutoff.

    Attributes:
        time_limit_s: wall seconds inside the solver. (The process is killed a grace period after it.)
        gap: stop when (objective - bound) / |objective| <= gap.
        node_limit: branch-and-bound nodes (HiGHS) or deterministic-time units (CP-SAT).
        memory_limit_bytes: address-space cap of the solver's process.
        start_columns, start_values: a MIP start, whole or partial: columns [n] and their values [n].
        cutoff: only solutions with an objective at most this are of interest. An answer of "infeasible" then means that
            none is that good, with the cutoff as the bound.
        parameters: options handed to the solver under its own names, for experts.
    """

    time_limit_s: float | None = None
    gap: float = 1e-4
    node_limit: int | None = None
    seed: int = 0
    threads: int = 1
    memory_limit_bytes: int | None = None
    start_columns: IntArray | None = None
    start_values: FloatArray | None = None
    cutoff: float | None = None
    parameters: Mapping[str, bool | int | float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """One report from a running solve. ``objective`` is None before the first incumbent; so is ``bound``."""

    seconds: float
    objective: float | None
    bound: float | None
    nodes: int

    @property
    def gap(self) -> float | None:
        return relative_gap(self.objective, self.bound)


@dataclass(frozen=True, eq=False)
class Solution:
    """Answer of a solve: how it ended, the incumbent, the bound, and the time it took.

    Attributes:
        values: the incumbent [columns], or None.
        objective, bound: of the incumbent; best proved. None where there is none.
        seconds: wall time inside the solver.
        cpu_seconds: processor time of the whole process, start and imports too: sums over solves are honest.
    """

    status: SolverStatus
    stopped_by: StoppedBy
    values: FloatArray | None
    objective: float | None
    bound: float | None
    seconds: float
    cpu_seconds: float
    nodes: int
    solver: str
    solver_version: str

    @property
    def gap(self) -> float | None:
        return relative_gap(self.objective, self.bound)

    def block(self, indices: IntArray) -> FloatArray:
        """The incumbent's values at ``indices``, in their shape. Raises ValueError: there is no incumbent."""
        if self.values is None:
            raise ValueError(f"the solve ended {self.status.value} without an incumbent: it has no values")
        return np.asarray(self.values[indices], dtype=np.float64)


def relative_gap(objective: float | None, bound: float | None) -> float | None:
    """(objective - bound) / |objective|, never negative; None when either is missing or infinite."""
    if objective is None or bound is None or not math.isfinite(objective) or not math.isfinite(bound):
        return None
    if objective == bound:
        return 0.0
    return max(0.0, (objective - bound) / max(abs(objective), 1e-10))


STOP = "stop"  # what the parent sends to a solve that should end
OUT_OF_MEMORY = (
    "The solve ran out of memory. Raise memory_limit_bytes, run on a machine with more memory, "
    "or ask for fewer threads."
)


@dataclass(frozen=True, eq=False)
class Incumbent:
    """A feasible point [columns], on its way from a solve to its caller."""

    objective: float
    values: FloatArray


class Link(Protocol):
    """The driver's side of the line to whoever asked for the solve. Safe to call from any thread, often."""

    def progress(self, progress: Progress) -> None:
        """Report the state of the search. Sent on at most twice a second."""
        ...

    def incumbent(self, objective: float, values: FloatArray) -> None:
        """Report a feasible point [columns]; the best is what a killed solve still answers."""
        ...

    def stop_asked(self) -> bool:
        """Return whether the caller wants the solve to end now, with what it has."""
        ...


class Driver(Protocol):
    """Solves a program that has at least one column. Called once in a process of its own."""

    def __call__(self, program: Program, options: SolveOptions, link: Link) -> Solution:
        """Solve the program. Raises InputError for options the solver does not know, SolverError where it breaks."""
        ...
