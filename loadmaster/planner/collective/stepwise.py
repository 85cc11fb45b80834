"""Schedules in few steps of long messages: they pay where a message costs about what its bytes do.

Which chunks go over which link in which step is a program (:mod:`loadmaster.models.collective.steps`); its messages are
then started as early as their order allows. Sums are spread from their roots, backwards; sums with several targets are
planned before they are whole, and then after.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send
from loadmaster.models.collective.steps import formulate, least_steps
from loadmaster.models.collective.symmetry import closure
from loadmaster.planner.collective.phases import phase_by_phase
from loadmaster.planner.collective.prune import finish_ns, prune, retime
from loadmaster.planner.collective.reversal import reverse, reversed_summing
from loadmaster.planner.collective.scheduling_graph import typical_bytes
from loadmaster.planner.collective.solves import LEAST_SECONDS, solved
from loadmaster.planner.effort import Effort

# Chunks go together where a message costs at least that part of a chunk's own time.
MATTERS = 0.1
# Of more (chunk, link) than this the program finds nothing of worth in the time it gets.
MOST_WAYS = 10_000


def in_steps(
    instance: Instance, sends: Sequence[Send], bound_ns: int, seconds: float, effort: Effort, more: int = 0
) -> tuple[Send, ...]:
    """Search a schedule in few steps that is at least as fast as the one in hand.

    Args:
        bound_ns: no schedule is faster; the search ends at the asked gap to it.
        seconds: at most.
        more: steps than there must be, to carry less over slow links.
    """
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
