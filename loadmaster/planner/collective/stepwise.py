"""Few steps of long messages: what pays where a message costs about what its bytes do.

Which chunks go over which link in which step is a program (:mod:`loadmaster.models.collective.steps`); its messages are
then started as early as their order allows. Sums are spread from their roots, backwards; sums with several targets are
planned before they are whole, and then after.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send
from loadmaster.models.collective.steps import formulate, least_steps
from loadmaster.planner.collective.phases import phase_by_phase
from loadmaster.planner.collective.prune import finish_ns, prune, retime
from loadmaster.planner.collective.reversal import reverse, reversed_summing
from loadmaster.planner.collective.scheduling_graph import typical_bytes
from loadmaster.planner.collective.solves import LEAST_SECONDS, solved
from loadmaster.planner.effort import Effort

# Chunks go together where a message costs at least that part of a chunk's own time.
MATTERS = 0.1
# Of more (chunk, link, step) than this the program finds nothing of worth in the time it gets.
MOST_TRIPLES = 20_000
# More steps than there must be, to carry less over slow links.
MORE_STEPS = 1


def in_steps(
    instance: Instance, sends: Sequence[Send], bound_ns: int, seconds: float, effort: Effort
) -> tuple[Send, ...]:
    """A schedule at least as fast as the one in hand.

    Args:
        bound_ns: no schedule is faster; the search ends at the asked gap to it.
        seconds: at most.
    """
    best = tuple(sends)
    if not merging_matters(instance):
        return best
    if any(chunk.goes_on for chunk in instance.chunks):
        return phase_by_phase(instance, best, in_steps, seconds, effort)
    usable, copies = instance.usable_links, instance
    if instance.combines:
        if any(not chunk.reduces and set(chunk.targets) - set(chunk.sources) for chunk in instance.chunks):
            return best
        copies = reversed_summing(instance, [chunk.targets[0] for chunk in instance.chunks])
    until_s, fewest = effort.elapsed_s + seconds, least_steps(copies, usable)
    for more in range(MORE_STEPS + 1 if fewest else 0):
        time_ns = finish_ns(instance, best)
        limit_s = min(until_s - effort.elapsed_s, effort.left_s) / (MORE_STEPS + 1 - more)
        if time_ns <= bound_ns * (1.0 + effort.options.gap) or limit_s < LEAST_SECONDS or effort.over():
            break
        if sum(map(len, usable)) * (fewest + more) > MOST_TRIPLES:
            break
        with effort.on_clock("build"):
            formulation = formulate(copies, fewest + more, usable)
        solution = solved(
            formulation.program,
            effort,
            limit_s,
            phase=f"{fewest + more} steps",
            best_ns=time_ns,
            bound_ns=bound_ns,
        )
        if solution.values is None:
            continue
        found = retime(copies, prune(copies, formulation.schedule(solution)))
        if instance.combines:
            found = reverse(instance, copies, found)
        best = min(best, found, key=lambda candidate: finish_ns(instance, candidate))
    return best


def merging_matters(instance: Instance) -> bool:
    """Whether some link's message costs enough beside a chunk for chunks to go together."""
    size_bytes = typical_bytes(instance)
    return any(k.message_ns * k.gbps >= MATTERS * size_bytes for k in instance.topology.links)
