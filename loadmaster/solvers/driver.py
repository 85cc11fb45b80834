"""The interface of a solver driver: a function that runs in the solve's own process and keeps its caller informed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from loadmaster.solvers.program import FloatArray, Program
from loadmaster.solvers.solution import Progress, Solution, SolveOptions

__all__ = ["OUT_OF_MEMORY", "STOP", "Driver", "Incumbent", "Link", "Settled"]

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


@dataclass(frozen=True, eq=False)
class Settled:
    """An answer that is final but for its explanation, sent before the search for one."""

    solution: Solution


class Link(Protocol):
    """The driver's side of the line to whoever asked for the solve. Safe to call from any thread, often."""

    def progress(self, progress: Progress) -> None:
        """Report the state of the search. Sent on at most twice a second."""
        ...

    def incumbent(self, objective: float, values: FloatArray) -> None:
        """Report a feasible point [columns]; the best is what a killed solve still answers."""
        ...

    def settled(self, solution: Solution) -> None:
        """Report an answer that is final but for its conflict."""
        ...

    def stop_asked(self) -> bool:
        """Return whether the caller wants the solve to end now, with what it has."""
        ...


class Driver(Protocol):
    """Solves a program that has at least one column. Called once in a process of its own."""

    def __call__(self, program: Program, options: SolveOptions, link: Link) -> Solution:
        """Solve the program. Raises InputError for options the solver does not know, SolverError where it breaks."""
        ...
