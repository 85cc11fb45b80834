"""Restrictions of a step: recompute only, offload only. Their plans are plans of the whole problem, too.

With the plans that may do both, and the step that keeps everything, these are the curves of SSDTrain's
recompute-offload-keep picture ([Wu24] section 5.4.3), with a plan behind every point.
"""

from __future__ import annotations

from dataclasses import replace

from loadmaster.errors import InputError
from loadmaster.models.memory.problem import MemoryProblem


def restrictions(problem: MemoryProblem) -> dict[str, MemoryProblem]:
    """Restrictions of a problem by name: without the link to the host, and with no result computed twice.

    Raises:
        InputError: nothing may be offloaded anyway.
    """
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
