"""Solves of programs of collectives within an :class:`loadmaster.planner.effort.Effort`."""

from __future__ import annotations

from loadmaster.planner.effort import Effort
from loadmaster.solvers.process import solve
from loadmaster.solvers.program import FloatArray, IntArray, Program
from loadmaster.solvers.solution import Progress, Solution, SolveOptions, StoppedBy

# No solve is worth starting with less wall time than this.
LEAST_SECONDS = 0.5


def solved(
    program: Program,
    effort: Effort,
    seconds: float,
    *,
    phase: str,
    best_ns: int | None,
    bound_ns: int,
    start: tuple[IntArray, FloatArray] | None = None,
) -> Solution:
    """Solve a program whose objective is a time in nanoseconds, in a process of its own.

    Ends early when the caller cancels, when the time of the whole run is up (a process takes a while to start), or when
    an objective within the asked gap of the bound is found. Programs with
    intervals go to CP-SAT, all others to the solver asked for (to the default where that is CP-SAT, which takes no
    continuous columns).

    Args:
        best_ns: of the schedule in hand, for reports.
        bound_ns: no schedule is faster.
        start: columns and values to start from.
    """
    good_ns = bound_ns * (1.0 + effort.options.gap)
    latest: list[float] = []

    def live(progress: Progress) -> None:
        found = [ns for ns in (progress.objective, best_ns) if ns is not None]
        latest[:] = found
        effort.say(phase, f"{progress.nodes} nodes", min(found) / 1e3 if found else None, bound_ns / 1e3)

    def enough() -> bool:
        return effort.over() or bool(latest and min(latest) <= good_ns)

    asked = effort.options.solver
    options = SolveOptions(
        time_limit_s=max(LEAST_SECONDS, min(seconds, effort.left_s)),
        seed=effort.options.seed,
        memory_limit_bytes=effort.options.solver_memory_bytes,
        start_columns=None if start is None else start[0],
        start_values=None if start is None else start[1],
    )
    solver = "cpsat" if program.intervals is not None else "auto" if asked == "cpsat" else asked
    with effort.on_clock("solve"):
        solution = solve(program, options, solver=solver, on_progress=live, cancelled=enough)
    effort.count(solution)
    effort.cut_short |= solution.stopped_by is StoppedBy.TIME
    return solution
