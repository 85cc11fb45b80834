"""Shared parts of the baselines: fixed implementations, and schedules spelt out from what runs where."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from loadmaster.models.memory.dead_code import without_dead_code
from loadmaster.models.memory.plan import Compute, Schedule, Stage
from loadmaster.models.memory.problem import BackwardImplementation, BackwardOperator, MemoryProblem


def fastest_forward(problem: MemoryProblem, i: int, *, recompute: bool) -> int:
    """The index of forward operator i's cheapest implementation, the first of equals."""
    return int(problem.forward_costs(i, recompute=recompute).argmin())


def fastest_backward(problem: MemoryProblem) -> list[int]:
    """Cheapest implementation of each backward operator 1..K, without encoded results where that is possible. Of
    equally cheap ones those that store least, as PyTorch has a ReLU save the result that its reader saves anyway."""
    return least_stored(problem, [_fastest(problem, b) for b in problem.backward])


def _fastest(problem: MemoryProblem, operator: BackwardOperator) -> list[int]:
    costs = [(len(encoded_needs(problem, c)), problem.cost(c)) for c in operator.implementations]
    return [n for n, cost in enumerate(costs) if cost == min(costs)]


def least_stored(problem: MemoryProblem, candidates: Sequence[Sequence[int]]) -> list[int]:
    """One candidate implementation of each backward operator, so that few bytes are stored beyond the others'.
    Operators without a choice settle first, then the others in their order; of equal ones the cheapest is taken."""
    ways = [choices[0] for choices in candidates]
    stored: set[int] = set()
    for k in sorted(range(len(ways)), key=lambda k: (len(candidates[k]) > 1, k)):
        choices = problem.backward[k].implementations
        more = {n: sum(problem.forward[i].output_bytes for i in set(choices[n].needs) - stored) for n in candidates[k]}
        ways[k] = min(candidates[k], key=lambda n: (more[n], problem.cost(choices[n]), n))
        stored |= set(choices[ways[k]].needs)
    return ways


def encoded_needs(problem: MemoryProblem, choice: BackwardImplementation) -> list[int]:
    """The encoded results among the needs of a backward implementation."""
    return [i for i in choice.needs if problem.forward[i].encodes is not None]


def needs_of(problem: MemoryProblem, ways: Sequence[int]) -> list[tuple[int, ...]]:
    """Results that each backward operator 1..K reads with implementation ``ways[k - 1]``."""
    return [b.implementations[way].needs for b, way in zip(problem.backward, ways, strict=True)]


def run(
    problem: MemoryProblem, stage: int, ids: Collection[int], in_place: Collection[int] = ()
) -> tuple[Compute, ...]:
    """Computes of a stage with the cheapest implementations; ``in_place`` names operators and encoded results."""
    return tuple(
        Compute(i, fastest_forward(problem, i, recompute=stage > 0), in_place=i in in_place) for i in sorted(ids)
    )


def forward_pass(problem: MemoryProblem, ways: Sequence[int]) -> list[int]:
    """Operators of the forward pass: every one, but of encoded results only those that the backward pass reads."""
    read = {i for needs in needs_of(problem, ways) for i in needs}
    return sorted(problem.first_run(read))


def schedule(
    problem: MemoryProblem, runs: Sequence[tuple[Compute, ...]], ways: Sequence[int], kept: Collection[int]
) -> Schedule:
    """The schedule that runs ``runs[t]`` in stage t and uses ``ways[k - 1]`` in backward k. Of the forward pass's
    results ``kept`` stay; from then on each stays through the stage that reads it last."""
    last_read = _last_reading_stages(problem, runs, ways)
    stages = [Stage(runs[0], None, tuple(sorted(kept)))]
    for k, way in enumerate(ways, start=1):
        made = {c.forward for c in runs[k]}.difference(stages[-1].keep)
        there = [i for i in (*stages[-1].keep, *made) if last_read[i] >= k]
        stages.append(Stage(runs[k], way, tuple(sorted(there) if made else there)))
    return without_dead_code(problem, Schedule(tuple(stages)))


def _last_reading_stages(problem: MemoryProblem, runs: Sequence[tuple[Compute, ...]], ways: Sequence[int]) -> list[int]:
    """Last stage that reads each forward result, 0 if none does after the forward pass."""
    last = [0] * len(problem.forward)
    for k, needs in enumerate(needs_of(problem, ways), start=1):
        for i in (*needs, *(i for c in runs[k] for i in problem.forward[c.forward].inputs)):
            last[i] = k
    return last
