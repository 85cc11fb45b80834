"""The program of a memory plan's problem: every choice in every stage, as far as it can matter."""

from __future__ import annotations

from loadmaster.api.report.memory.view import MemoryView
from loadmaster.api.report.programs import mps_file
from loadmaster.errors import InputError
from loadmaster.models.memory import banded
from loadmaster.models.memory.bands import everything
from loadmaster.models.memory.groups import groups_of

__all__ = ["mps"]

# Stages times results: such a program takes half a minute and a hundred megabytes to write.
_MOST_CELLS = 300_000


def mps(seen: MemoryView) -> bytes:
    """The whole program under the plan's budget, no stage taken together with another. Raises InputError if it would be
    too large."""
    problem = seen.problem
    count = problem.stage_count
    cells = count * len(problem.forward)
    if cells > _MOST_CELLS:
        found = f"{count} stages of {len(problem.forward)} results"
        raise InputError("mps", found, "are too many for one file", "Export a smaller problem.")
    starts = range(1, count)  # stage 0, the forward pass, belongs to no slot
    allowed = everything(problem, groups_of(list(starts), count))
    budget_bytes = seen.plan.budget_bytes
    whole = banded.build(problem, budget_bytes, starts, allowed, offload=True, to_the_byte=True)
    return mps_file(whole.program, seen.plan, f"a step within {budget_bytes} bytes, stage by stage")
