"""Solves of this folder run inside the test process: a process of its own costs a hundred times a tiny program."""

from __future__ import annotations

from typing import Self

import pytest

from loadmaster.solvers import child, process, registry
from loadmaster.solvers.program import FloatArray, Program
from loadmaster.solvers.solution import Progress, Solution, SolveOptions


class Unwatched:
    """The link of a solve that nobody listens to: it is over before anybody could ask."""

    def progress(self, progress: Progress) -> None: ...

    def incumbent(self, objective: float, values: FloatArray) -> None: ...

    def settled(self, solution: Solution) -> None: ...

    def stop_asked(self) -> bool:
        return False


class Solved:
    """Stands in for :class:`loadmaster.solvers.process.RunningSolve`."""

    def __init__(self, program: Program, options: SolveOptions, solver: str) -> None:
        self.solution = child.answer(registry.driver(solver), program, options, Unwatched(), solver)

    def poll(self, timeout_s: float = 0.0) -> Solution:
        return self.solution

    def progress(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture(autouse=True)
def solves_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "RunningSolve", Solved)
