"""The process of one solve: ``python -m loadmaster.solvers.child FD SOLVER MEMORY_BYTES FOLDER``.

Started by :mod:`loadmaster.solvers.process`, never by hand. It imports numpy and the one solver and nothing else,
answers over the inherited connection FD, and ends itself, and removes FOLDER, when its parent is gone.

Costs are scaled to about one thousand for solvers whose tolerances are absolute, and answers back. Solvers take a
reduced cost or a gap below 1e-7 or 1e-6 for zero: where costs are 1e-6, all that they prove is false. The factor is a
power of two: nothing is rounded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import resource
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from loadmaster import priority
from loadmaster.errors import LoadmasterError, SolverError
from loadmaster.orphans import end_with_files, wake_when_orphaned
from loadmaster.solvers import registry
from loadmaster.solvers.program import FloatArray, Program
from loadmaster.solvers.solution import (
    OUT_OF_MEMORY,
    STOP,
    Driver,
    Incumbent,
    Link,
    Progress,
    Solution,
    SolveOptions,
    SolverStatus,
    StoppedBy,
)

__all__ = ["PipeLink", "answer", "main"]

# Where the largest cost is between these, tolerances mean what they say.
_LEAST, _MOST = 1.0, float(1 << 20)
_AIM_EXPONENT = 10


def factor_of(program: Program, *, whole: bool) -> float:
    """Return the factor by which to multiply the costs of a program: 1 where they are fine. ``whole``: the solver works
    in whole numbers: large ones are fine, and are not divided."""
    largest = float(np.abs(program.cost).max(initial=0.0))
    if largest == 0.0 or _LEAST <= largest <= _MOST or (whole and largest > _MOST):
        return 1.0
    return math.ldexp(1.0, _AIM_EXPONENT - math.frexp(largest)[1])


def scaled(program: Program, options: SolveOptions, factor: float) -> tuple[Program, SolveOptions]:
    """The program and its cutoff in other units of cost."""
    cutoff = None if options.cutoff is None else options.cutoff * factor
    program = dataclasses.replace(program, cost=program.cost * factor, offset=program.offset * factor)
    return program, dataclasses.replace(options, cutoff=cutoff)


def unscaled(solution: Solution, factor: float) -> Solution:
    """Convert an answer back to the units of cost that it was asked in."""
    return dataclasses.replace(
        solution, objective=_over(solution.objective, factor), bound=_over(solution.bound, factor)
    )


class UnscaledLink:
    """The :class:`~loadmaster.solvers.solution.Link` of a scaled solve: it reports in the units that were asked in."""

    def __init__(self, link: Link, factor: float) -> None:
        self._link = link
        self._factor = factor

    def progress(self, progress: Progress) -> None:
        objective, bound = _over(progress.objective, self._factor), _over(progress.bound, self._factor)
        self._link.progress(dataclasses.replace(progress, objective=objective, bound=bound))

    def incumbent(self, objective: float, values: FloatArray) -> None:
        self._link.incumbent(objective / self._factor, values)

    def stop_asked(self) -> bool:
        return self._link.stop_asked()


def _over(value: float | None, factor: float) -> float | None:
    return None if value is None else value / factor


_REPORT_EVERY_S = 0.5
_WATCH_EVERY_S = 0.5
_TOLERANCE = 1e-6  # the feasibility tolerance of mixed-integer solvers


class PipeLink:
    """The :class:`loadmaster.solvers.solution.Link` of a child process, throttled."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._progress_due = 0.0
        self._incumbent_due = 0.0
        self._best = float("inf")
        self._unsent: Incumbent | None = None

    def progress(self, progress: Progress) -> None:
        with self._lock:
            now = time.monotonic()
            if now >= self._progress_due:
                self._progress_due = now + _REPORT_EVERY_S
                self._send_incumbent(now)
                self._connection.send(progress)

    def incumbent(self, objective: float, values: FloatArray) -> None:
        with self._lock:
            if objective >= self._best:
                return
            self._best = objective
            self._unsent = Incumbent(objective, values)
            now = time.monotonic()
            if now >= self._incumbent_due:
                self._send_incumbent(now)

    def stop_asked(self) -> bool:
        return self._stop.is_set()

    def final(self, answer: Solution | LoadmasterError) -> None:
        """Send the answer, or the error, that ends the conversation."""
        with self._lock:
            self._connection.send(answer)

    def watch(self, folder: str) -> None:
        """Watch the parent until the process ends: pass on its wish to stop, and end with all files once it is gone.

        The parent's id is watched in addition to the connection, because processes forked by the parent (data loader
        workers, say) may hold its end of the connection open. Linux's parent-death signal cannot replace this: it fires
        when the *thread* that started this process ends.
        """
        parent = os.getppid()
        while os.getppid() == parent:
            if not self._connection.poll(_WATCH_EVERY_S):
                continue
            try:
                if self._connection.recv() == STOP:
                    self._stop.set()
                    # The solver may not look up before it is killed: what it has found goes out now.
                    with self._lock:
                        self._send_incumbent(time.monotonic())
            except (EOFError, OSError):
                break
        # A solver behind PuLP is a process of its own, and ends as well.
        end_with_files(folder)

    def _send_incumbent(self, now: float) -> None:
        if self._unsent is not None:
            self._connection.send(self._unsent)
            self._unsent = None
            self._incumbent_due = now + _REPORT_EVERY_S


