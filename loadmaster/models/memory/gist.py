"""Gist-style fixed choices: encode what only the backward pass reads, run in place where nothing is lost.

Source: [Gist18], as taken up in [Shah23] section 4.6.2, of which problems carry Binarize (sign bits of
ReLUs, indices of max-pools) and in-place operators. Nothing is recomputed, and it takes no budget: it is one point.
"""

from __future__ import annotations

from loadmaster.models.memory import baselines
from loadmaster.models.memory.plan import Schedule
from loadmaster.models.memory.problem import MemoryProblem


def formulate(problem: MemoryProblem) -> Schedule:
    """The step with encodings where they save memory, in-place operators where their input has no other reader."""
    ways = _ways(problem)
    ids = baselines.forward_pass(problem, ways)
    read = {i for needs in baselines.needs_of(problem, ways) for i in needs}
    in_place = _in_place(problem, ids, read)
    runs = [baselines.run(problem, 0, ids, in_place), *([()] * len(ways))]
    return baselines.schedule(problem, runs, ways, kept=read)


def _ways(problem: MemoryProblem) -> list[int]:
    """Backward implementations: the cheapest, but where one can read an encoded result, that which stores least more.
    "More" is on top of what the others store anyway: a mask saves nothing where the next convolution needs the
    result."""
    candidates = [[way] for way in baselines.fastest_backward(problem)]
    for k, operator in enumerate(problem.backward):
        if any(baselines.encoded_needs(problem, c) for c in operator.implementations):
            candidates[k] = list(range(len(operator.implementations)))
    return baselines.least_stored(problem, candidates)


def _in_place(problem: MemoryProblem, ids: list[int], read: set[int]) -> set[int]:
    """Operators that may overwrite their input, with their encoded results: nothing else reads it afterwards."""
    found: set[int] = set()
    for i in ids:
        operator = problem.forward[i]
        if operator.in_place is None:
            continue
        if operator.encodes is not None:
            chosen = operator.encodes in found
        else:
            overwritten = operator.in_place.overwrites
            later = [j for j in problem.consumers[overwritten] if j > i and j in ids]
            chosen = overwritten not in read and not later
        if chosen:
            found.add(i)
    return found
