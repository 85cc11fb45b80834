"""Plans of the kind ``placement``: checked, bounded, as good as any on tiny problems, and refused for a reason."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import CancelledError, LimitReachedError
from loadmaster.models.placement.accesses import Accesses
from loadmaster.models.placement.checker import check, check_plan
from loadmaster.models.placement.documents import read_plan, write_plan
from loadmaster.models.placement.limits import least_bytes, peak_bytes
from loadmaster.models.placement.plan import PlacementPlan
from loadmaster.models.placement.problem import Block, Operator, PlacementProblem, Tier
from loadmaster.planner.options import PlanOptions, PlanProgress
from loadmaster.planner.placement.driver import plan_placement
from tests.models.placement.instances import UNIT, all_moves, budgets, host, problem, random_problem


def planned(what: PlacementProblem, budget_bytes: int, **options: object) -> PlacementPlan:
    return plan_placement(what, PlanOptions(budget_bytes=budget_bytes, **options))  # type: ignore[arg-type]


def layers(count: int, *tiers: Tier) -> PlacementProblem:
    """A forward pass that makes an activation a layer, a backward pass that reads them in reverse order."""
    blocks = tuple(Block(f"x{i}", 2 * UNIT) for i in range(count))
    forward = [Operator(f"f{i}", 2.0, (i - 1,) if i else (), (i,)) for i in range(count)]
    backward = [Operator(f"b{i}", 4.0, (i,), ()) for i in reversed(range(count))]
    return PlacementProblem("layers", (*forward, *backward), blocks, tiers or (host(2.0),))


# Of some there are ten times as many plans.
@pytest.mark.parametrize("seed", [pytest.param(1, marks=pytest.mark.slow), 0, 2, 3, 6, 7, 8, 11])
def test_on_tiny_problems_no_plan_of_all_is_better(seed: int) -> None:
    what = random_problem(seed, operators=4, blocks=3)
    accesses = Accesses(what)
    best = dict.fromkeys(budgets(what), float("inf"))
    for moves in all_moves(what):
        verdict = check(what, moves, peak_bytes(what), accesses)
        for budget in best:
            if verdict.peak_bytes <= budget:
                best[budget] = min(best[budget], verdict.objective)
    for budget, least in best.items():
        plan = planned(what, budget, gap=0.0, time_limit_s=60)
        assert plan.objective == pytest.approx(least)


def test_operators_that_take_no_time_leave_the_copies() -> None:
    what = random_problem(2, operators=4, blocks=3)
    what = replace(what, operators=tuple(replace(o, time_us=0.0) for o in what.operators))
    accesses = Accesses(what)
    for budget in budgets(what):
        verdicts = [check(what, moves, budget, accesses) for moves in all_moves(what)]
        plan = planned(what, budget, gap=0.0, time_limit_s=60)
        assert check_plan(what, plan).ok
        assert plan.objective == pytest.approx(min(v.objective for v in verdicts if v.ok))


@settings(max_examples=12)
@given(st.integers(0, 10_000), st.floats(0, 1), st.integers(1, 2))
def test_plans_pass_the_check_and_bounds_hold(seed: int, share: float, tiers: int) -> None:
    what = random_problem(seed, operators=7, blocks=6, tiers=tiers)
    low, high = least_bytes(what)[0], peak_bytes(what)
    plan = planned(what, low + int(share * (high - low)), gap=0.05, time_limit_s=60)
    verdict = check_plan(what, plan)
    assert verdict.ok, verdict.violations
    assert plan.objective == pytest.approx(verdict.objective)
    assert plan.bound is not None and plan.objective is not None
    assert what.compute_us - 1e-9 <= plan.bound <= plan.objective + 1e-6
    assert read_plan(json.loads(json.dumps(write_plan(plan)))) == plan


def test_what_fits_is_not_moved() -> None:
    what = layers(6)
    plan = planned(what, peak_bytes(what))
    assert plan.status == "optimal" and plan.moves is not None
    assert not plan.moves.stores and not plan.moves.absences
    assert plan.objective == plan.bound == what.compute_us


def test_activations_go_and_come_back_beside_the_compute() -> None:
    # Each copy takes 1 us, each layer 2 us: what is made early is stored while the next layers run.
    what = layers(8)
    plan = planned(what, peak_bytes(what) // 2, gap=0.0)
    assert plan.objective == pytest.approx(what.compute_us)
    assert check_plan(what, plan).peak_bytes <= peak_bytes(what) // 2


def test_a_slow_link_costs_what_its_bytes_take() -> None:
    # A store of 2 units at 0.1 GB/s takes 20 us. Half of the blocks go: 4 stores, 80 us, of a step of 48.
    what = layers(8, host(0.1))
    plan = planned(what, peak_bytes(what) // 2, time_limit_s=20)
    assert plan.bound is not None and plan.bound >= 80.0 - 1e-6
    assert plan.objective is not None and plan.objective <= 1.5 * plan.bound


def test_less_than_an_operator_needs_is_infeasible_and_says_which() -> None:
    what = problem([Operator("wide", 1.0, (0, 1)), Operator("next", 1.0, (1,))], [3, 2])
    plan = planned(what, 4 * UNIT)
    assert plan.status == "infeasible" and plan.infeasibility is not None
    assert plan.infeasibility.minimum_budget_bytes == 5 * UNIT
    assert plan.infeasibility.short_bytes == UNIT
    assert "wide" in plan.infeasibility.where
    assert planned(what, 5 * UNIT).status != "infeasible"


def test_tiers_that_hold_too_little_are_named() -> None:
    what = layers(8, Tier("host", 2.0, 2.0, capacity_bytes=4 * UNIT))
    plan = planned(what, peak_bytes(what) // 2)
    assert plan.status == "infeasible" and plan.infeasibility is not None
    assert "all tiers full" in plan.infeasibility.where
    assert plan.infeasibility.minimum_budget_bytes == peak_bytes(what) - 4 * UNIT


def test_a_second_tier_takes_what_the_first_cannot_hold() -> None:
    tiers = Tier("host", 2.0, 2.0, capacity_bytes=4 * UNIT), Tier("disk", 0.5, 0.5)
    what = layers(8, *tiers)
    plan = planned(what, peak_bytes(what) // 2, time_limit_s=10)
    assert plan.moves is not None
    assert {a.tier for a in plan.moves.absences} == {0, 1}
    assert check_plan(what, plan).ok


def test_no_room_for_any_way_is_proved() -> None:
    # Two blocks of 3 must go at once, and no tier holds more than 2: together they hold enough.
    tiers = tuple(Tier(name, 1.0, 1.0, capacity_bytes=2 * UNIT) for name in ("one", "two", "three"))
    what = replace(layers(4, *tiers), blocks=tuple(Block(f"x{i}", 3 * UNIT) for i in range(4)))
    plan = planned(what, 6 * UNIT)
    assert plan.status == "infeasible" and plan.infeasibility is not None
    assert "all tiers full" in plan.infeasibility.where
    # Nothing can ever leave.
    assert plan.infeasibility.minimum_budget_bytes == peak_bytes(what)


def test_a_method_without_a_solver_does_not_prove_that_there_is_no_room() -> None:
    what = replace(
        layers(4, host(2.0, capacity_bytes=5 * UNIT)), blocks=tuple(Block(f"x{i}", 3 * UNIT) for i in range(4))
    )
    with pytest.raises(LimitReachedError, match="capacity_bytes"):
        planned(what, 8 * UNIT, method="greedy")


def test_the_same_seed_gives_the_same_plan() -> None:
    what = random_problem(5, operators=12, blocks=10)
    budget = (least_bytes(what)[0] + peak_bytes(what)) // 2
    one, other = (planned(what, budget, gap=0.0, time_limit_s=60, seed=3) for _ in range(2))
    assert one.stopped_by != "time"
    assert one.moves == other.moves


def test_the_method_greedy_needs_no_solver() -> None:
    what = layers(8, host(0.3))
    plan = planned(what, peak_bytes(what) // 2, method="greedy")
    assert plan.solver["solves"] == 0 and check_plan(what, plan).ok


def test_reports_only_get_better() -> None:
    what, reports = layers(10, host(0.3)), list[PlanProgress]()
    options = PlanOptions(budget_bytes=peak_bytes(what) // 2, gap=0.0, time_limit_s=5)
    plan = plan_placement(what, options, on_progress=reports.append)
    objectives = [r.objective for r in reports if r.objective is not None]
    bounds = [r.bound for r in reports if r.bound is not None]
    assert objectives and all(later <= earlier + 1e-6 for earlier, later in itertools.pairwise(objectives))
    assert bounds == sorted(bounds)
    assert plan.objective == pytest.approx(objectives[-1])


def test_cancelled_before_any_plan() -> None:
    what = layers(6)
    with pytest.raises(CancelledError):
        plan_placement(what, PlanOptions(budget_bytes=10 * UNIT), cancelled=lambda: True)


def test_cancelled_later_keeps_the_best_plan() -> None:
    # The best plan of all takes 31 us, the bound is 24: only a cancel or a limit ends the search early.
    what, asked = random_problem(25, operators=4, blocks=3), iter([False] * 3)
    options = PlanOptions(budget_bytes=5 * UNIT, gap=0.0)
    plan = plan_placement(what, options, cancelled=lambda: next(asked, True))
    assert plan.stopped_by == "cancel" and check_plan(what, plan).ok
