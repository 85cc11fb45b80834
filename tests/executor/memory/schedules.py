"""Hand-made schedules, independent of the planner: some results are kept, the rest recomputed just in time."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from loadmaster.models.memory.links import sending_order
from loadmaster.models.memory.plan import Compute, Fetch, MemoryPlan, Schedule, Stage
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.unconstrained import unconstrained_cost


def schedule(
    problem: MemoryProblem,
    keep: Callable[[int], bool],
    choose: Callable[[int], int] = lambda k: 0,
    keep_recomputed: Callable[[int, int], bool] = lambda k, i: False,
) -> Schedule:
    """Keep some forward results from the forward pass; recompute the others in the stage whose backward reads them.

    Args:
        keep: whether forward result i is kept from stage 0. Results that must not be recomputed always are.
        choose: implementation of backward operator k.
        keep_recomputed: whether result i, computed again in stage k, stays for later stages.
    """
    needs = [set(b.implementations[choose(b.id)].needs) for b in problem.backward]
    later: list[set[int]] = [set()]
    for need in reversed(needs):
        later.append(later[-1] | need)
    later.reverse()  # later[t]: needs of stages t+1..K
    fixed = {f.id for f in problem.forward if not f.recomputable and f.id in _reachable(problem, later[0])}
    held = {f.id for f in problem.forward if f.encodes is None and keep(f.id)} | fixed
    held |= {i for i in later[0] if problem.forward[i].encodes is not None and keep(i)}
    computes = [f.id for f in problem.forward if f.encodes is None or f.id in held]
    stages = [_stage(computes, None, held)]
    for k, need in enumerate(needs, start=1):
        again = _closure(problem, need, held)
        stays = {i for i in again | held if i in held or keep_recomputed(k, i)}
        # What backward k reads, its stage keeps or computes.
        wanted = need & held - again
        held = wanted if k == len(needs) else wanted | stays & (_reachable(problem, later[k]) | fixed)
        stages.append(_stage(sorted(again), choose(k), held))
    return Schedule(tuple(stages))


def _closure(problem: MemoryProblem, wanted: Collection[int], held: Collection[int]) -> set[int]:
    again: set[int] = set()
    stack = [i for i in wanted if i not in held]
    while stack:
        i = stack.pop()
        if i in again:
            continue
        again.add(i)
        f = problem.forward[i]
        stack += [j for j in f.inputs if j not in held]
        if f.encodes is not None:
            stack.append(f.encodes)
    return again


def _reachable(problem: MemoryProblem, wanted: Collection[int]) -> set[int]:
    return _closure(problem, wanted, ())


def _stage(computes: Collection[int], implementation: int | None, keep: Collection[int]) -> Stage:
    return Stage(tuple(Compute(i) for i in computes), implementation, tuple(sorted(keep)))


def plan(problem: MemoryProblem, by_hand: Schedule, budget_bytes: int = 1 << 50) -> MemoryPlan:
    """A plan document around a schedule."""
    return MemoryPlan(
        name=problem.name,
        problem_sha256=problem.sha256,
        budget_bytes=budget_bytes,
        status="feasible",
        objective=None,
        bound=None,
        gap=None,
        overhead_gap=None,
        unconstrained=unconstrained_cost(problem),
        unit=problem.unit,
        method="by hand",
        stopped_by="gap",
        seconds={},
        solver={},
        check={},
        schedule=by_hand,
    )


def travelling(
    problem: MemoryProblem,
    by_hand: Schedule,
    sent: Callable[[int], bool],
    lead: Callable[[int], int] = lambda i: 1,
    linger: Callable[[int], int] = lambda i: 1,
) -> Schedule:
    """The same schedule with results sent to the host instead of kept until they are first read again.

    Args:
        sent: whether a result that is kept from stage 0 travels.
        lead: how many stages before it is read its fetch is issued, at most.
        linger: how many forward operators after its last reader it is gone.
    """
    stages = list(by_hand.stages)
    first: dict[int, int] = {}
    for t in range(len(stages) - 1, 0, -1):
        computed = {c.forward for c in stages[t].computes}
        reads = {u for j in computed for u in problem.forward[j].inputs} - computed
        reads |= set(problem.backward[t - 1].implementations[stages[t].implementation or 0].needs) - computed
        first.update(dict.fromkeys(reads, t))
    offload = sending_order(problem, [i for i in stages[0].keep if i in first and sent(i)])
    for t, stage in enumerate(stages):
        away = {i for i in offload if t < first[i]}
        arriving = tuple(Fetch(i, max(1, t - lead(i))) for i in offload if first[i] == t)
        stages[t] = replace(stage, keep=tuple(i for i in stage.keep if i not in away), fetches=arriving)
    gone_before = tuple(min(len(problem.forward), problem.last_readers[i] + linger(i)) for i in offload)
    return Schedule(tuple(stages), offload, gone_before)
