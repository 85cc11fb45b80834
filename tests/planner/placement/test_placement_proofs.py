"""What placement plans prove, against all moves that the checker accepts: optima, bounds and verdicts, to the byte."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from loadmaster.models.placement.accesses import Accesses
from loadmaster.models.placement.checker import check, check_plan
from loadmaster.models.placement.limits import least_bytes, peak_bytes
from loadmaster.models.placement.plan import PlacementPlan
from loadmaster.models.placement.problem import Block, Operator, PlacementProblem, Tier
from loadmaster.planner.options import PlanOptions
from loadmaster.planner.placement.driver import plan_placement
from tests.models.placement.instances import all_moves
from tests.models.placement.tiny import trace

# With more ways to move blocks, a problem is left out: each is checked.
MOST_WAYS = 300


def random_problem(seed: int) -> PlacementProblem:
    """Up to four operators and three blocks: sizes from a byte to GiB, times from nothing to seconds, tiers that hold
    too little in some."""
    rng = random.Random(seed)
    count, block_count = rng.choice([(2, 2), (3, 2), (3, 3), (4, 2), (4, 3)])
    uses: list[tuple[set[int], set[int]]] = [(set(), set()) for _ in range(count)]
    for block in range(block_count):
        for i in rng.sample(range(count), min(count, rng.choice((1, 1, 2, 2, 3)))):
            how = rng.choice(("read", "read", "write", "both"))
            if how != "write":
                uses[i][0].add(block)
            if how != "read":
                uses[i][1].add(block)
    size: Callable[[], int] = rng.choice(
        [lambda: 1000 * rng.randint(1, 4), lambda: rng.randint(1, 1 << 34), lambda: rng.choice([1, 3, 1 << 30])]
    )
    time_us: Callable[[], float] = rng.choice(
        [lambda: float(rng.randint(0, 5)), lambda: 10 ** rng.uniform(-4, 7), lambda: rng.choice([1e-3, 1e6, 0.0])]
    )
    gbps: Callable[[], float] = rng.choice([lambda: rng.choice([1.0, 0.5]), lambda: 10 ** rng.uniform(-2, 3)])
    operators = [
        Operator(f"o{i}", time_us(), tuple(sorted(r)), tuple(sorted(w)), rng.choice([0, 0, size()]))
        for i, (r, w) in enumerate(uses)
    ]
    blocks = [Block(f"b{n}", size()) for n in range(block_count)]
    half = sum(b.size_bytes for b in blocks) // 2
    capacity = rng.choice([None, None, None, None, 0, half, blocks[0].size_bytes, blocks[0].size_bytes - 1])
    tier = Tier("host", gbps(), gbps(), rng.choice([0.0, 0.0, rng.uniform(0, 10)]), capacity)
    return PlacementProblem(f"small-{seed}", tuple(operators), tuple(blocks), (tier,))


def planned(problem: PlacementProblem, budget_bytes: int) -> PlacementPlan:
    return plan_placement(problem, PlanOptions(budget_bytes=budget_bytes, gap=0.0, time_limit_s=60))


def assert_proofs_hold(seed: int, *, everywhere: bool) -> None:
    """At peaks of plans, at the least of all plans, one byte below each; and where it says that a plan works."""
    problem = random_problem(seed)
    accesses = Accesses(problem)
    ways = [*itertools.islice(all_moves(problem), MOST_WAYS)]
    if len(ways) == MOST_WAYS or peak_bytes(problem) <= least_bytes(problem)[0]:
        return
    verdicts = [check(problem, moves, peak_bytes(problem), accesses) for moves in ways]
    tried = [(v.peak_bytes, v.objective) for v in verdicts if v.ok]
    peaks = sorted({peak for peak, _ in tried})
    budgets = [peaks[0], peaks[0] - 1, peaks[len(peaks) // 2], peaks[len(peaks) // 2] - 1]
    for budget_bytes in budgets if everywhere else [budgets[seed % 4]]:
        best_us = min((took for peak, took in tried if peak <= budget_bytes), default=None)
        plan = planned(problem, budget_bytes)
        if best_us is None:
            assert plan.status == "infeasible" and plan.infeasibility is not None
            works = plan.infeasibility.minimum_budget_bytes
            assert works >= peaks[0] and planned(problem, works).moves is not None
            if problem.tiers[0].capacity_bytes is None:
                assert works == peaks[0]
            continue
        assert plan.objective is not None and plan.bound is not None
        verdict = check_plan(problem, plan)
        assert verdict.ok and verdict.peak_bytes <= budget_bytes
        assert plan.bound <= best_us * (1 + 1e-9)
        assert plan.objective >= best_us * (1 - 1e-9)
        if plan.status == "optimal":
            assert plan.objective <= best_us * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_proved_is_true(seed: int) -> None:
    assert_proofs_hold(seed, everywhere=True)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
def test_what_is_proved_is_true_of_many(part: int) -> None:
    # Of these 1,200, some 550 are small enough, and do not fit.
    for seed in range(100 + 200 * part, 300 + 200 * part):
        assert_proofs_hold(seed, everywhere=False)


def test_a_link_that_falls_behind_is_planned_for() -> None:
    # Each of A and B must be away while one operator runs that needs room, at 52 us a store on one link: 104 us of a
    # step of 100.
    rows = [(block, block) if i % 5 == 0 else ("", "") for i, block in enumerate("AAAAABBBBB")]
    what = trace(rows, [52, 52], tier=Tier("host", 1.0, 1000.0))
    operators = tuple(
        Operator(o.op, o.time_us, o.reads, o.writes, 60_000 if i in (4, 9) else 0) for i, o in enumerate(what.operators)
    )
    what = PlacementProblem("behind", operators, what.blocks, what.tiers)
    plan = planned(what, 113_000)
    assert plan.status == "optimal"
    assert plan.objective == pytest.approx(104) and plan.bound == pytest.approx(104)
    assert check_plan(what, plan).ok
