"""Variants of a step: recompute only and offload only, whose plans are plans of the whole, too; other resident bytes.

With the plans that may do both, and the step that keeps everything, these are the curves of SSDTrain's
recompute-offload-keep picture ([Wu24] section 5.4.3), with a plan behind every point.
"""

from __future__ import annotations

from dataclasses import replace

from loadmaster.errors import InputError
from loadmaster.models.memory.problem import MemoryProblem


def restrictions(problem: MemoryProblem) -> dict[str, MemoryProblem]:
    """Restrictions of a problem by name: without the link to the host, and with no result computed twice.
    ``InputError``: nothing may be offloaded anyway."""
    if problem.host_link is None:
        raise InputError(
            "problem.host_link",
            None,
            "is missing: without a link nothing can be offloaded, and there is nothing to compare",
            "Capture with --offload (in Python host_link=True), or give the document a host_link.",
        )
    if not problem.may_offload:
        raise InputError(
            "problem.objective",
            problem.objective,
            "leaves nothing to compare: offloading is weighed in time only",
            "Give a problem whose objective is time.",
        )
    once = tuple(replace(f, recomputable=False) for f in problem.forward)
    return {"recompute only": replace(problem, host_link=None), "offload only": replace(problem, forward=once)}


def with_resident(problem: MemoryProblem, extra_bytes: int) -> MemoryProblem:
    """Copy a problem with ``extra_bytes`` more resident in every stage; less, where they are negative.

    A measured peak can be above the planned one: an allocator hands out larger blocks than asked, libraries keep
    workspaces, compilers make temporaries. What is missing counts as resident through the whole step, so that the
    budget stays the user's; every schedule's peak, by the checker, is higher by exactly that much. ``InputError``: less
    than nothing would be resident somewhere.
    """
    least = -least_resident_bytes(problem)
    if extra_bytes < least:
        remedy = f"Give {least} or more."
        raise InputError("extra_bytes", extra_bytes, "takes away more than is resident", remedy)
    if extra_bytes == 0:
        return problem
    return replace(
        problem,
        forward=tuple(replace(f, fixed_bytes=f.fixed_bytes + extra_bytes) for f in problem.forward),
        backward=tuple(replace(b, fixed_bytes=b.fixed_bytes + extra_bytes) for b in problem.backward),
    )


def least_resident_bytes(problem: MemoryProblem) -> int:
    """The smallest resident bytes of any operator: no correction can take away more."""
    return min([*(f.fixed_bytes for f in problem.forward), *(b.fixed_bytes for b in problem.backward)])
