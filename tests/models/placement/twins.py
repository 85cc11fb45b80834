"""The time-indexed program once more, written out in PuLP over every operator.

Nothing is shared with the arrays but the gaps: shares are moved slot by slot here, and sums are written where they
stand. Slots are (operator, "wait") before it and (operator, "run").
"""

from __future__ import annotations

import pulp

from loadmaster.models.placement.accesses import Accesses
from loadmaster.models.placement.problem import PlacementProblem
from tests.models import cbc


def placement_twin(problem: PlacementProblem, budget_bytes: int, *, integer: bool) -> float:
    """The least time of a step, by CBC."""
    accesses = Accesses(problem)
    n, tiers = accesses.count, range(len(problem.tiers))
    size = [b.size_bytes for b in problem.blocks]
    model = pulp.LpProblem("placement", pulp.LpMinimize)
    stall = [pulp.LpVariable(f"stall_{i}", 0) for i in range(n)]
    model += pulp.lpSum(stall) + problem.compute_us
    sent: dict[tuple[int, int, bool], list[pulp.LpAffineExpression]] = {}
    brought: dict[tuple[int, int, bool], list[pulp.LpAffineExpression]] = {}
    away_at: dict[tuple[int, int], list[pulp.LpAffineExpression]] = {}
    stores: dict[tuple[int, int | None, int], dict[tuple[int, bool], pulp.LpVariable]] = {}
    for number, gap in enumerate(accesses.gaps):
        written = None
        if gap.written is not None:
            written = gap.written if gap.written <= gap.after else gap.written - n
        inside = range(gap.after + 1, gap.before)
        away = {
            (p, h): pulp.LpVariable(f"away_{number}_{p}_{h}", 0, 1, "Binary" if integer else "Continuous")
            for p in inside
            for h in tiers
        }
        for h in tiers:
            # Loads move in waits and runs after the gap's first use and before its last; so in the wait before it.
            load = {}
            for p in range(gap.after + 1, gap.before + 1):
                for running in (False, True):
                    if p < gap.before or not running:
                        load[p, running] = pulp.LpVariable(f"load_{number}_{h}_{p}_{running}", 0, 1)
            for (p, running), x in load.items():
                us = problem.tiers[h].load_us(size[gap.block])
                brought.setdefault((h, p % n, running), []).append(us * x)
            model += pulp.lpSum(load.values()) <= 1
            store = {}
            if written is not None:
                # Counted from the write of these contents, in operators since then.
                store = stores.setdefault((*gap.contents, h), {})
            for p in inside:
                model += away[p, h] <= pulp.lpSum(x for (q, _), x in load.items() if q > p)
                if written is not None:
                    for age in range(1, p - written + 1):
                        for running in (False, True):
                            if (age, running) not in store and (age < p - written or not running):
                                store[age, running] = pulp.LpVariable(
                                    f"store_{gap.block}_{gap.written}_{h}_{age}_{running}", 0, 1
                                )
                    before = [x for (age, r), x in store.items() if age < p - written or (age == p - written and not r)]
                    model += away[p, h] <= pulp.lpSum(before)
        for p in inside:
            model += pulp.lpSum(away[p, h] for h in tiers) <= 1
            for h in tiers:
                away_at.setdefault((p % n, h), []).append(size[gap.block] * away[p, h])
    for (_, written, h), store in stores.items():
        block = next(b for b, w, t in stores if stores[b, w, t] is store)
        model += pulp.lpSum(store.values()) <= 1
        for (age, running), x in store.items():
            assert written is not None
            us = problem.tiers[h].store_us(size[block])
            sent.setdefault((h, (written + age) % n, running), []).append(us * x)
    for moved in (sent, brought):
        for (_, i, running), parts in moved.items():
            model += pulp.lpSum(parts) <= (problem.operators[i].time_us if running else stall[i])
    for i in range(n):
        gone = [part for h in tiers for part in away_at.get((i, h), [])]
        model += int(accesses.live_bytes[i]) - pulp.lpSum(gone) <= budget_bytes
        for h in tiers:
            capacity = problem.tiers[h].capacity_bytes
            if capacity is not None and (i, h) in away_at and int(accesses.live_bytes[i]) > budget_bytes:
                model += pulp.lpSum(away_at[i, h]) <= capacity
    least = cbc.optimum(model)
    assert least is not None
    return least
