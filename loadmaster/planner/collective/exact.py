"""Exact scheduling of small instances, for the last percent: routing and order at once by CP-SAT, from a schedule.

Source: TACCL's variables as intervals, see :mod:`loadmaster.models.collective.intervals`. It pays where list scheduling
is at its worst: few hops, dear messages, no symmetry.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.models.collective import intervals
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send
from loadmaster.planner.collective.phases import phase_by_phase
from loadmaster.planner.collective.prune import finish_ns
from loadmaster.planner.collective.solves import LEAST_SECONDS, solved
from loadmaster.planner.effort import Effort

# With more intervals CP-SAT has not found what list scheduling had missed.
MOST_INTERVALS = 1_000
# With more (chunk, link) than this, leaving out those that come too late takes seconds by itself, and leaves too many.
MOST_PAIRS = 20_000
# Of the time, for schedules that keep the symmetries, which are fewer; the rest is for all others.
SYMMETRIC_SHARE = 0.5


def improve(
    instance: Instance, sends: Sequence[Send], bound_ns: int, seconds: float, effort: Effort
) -> tuple[Send, ...]:
    """Search by CP-SAT for a schedule that is at least as fast as the one in hand.

    Looked for among those of one chunk a message, with the instance's symmetries first and then without; sums with
    several targets before they are whole, and then after. Where there are too many hops to choose from (``MOST_PAIRS``,
    ``MOST_INTERVALS``) the schedule comes back as it is.

    Args:
        bound_ns: no schedule is faster; the search ends at the asked gap to it.
        seconds: at most.
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
