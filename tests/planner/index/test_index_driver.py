"""How index problems are planned: against all choices, against rules, under budgets, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster
from loadmaster.errors import CancelledError, InputError, LimitReachedError
from loadmaster.models.index.checker import check_plan
from loadmaster.models.index.configuration import FragmentedLog, GappedArray
from loadmaster.models.index.limits import least_bytes, spread, whole_bytes
from loadmaster.models.index.plan import IndexPlan
from loadmaster.models.index.problem import Host, IndexProblem, Operations, Shard
from loadmaster.planner.index.driver import plan_index
from loadmaster.planner.options import PlanOptions
from tests.models.index.index_instances import best_of_all, by_dynamic_program, by_hand, cost, random_problem

PLENTY = 1 << 40


def planned(problem: IndexProblem, budget_bytes: int = PLENTY, **options: object) -> IndexPlan:
    return plan_index(problem, PlanOptions(budget_bytes=budget_bytes, **{"gap": 0.0, **options}))  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), budget_bytes=st.integers(1, 60), longest=st.booleans())
def test_a_plan_is_the_best_of_all_choices_or_says_that_there_is_none(
    seed: int, budget_bytes: int, longest: bool
) -> None:
    problem = random_problem(seed, shards=4, objective="longest-thread" if longest else "sum")
    plan, best = planned(problem, budget_bytes), best_of_all(problem, budget_bytes)
    assert plan.status == ("infeasible" if best is None else "optimal")
    if best is None:
        assert plan.infeasibility is not None and plan.infeasibility.budget_helps
        enough = plan.infeasibility.minimum_budget_bytes
        assert enough == budget_bytes + plan.infeasibility.short_bytes == least_bytes(problem)
        assert best_of_all(problem, enough) is not None and best_of_all(problem, enough - 1) is None
        return
    assert check_plan(problem, plan).ok
    assert plan.objective == pytest.approx(best, rel=1e-6, abs=1e-6)
    assert plan.bound is not None and plan.objective is not None and plan.bound <= plan.objective


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), share=st.floats(0, 1))
def test_many_shards_are_planned_as_the_dynamic_program_does(seed: int, share: float) -> None:
    problem = random_problem(seed, shards=25, hosts=3)
    low, high = least_bytes(problem), whole_bytes(problem)
    budget_bytes = int(low + share * (high - low))
    plan = planned(problem, budget_bytes)
    assert plan.objective == pytest.approx(by_dynamic_program(problem, budget_bytes), rel=1e-6, abs=1e-6)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), longest=st.booleans())
def test_more_of_the_budget_is_never_worse(seed: int, longest: bool) -> None:
    problem = random_problem(seed, shards=7, objective="longest-thread" if longest else "sum")
    found = [planned(problem, b).objective for b in spread(problem, 5)]
    assert all(o is not None for o in found)
    assert all(b <= a * (1 + 1e-9) + 1e-9 for a, b in pairwise(found))  # type: ignore[operator]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), budget_bytes=st.integers(20, 90), longest=st.booleans())
def test_a_plan_is_no_worse_than_rules(seed: int, budget_bytes: int, longest: bool) -> None:
    problem = random_problem(seed, shards=6, objective="longest-thread" if longest else "sum")
    if least_bytes(problem) > budget_bytes:
        return
    plan = planned(problem, budget_bytes, gap=0.5)
    for method in ("greedy", "one-for-all"):
        try:
            other = planned(problem, budget_bytes, method=method)
        except LimitReachedError:
            assert method == "one-for-all"
            continue
        assert check_plan(problem, other).ok
        assert plan.objective is not None and other.objective is not None and other.bound is not None
        assert plan.objective <= other.objective * (1 + 1e-9)
        best = planned(problem, budget_bytes).objective
        assert best is not None and other.bound <= best * (1 + 1e-9)


def test_the_quickest_everywhere_needs_no_solver() -> None:
    problem = random_problem(1, shards=5)
    plan = planned(problem, whole_bytes(problem))
    assert (plan.status, plan.solver["solves"], plan.gap) == ("optimal", 0, 0.0)


@pytest.mark.parametrize("seed", range(5))
def test_beside_the_longest_thread_the_others_take_no_more_than_they_must(seed: int) -> None:
    problem = random_problem(seed, shards=6, objective="longest-thread")
    plan = planned(problem, least_bytes(problem) + 10)
    assert plan.objective is not None
    for s, choice in enumerate(plan.choices):
        for c in range(len(problem.candidates)):
            other = by_hand(problem, s, c)
            if other is not None and other[0] < choice.time_us - 1e-6:
                assert other[1] > choice.peak_bytes, "one that is quicker and no larger is left"


def test_a_budget_that_lacks_a_byte_is_kept_to_the_byte() -> None:
    """A solver's row lets a byte of two gigabytes pass; both shards at their quickest are one too many."""
    gigabyte = 1_000_000_000
    candidates = (GappedArray(), FragmentedLog())
    shards = tuple(
        Shard(f"s{s}", 1, Operations(lookups=1e3), (cost(10.0 + s, None, gigabyte), cost(1e3, None, gigabyte // 10)))
        for s in range(2)
    )
    problem = IndexProblem("byte", candidates, shards)
    assert planned(problem, 2 * gigabyte).objective == pytest.approx(10.0 + 11.0)
    plan = planned(problem, 2 * gigabyte - 1)
    assert (plan.status, [c.candidate for c in plan.choices]) == ("optimal", [0, 1])
    assert plan.bound == pytest.approx(10.0 + 1e3)


def test_a_host_that_has_too_little_is_named_with_its_largest_shards() -> None:
    problem = random_problem(2, shards=8, hosts=2)
    small = replace(problem, hosts=(Host("h0"), Host("small", memory_bytes=1)))
    small = replace(small, shards=tuple(replace(s, thread=None) for s in small.shards))
    lacking = planned(small).infeasibility
    assert lacking is not None and lacking.where == "small" and not lacking.budget_helps
    here = {s: min(b for c in range(5) if (f := by_hand(small, s, c)) for b in [f[1]]) for s in range(8)}
    here = {s: b for s, b in here.items() if small.shards[s].host == 1}
    assert lacking.minimum_budget_bytes == sum(here.values())
    largest = sorted(here, key=lambda s: -here[s])[:3]
    assert [here[s] for s in largest] == [here[int(name[1:])] for name in lacking.largest]


def test_refusals() -> None:
    problem = random_problem(0)
    with pytest.raises(CancelledError):
        plan_index(problem, PlanOptions(budget_bytes=PLENTY), cancelled=lambda: True)
    with pytest.raises(InputError, match=r"problem\.budget_bytes"):
        loadmaster.plan(problem)
    with pytest.raises(InputError, match="hector"):
        loadmaster.plan(problem, method="hector", budget_bytes=PLENTY)
