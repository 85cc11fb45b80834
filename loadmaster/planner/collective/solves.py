"""Solves of programs of collectives, within an :class:`loadmaster.planner.effort.Effort`: exact, and in few steps.

**Exact** scheduling is for small instances and the last percent: routing and order at once by CP-SAT, from a schedule.
Source: TACCL's variables as intervals, see :mod:`loadmaster.models.collective.intervals`. It pays where list scheduling
is at its worst: few hops, dear messages, no symmetry.

**Few steps** of long messages pay where a message costs about what its bytes do. Which chunks go over which link in
which step is a program (:mod:`loadmaster.models.collective.steps`); its messages are then started as early as their
order allows. Sums are spread from their roots, backwards; sums with several targets are planned before they are whole,
and then after.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from loadmaster.models.collective import intervals
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send
from loadmaster.models.collective.steps import formulate, least_steps
from loadmaster.models.collective.symmetry import closure
from loadmaster.planner.collective.prune import finish_ns, prune, retime
from loadmaster.planner.collective.reversal import phase_by_phase, reverse, reversed_summing
from loadmaster.planner.collective.scheduling_graph import typical_bytes
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
    an objective within the asked gap of ``bound_ns`` is found. Programs with intervals go to CP-SAT, all others to the
    solver asked for (to the default where that is CP-SAT, which takes no continuous columns). ``best_ns`` is the time
    of the schedule in hand, for reports; ``start``: columns and values to start from.
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


# With more intervals CP-SAT has not found what list scheduling had missed.
MOST_INTERVALS = 1_000
# With more (chunk, link) than this, leaving out those that come too late takes seconds by itself, and leaves too many.
MOST_PAIRS = 20_000
# Of the time, for schedules that keep the symmetries, which are fewer; the rest is for all others.
SYMMETRIC_SHARE = 0.5


def improve(
    instance: Instance, sends: Sequence[Send], bound_ns: int, seconds: float, effort: Effort
) -> tuple[Send, ...]:
    """Search by CP-SAT for a schedule that is at least as fast as the one in hand, up to the asked gap to ``bound_ns``.

    One chunk a message; with the instance's symmetries first and then without; sums with several targets before they
    are whole, and then after. Where there are too many hops to choose from (``MOST_PAIRS``, ``MOST_INTERVALS``) the
    schedule comes back as it is.
    """
    best = tuple(sends)
    if any(chunk.goes_on for chunk in instance.chunks):
        return phase_by_phase(instance, best, improve, seconds, effort)
    if sum(map(len, instance.usable_links)) > MOST_PAIRS:
        return best
    until_s = effort.elapsed_s + seconds
    tries = [(instance, 1.0)]
    if instance.generators:
        tries = [(instance, SYMMETRIC_SHARE), (instance.without_symmetry(), 1.0)]
    for tried, share in tries:
        time_ns = finish_ns(instance, best)
        limit_s = min(until_s - effort.elapsed_s, effort.left_s) * share
        if time_ns <= bound_ns * (1.0 + effort.options.gap) or limit_s < LEAST_SECONDS or effort.over():
            break
        with effort.on_clock("build"):
            formulation = intervals.formulate(tried, horizon_ns=time_ns, bound_ns=bound_ns)
        if not 0 < formulation.interval_count <= MOST_INTERVALS:
            continue
        solution = solved(
            formulation.program,
            effort,
            limit_s,
            phase=f"exact scheduling, {formulation.interval_count} intervals",
            best_ns=time_ns,
            bound_ns=bound_ns,
            start=formulation.start_from(best),
        )
        if solution.values is not None and (found := formulation.schedule(solution)):
            best = min(best, found, key=lambda candidate: finish_ns(instance, candidate))
    return best


# Chunks go together where a message costs at least that part of a chunk's own time.
MATTERS = 0.1
# Of more (chunk, link) than this the program finds nothing of worth in the time it gets.
MOST_WAYS = 10_000


def in_steps(
    instance: Instance, sends: Sequence[Send], bound_ns: int, seconds: float, effort: Effort, more: int = 0
) -> tuple[Send, ...]:
    """Search a schedule in few steps that is at least as fast as the one in hand; nothing is faster than ``bound_ns``.
    ``more``: steps in addition to the least number, to carry less over slow links."""
    best = tuple(sends)
    if any(chunk.goes_on for chunk in instance.chunks):
        return phase_by_phase(instance, best, partial(in_steps, more=more), seconds, effort)
    usable, copies = instance.usable_links, instance
    if instance.combines:
        if any(not chunk.reduces and set(chunk.targets) - set(chunk.sources) for chunk in instance.chunks):
            return best
        copies = reversed_summing(instance, [chunk.targets[0] for chunk in instance.chunks])
    time_ns, limit_s, steps = finish_ns(instance, best), min(seconds, effort.left_s), least_steps(copies, usable)
    if not steps or time_ns <= bound_ns * (1.0 + effort.options.gap) or limit_s < LEAST_SECONDS or effort.over():
        return best
    with effort.on_clock("build"):
        formulation = formulate(copies, steps + more, usable)
    solution = solved(
        formulation.program, effort, limit_s, phase=f"{steps + more} steps", best_ns=time_ns, bound_ns=bound_ns
    )
    if solution.values is None:
        return best
    found = retime(copies, prune(copies, formulation.schedule(solution)))
    if instance.combines:
        found = reverse(instance, copies, found)
    return min(best, found, key=lambda candidate: finish_ns(instance, candidate))


def columns_of(instance: Instance) -> int:
    """Estimate how many columns a step has; 0 if not worth trying: messages cost little, or ways are many."""
    size_bytes, ways = typical_bytes(instance), sum(map(len, instance.usable_links))
    matters = any(k.message_ns * k.gbps >= MATTERS * size_bytes for k in instance.topology.links)
    if not matters or ways > MOST_WAYS:
        return 0
    return -(-ways // len(closure(instance.generators, instance.topology.rank_count, len(instance.chunks))))
