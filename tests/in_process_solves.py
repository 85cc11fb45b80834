"""Small solves inside the test process, in place of one process each: 115 ms become less than one.

Everything but the process stays as it is: the driver, what is done before it is asked, reports, cancel. What the
process itself is for (a solver that is killed, does not listen or takes too much memory) is tested in tests/solvers,
which is left alone, and wherever else a test says ``@pytest.mark.solver_process``.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from functools import cache
from typing import Self

from loadmaster.errors import LoadmasterError, SolverError
from loadmaster.solvers import registry
from loadmaster.solvers.child import answer
from loadmaster.solvers.process import RunningSolve
from loadmaster.solvers.program import FloatArray, Program
from loadmaster.solvers.solution import Progress, Solution, SolveOptions, SolverStatus

# A larger program takes longer than its process takes to start.
MOST_NONZEROS = 20_000


def running_solve(program: Program, options: SolveOptions, solver: str) -> RunningSolve | InProcessSolve:
    """A solve under way: in this process where it can be, in one of its own where it must.

    highspy and ortools cannot be imported into one process. HiGHS is the one that stays: PuLP imports it, too.
    """
    small = program.nonzero_count <= MOST_NONZEROS and options.threads == 1 and options.memory_limit_bytes is None
    return (InProcessSolve if small and solver == "highs" else RunningSolve)(program, options, solver)


@cache
def _write_banner_to_nowhere() -> None:
    """HiGHS 1.16 writes its version to stdout with the first object of a process, before any option can be set."""
    import highspy

    stdout, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        highspy.Highs()
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(nowhere)


class Reports:
    """The :class:`loadmaster.solvers.solution.Link` of a solve in this process."""

    def __init__(self) -> None:
        self.latest: Progress | None = None
        self.best: tuple[float, FloatArray] | None = None
        self.stop = threading.Event()

    def progress(self, progress: Progress) -> None:
        self.latest = progress

    def incumbent(self, objective: float, values: FloatArray) -> None:
        if self.best is None or objective < self.best[0]:
            self.best = objective, values

    def stop_asked(self) -> bool:
        return self.stop.is_set()


class InProcessSolve:
    """What :class:`loadmaster.solvers.process.RunningSolve` is to its callers, on a thread of this process."""

    def __init__(self, program: Program, options: SolveOptions, solver: str) -> None:
        _write_banner_to_nowhere()
        self._reports = Reports()
        self._finished = threading.Event()
        self._outcome: Solution | LoadmasterError = SolverError("The solve failed: its traceback is printed above.")
        threading.Thread(target=self._solve, args=(program, options, solver), name="solve", daemon=True).start()

    def _solve(self, program: Program, options: SolveOptions, solver: str) -> None:
        began = time.thread_time()
        try:
            found = answer(registry.driver(solver), program, options, self._reports, solver)
            if found.status is SolverStatus.INFEASIBLE:
                found = replace(found, bound=options.cutoff)
            self._outcome = replace(found, cpu_seconds=time.thread_time() - began)
        except LoadmasterError as error:
            self._outcome = error
        finally:
            self._finished.set()

    def poll(self, timeout_s: float = 0.0) -> Solution | None:
        if not self._finished.wait(timeout_s):
            return None
        if isinstance(self._outcome, LoadmasterError):
            raise self._outcome
        return self._outcome

    def wait(self) -> Solution:
        self._finished.wait()
        solution = self.poll()
        assert solution is not None
        return solution

    def progress(self) -> Progress | None:
        return self._reports.latest

    def incumbent(self) -> FloatArray | None:
        return None if self._reports.best is None else self._reports.best[1]

    def cancel(self) -> None:
        self._reports.stop.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        self._finished.wait()
