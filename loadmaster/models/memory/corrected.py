"""Problems corrected by what a step measured: bytes that no operator of the problem accounts for, or that never come.

A measured peak can be above the planned one: an allocator hands out larger blocks than asked, libraries keep
workspaces, compilers make temporaries. What is missing counts as resident through the whole step, so that the budget
stays the user's and the plan's checker counts what was seen. Where a measured peak is below the planned one, as much
less is resident.
"""

from __future__ import annotations

from dataclasses import replace

from loadmaster.errors import InputError
from loadmaster.models.memory.problem import MemoryProblem


def with_resident(problem: MemoryProblem, extra_bytes: int) -> MemoryProblem:
    """Copy a problem with ``extra_bytes`` more resident in every stage; less, where they are negative.

    Every schedule's peak, by the checker, is higher by exactly that much.

    Raises:
        InputError: less than nothing would be resident somewhere.
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