def answer(driver: Driver, program: Program, options: SolveOptions, link: Link, solver: str) -> Solution:
    """Solve, with costs in units that suit the solver, and report and answer in those of the program."""
    factor = factor_of(program, whole=registry.takes_intervals(solver))
    if factor == 1.0:
        return _answer(driver, program, options, link, solver)
    asked = scaled(program, options, factor)
    return unscaled(_answer(driver, *asked, UnscaledLink(link, factor), solver), factor)


def _answer(driver: Driver, program: Program, options: SolveOptions, link: Link, solver: str) -> Solution:
    """Solve, after what no solver need be asked: the cutoff, the empty program, a whole and feasible start. The cutoff
    is a row, for every solver: HiGHS's own option for it can answer a mixed-integer program with an incumbent beyond
    the cutoff and call it optimal (seen in 1.15.1)."""
    if options.cutoff is not None:
        program = program.with_row("cutoff", program.cost, upper=options.cutoff - program.offset)
    program = _with_integer_bounds(program)
    is_crossed = _is_crossed(program)
    if is_crossed or program.column_count == 0:
        return _without_solver(program, solver, feasible=not is_crossed)
    if options.start_columns is not None and options.start_values is not None:
        start = _whole_start(program, options.start_columns, options.start_values)
        if start is not None:
            link.incumbent(program.objective(start), start)
    solution = driver(program, options, link)
    broken = None if solution.values is None else program.broken(solution.values)
    if broken is not None:
        raise SolverError(f"{solver} answered with a point that breaks {broken}. Try another solver, and report it.")
    return solution


def _whole_start(program: Program, columns: Any, values: Any) -> FloatArray | None:
    point = np.full(program.column_count, np.nan)
    point[columns] = values
    if np.isnan(point).any() or program.violation(point) > _TOLERANCE:
        return None
    return point


def _with_integer_bounds(program: Program) -> Program:
    """Round the bounds of integer columns inward: with others HiGHS can call a feasible program infeasible (1.15.1)."""
    return dataclasses.replace(
        program,
        lower=np.where(program.integer, np.ceil(program.lower - _TOLERANCE), program.lower),
        upper=np.where(program.integer, np.floor(program.upper + _TOLERANCE), program.upper),
    )


def _is_crossed(program: Program) -> bool:
    """Return whether no number satisfies some column or row, whatever the rest."""
    empty = np.diff(program.row_start) == 0
    without_zero = (program.row_lower > _TOLERANCE) | (program.row_upper < -_TOLERANCE)
    rows = (program.row_lower > program.row_upper) | (empty & without_zero)
    return bool((program.lower > program.upper).any() or rows.any())


def _without_solver(program: Program, solver: str, *, feasible: bool) -> Solution:
    """The answer for a program without columns, or one that a single row or column makes infeasible."""
    return Solution(
        status=SolverStatus.OPTIMAL if feasible else SolverStatus.INFEASIBLE,
        stopped_by=StoppedBy.GAP if feasible else StoppedBy.PROOF,
        values=np.zeros(0) if feasible else None,
        objective=program.offset if feasible else None,
        bound=program.offset if feasible else None,
        seconds=0.0,
        cpu_seconds=time.process_time(),
        nodes=0,
        solver=solver,
        solver_version=registry.version(solver),
    )


def _cap_memory(limit_bytes: int) -> None:
    # Some systems (macOS) know the limit but refuse to set it: the solve then runs without one.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))


def main() -> None:
    """Receive a program, solve it, send the answer."""
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    solver, memory_limit_bytes, folder = sys.argv[2], int(sys.argv[3]), sys.argv[4]
    link = PipeLink(connection)
    wake_when_orphaned()
    priority.share_by_niceness()
    try:
        link.final(_receive_and_solve(connection, link, solver, memory_limit_bytes, folder))
    except (EOFError, ConnectionError):
        # The parent is gone, and nobody hears the answer.
        end_with_files(folder)
    # Without the solver libraries' own clean-up: it can take longer than the solve, and nobody needs it.
    os._exit(0)


def _receive_and_solve(
    connection: Connection[Any, Any], link: PipeLink, solver: str, memory_limit_bytes: int, folder: str
) -> Solution | LoadmasterError:
    try:
        driver = registry.driver(solver)
        # After the imports, which fail in stranger ways.
        if memory_limit_bytes:
            _cap_memory(memory_limit_bytes)
        program, options = connection.recv()
        threading.Thread(target=link.watch, args=(folder,), daemon=True).start()
        return answer(driver, program, options, link, solver)
    except LoadmasterError as error:
        return error
    except MemoryError:
        return SolverError(OUT_OF_MEMORY)


if __name__ == "__main__":
    main()
