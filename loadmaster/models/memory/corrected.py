"""Problems corrected by what a step measured: bytes that no operator of the problem accounts for.

A measured peak can lie above the planned one: an allocator hands out larger blocks than asked, libraries keep
workspaces, compilers make temporaries. What is missing counts as resident through the whole step, so that the budget
stays the user's and the plan's checker counts what was seen.
"""

from __future__ import annotations

from dataclasses import replace

from loadmaster.errors import InputError
from loadmaster.models.memory.problem import MemoryProblem


def with_resident(problem: MemoryProblem, extra_bytes: int) -> MemoryProblem:
    """The same problem with ``extra_bytes`` more resident in every stage.

    Every schedule's peak, by the checker, is higher by exactly that much.

    Raises:
        InputError: ``extra_bytes`` is negative: nothing measured makes a planned byte disappear.
    """
    if extra_bytes < 0:
        raise InputError("extra_bytes", extra_bytes, "is negative", "Give the bytes that were missing, or 0.")
    if extra_bytes == 0:
        return problem
    return replace(
        problem,
        forward=tuple(replace(f, fixed_bytes=f.fixed_bytes + extra_bytes) for f in problem.forward),
        backward=tuple(replace(b, fixed_bytes=b.fixed_bytes + extra_bytes) for b in problem.backward),
    )
