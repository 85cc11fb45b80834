"""The frontier: budgets planned side by side, in order, each no dearer than the one below it."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster import planner
from loadmaster.errors import CancelledError, InputError, LimitReachedError
from loadmaster.models.hardware import HostLink
from loadmaster.models.memory import minimum, plain
from loadmaster.models.memory.checker import check, check_plan
from loadmaster.models.memory.documents import read_problem
from loadmaster.models.memory.limits import spread
from loadmaster.models.memory.plan import MemoryPlan, Schedule
from loadmaster.models.memory.presets import chain
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.unconstrained import unconstrained_cost
from loadmaster.models.memory.variants import restrictions
from loadmaster.planner import Frontier, PlanOptions, PlanProgress
from loadmaster.planner.sweep import Figures, monotone, sweep
from loadmaster.solvers.solution import relative_gap
from tests.api.cli.plans_by_hand import plan_by_hand, recompute_everything
from tests.models.memory.instances import budgets, random_problem
from tests.models.placement.tiny import trace

MIB = 1 << 20
# A proof ends each of these runs: no machine is so slow that the clock does.
QUICK = PlanOptions(time_limit_s=3600.0, gap=0.0)


def eight() -> MemoryProblem:
    """Eight equal operators of a MiB: the plain step takes ten."""
    return read_problem(chain(8, MIB))


def assert_sound(problem: MemoryProblem, frontier: Frontier) -> None:
    """Ascending budgets; costs fall, and so do bounds; every plan holds its own budget and bound."""
    given = [p.budget_bytes for p in frontier.points]
    assert given == sorted(set(given))
    assert not set(given) & set(frontier.undecided)
    found = [p.plan for p in frontier.points if p.plan.schedule is not None]
    # Where a plan exists, every larger budget has one.
    assert [p.plan for p in frontier.points][len(given) - len(found) :] == found
    for point in frontier.points:
        assert point.plan.budget_bytes == point.budget_bytes
        if point.plan.schedule is not None:
            verdict = check_plan(problem, point.plan)
            assert verdict.violations == ()
            assert verdict.summary() == point.plan.check
    for small, large in itertools.pairwise(found):
        assert small.objective is not None and large.objective is not None
        assert large.objective <= small.objective
        assert large.bound is None or (small.bound is not None and small.bound >= large.bound)
    for plan in found:
        if plan.bound is not None:
            assert plan.objective is not None
            assert plan.bound <= plan.objective * (1 + 1e-6)
            assert plan.gap == pytest.approx(max(0.0, (plan.objective - plan.bound) / plan.objective))


@settings(deadline=None)
@given(st.lists(st.tuples(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)), max_size=7))
def test_the_rule_of_every_frontier(drawn: list[tuple[int | None, int | None]]) -> None:
    """The plan is the best of those for this limit and smaller ones, the bound the best of this and larger ones."""
    points = [Figures(objective, bound) for objective, bound in drawn]
    found = monotone(points)
    assert len(found) == len(points)
    for place, best in enumerate(found):
        plans = [p.objective for p in points[: place + 1] if p.objective is not None]
        bounds = [p.bound for p in points[place:] if p.bound is not None]
        assert best.bound == max(bounds, default=None)
        if best.plan_of is None:
            assert plans == []
            continue
        assert best.plan_of <= place
        assert points[best.plan_of].objective == min(plans)
        # A limit's own plan, where no other is better.
        assert best.plan_of == place or points[place].objective != min(plans)


def test_a_chain_from_too_little_to_plenty() -> None:
    wanted = [2 * MIB, 4 * MIB, 6 * MIB, 12 * MIB]
    frontier = planner.frontier(eight(), QUICK, budgets_bytes=[*reversed(wanted), 4 * MIB])
    assert_sound(eight(), frontier)
    assert [p.budget_bytes for p in frontier.points] == wanted
    assert [p.plan.status for p in frontier.points] == ["infeasible", "optimal", "optimal", "optimal"]
    assert frontier.points[-1].plan.objective == pytest.approx(unconstrained_cost(eight()))
    assert frontier.undecided == ()


@pytest.mark.parametrize("seed", range(3))
def test_costs_and_bounds_fall_with_the_budget(seed: int) -> None:
    """With a wide gap, single answers may be anything within it; the frontier is in order all the same."""
    problem = random_problem(seed, operators=6, unit_bytes=MIB)
    options = PlanOptions(time_limit_s=3600.0, gap=0.2)
    frontier = planner.frontier(problem, options, budgets_bytes=budgets(problem, (0.3, 0.5, 0.7, 1.0)))
    assert_sound(problem, frontier)


@pytest.mark.slow
def test_default_budgets_run_from_the_minimum_to_the_plain_step() -> None:
    problem = eight()
    chosen = spread(problem, 5)
    assert len(chosen) == 5
    assert chosen == sorted(chosen)
    assert minimum.minimum_budget(problem).budget_bytes <= chosen[0]
    assert chosen[-1] == plain.peak_bytes(problem)
    steps = [b - a for a, b in itertools.pairwise(chosen)]
    assert max(steps) - min(steps) <= 1
    frontier = planner.frontier(problem, QUICK, count=3)
    assert [p.budget_bytes for p in frontier.points] == spread(problem, 3)
    stated = problem.with_budget(spread(problem, 3)[1])
    assert spread(stated, 3)[0] == spread(problem, 3)[0]
    assert [p.budget_bytes for p in planner.frontier(stated, QUICK, count=3).points] == spread(stated, 3)
    assert spread(stated, 3)[-1] == stated.budget_bytes
    assert frontier.points[-1].plan.objective == pytest.approx(unconstrained_cost(problem))


def test_reports_name_their_budget_and_come_one_at_a_time() -> None:
    inside = threading.Lock()
    reports: list[PlanProgress] = []

    def report(progress: PlanProgress) -> None:
        assert inside.acquire(blocking=False)
        reports.append(progress)
        inside.release()

    planner.frontier(eight(), QUICK, budgets_bytes=[5 * MIB, 7 * MIB], workers=2, on_progress=report)
    assert {r.phase.split(":")[0] for r in reports} == {"5.00 MiB", "7.00 MiB"}


def test_cancelled_before_any_plan() -> None:
    with pytest.raises(CancelledError):
        planner.frontier(eight(), QUICK, budgets_bytes=[5 * MIB, 6 * MIB], cancelled=lambda: True)


def test_cancelled_with_plans_returns_them() -> None:
    """The plain step fits the largest budget at once; below it nothing has been found yet."""
    frontier = planner.frontier(eight(), QUICK, budgets_bytes=[5 * MIB, 12 * MIB], cancelled=lambda: True)
    assert [p.budget_bytes for p in frontier.points] == [12 * MIB]
    assert frontier.points[0].plan.method == "plain"
    assert frontier.undecided == (5 * MIB,)


def test_plans_serve_larger_budgets_whose_own_search_found_none() -> None:
    """Chen's schedule is one for all budgets; where it does not fit, there is neither a plan nor a proof."""
    options = PlanOptions(method="chen", time_limit_s=3600.0)
    frontier = planner.frontier(eight(), options, budgets_bytes=[4 * MIB, 9 * MIB, 12 * MIB])
    assert_sound(eight(), frontier)
    assert frontier.undecided == (4 * MIB,)
    assert [p.plan.method for p in frontier.points] == ["chen", "chen"]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("budgets_bytes", {"budgets_bytes": []}),
        ("budgets_bytes[0]", {"budgets_bytes": [-1]}),
        ("limits", {"limits": []}),
        ("limits", {"limits": [5], "budgets_bytes": [5]}),
        ("count", {"count": 1}),
        ("workers", {"workers": 0}),
    ],
)
def test_wrong_requests_are_refused(name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        planner.frontier(eight(), QUICK, **wrong)
    assert caught.value.field == name
    assert caught.value.remedy


def linked() -> MemoryProblem:
    """The same chain, beside a link."""
    return replace(eight(), host_link=HostLink(1.0, 1.0))


SMALL, LARGE = 6 * MIB, 12 * MIB
# By name of the restriction ("" is the whole) and budget: a schedule and a bound, or nothing yet.
Found = dict[tuple[str, int], tuple[Schedule, float | None] | None]
PLAIN, AGAIN = plain.formulate(linked()), recompute_everything(linked())
BY_HAND = plan_by_hand(chain(8, MIB), LARGE)
COSTS = {schedule: check(linked(), schedule, LARGE).objective for schedule in (PLAIN, AGAIN)}


def swept(found: Found, **more: Any) -> Frontier:
    """A sweep around a planner that knows these; the plain step takes the large budget."""
    whole = linked()
    names = {one.sha256: name for name, one in {"": whole, **restrictions(whole)}.items()}

    def planned(problem: Any, options: PlanOptions, report: Any, _: Any) -> MemoryPlan:
        name, budget = names[problem.sha256], options.limit
        assert isinstance(budget, int)
        report(PlanProgress(0.0, "by hand", None, None))
        answer = found.get((name, budget))
        if answer is None:
            raise LimitReachedError("nothing yet")
        schedule, bound = answer
        return replace(
            BY_HAND,
            problem_sha256=problem.sha256,
            budget_bytes=budget,
            objective=COSTS[schedule],
            bound=bound,
            gap=relative_gap(COSTS[schedule], bound),
            check=check(problem, schedule, budget).summary(),
            schedule=schedule,
        )

    limits = [SMALL, LARGE]
    return sweep(whole, QUICK, planned, limits=limits, restrictions=True, on_progress=more.get("on_progress"))


def test_the_whole_takes_a_better_plan_of_a_restriction() -> None:
    assert COSTS[PLAIN] < COSTS[AGAIN]
    found = swept({("", SMALL): (AGAIN, 5.0), ("", LARGE): (AGAIN, 4.0), ("offload only", LARGE): (PLAIN, None)})
    assert_sound(linked(), found)
    assert [p.plan.objective for p in found.points] == [COSTS[AGAIN], COSTS[PLAIN]]
    # A bound of the restriction says nothing of the whole: the whole keeps its own.
    assert [p.plan.bound for p in found.points] == [5.0, 4.0]
    once, again = found.restrictions["offload only"], found.restrictions["recompute only"]
    assert [p.plan.bound for p in once.points] == [4.0]
    assert (once.undecided, again.undecided, again.points) == ((SMALL,), (SMALL, LARGE), ())


def test_a_bound_of_the_whole_is_one_of_its_restrictions_and_not_the_other_way() -> None:
    both = {("recompute only", SMALL): (AGAIN, 3.0), ("recompute only", LARGE): (AGAIN, 8.0)}
    found = swept({("", SMALL): (AGAIN, 7.0), ("", LARGE): (PLAIN, 6.0), **both})
    assert [p.plan.bound for p in found.points] == [7.0, 6.0]
    # At the small budget its own of the large one is the best known: 8 holds there too.
    assert [p.plan.bound for p in found.restrictions["recompute only"].points] == [8.0, 8.0]
    found = swept({("", SMALL): (AGAIN, 7.0), ("", LARGE): (PLAIN, 6.0), ("recompute only", SMALL): (AGAIN, None)})
    restricted = found.restrictions["recompute only"].points
    assert [p.plan.bound for p in restricted] == [7.0, 6.0]
    assert [p.plan.gap for p in restricted] == pytest.approx([1 - 7 / COSTS[AGAIN], 1 - 6 / COSTS[AGAIN]])


def answers(schedules: tuple[Schedule, ...]) -> st.SearchStrategy[tuple[Schedule, float | None] | None]:
    bound = st.none() | st.integers(0, int(COSTS[PLAIN]))
    return st.none() | st.tuples(st.sampled_from(schedules), bound.map(lambda b: None if b is None else float(b)))


@settings(deadline=None, max_examples=25)
@given(
    st.fixed_dictionaries(
        {
            (name, budget): answers((AGAIN,) if budget == SMALL else (AGAIN, PLAIN))
            for name in ("", "recompute only", "offload only")
            for budget in (SMALL, LARGE)
            if (name, budget) != ("offload only", SMALL)
        }
    )
)
def test_no_point_of_the_whole_is_dearer_than_one_of_a_restriction(found: Found) -> None:
    made = swept(found)
    assert_sound(linked(), made)
    whole = {p.limit: p.plan for p in made.points}
    for of in made.restrictions.values():
        for point in of.points:
            best = whole[point.limit]
            assert best.objective <= point.plan.objective
            assert best.bound is None or point.plan.bound >= best.bound


def test_reports_name_their_restriction() -> None:
    reports: list[PlanProgress] = []
    swept({("", SMALL): (AGAIN, None)}, on_progress=reports.append)
    assert {r.phase for r in reports} == {
        f"{budget}{name}: by hand"
        for budget in ("6.00 MiB", "12.0 MiB")
        for name in ("", ", recompute only", ", offload only")
    }


def test_a_kind_without_restrictions_says_so() -> None:
    with pytest.raises(InputError, match="means nothing to placement") as caught:
        planner.frontier(trace([("A", "A"), ("B", "")], [4, 3]), QUICK, count=2, restrictions=True)
    assert caught.value.field == "restrictions" and caught.value.remedy
    with pytest.raises(InputError) as caught:
        planner.frontier(eight(), QUICK, count=2, restrictions=True)
    assert caught.value.field == "problem.host_link"
