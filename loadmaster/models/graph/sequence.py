"""Kernels in a sequence: whatever is ready, first what leaves the least in memory behind it."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.models.graph.inline import Inline, base
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.residence import value_bytes
from loadmaster.models.graph.schedule import Kernel, Schedule
from loadmaster.models.graph.value import GIVEN


def in_sequence(problem: GraphProblem, program: Program, kernels: Sequence[Kernel]) -> Schedule | None:
    """The schedule of these kernels, the forward pass first; None where they wait for each other in a circle."""
    kept = frozenset(n for kernel in kernels for n in kernel.stores)
    needs = Inline(program, kept)
    reads = [
        frozenset(r for n in kernel.stores for r in needs.to_make(n).reads if r in kept) - {*kernel.stores}
        for kernel in kernels
    ]
    results = {base(program, n) for n in program.results}
    readers = {n: {at for at, read in enumerate(reads) if n in read} for n in kept}
    sizes = {n: value_bytes(problem, program, n) for n in kept}
    stored = {n for n, value in enumerate(program.values) if value.op in GIVEN}
    left = set(range(len(kernels)))

    def left_behind(at: int) -> tuple[bool, int, int]:
        """Whether it is of the backward pass; bytes that lie there after it beyond those before; where it began."""
        freed = sum(sizes[r] for r in reads[at] if r not in results and not readers[r] & left - {at})
        first = min(kernels[at].stores)
        return first >= program.forward_count, sum(sizes[n] for n in kernels[at].stores) - freed, first

    found: list[Kernel] = []
    while left:
        ready = [at for at in left if reads[at] <= stored]
        if not ready:
            return None
        at = min(ready, key=left_behind)
        left.remove(at)
        stored.update(kernels[at].stores)
        found.append(kernels[at])
    forward = sum(min(kernel.stores) < program.forward_count for kernel in found)
    return Schedule(tuple(found), forward)
