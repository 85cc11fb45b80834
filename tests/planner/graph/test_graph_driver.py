"""How graph layers are planned: against all schedules, against rules, under budgets, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster
from loadmaster.errors import CancelledError, InputError, LimitReachedError
from loadmaster.models.graph.checker import check_plan
from loadmaster.models.graph.datasets import data_set, generated
from loadmaster.models.graph.device import graph_hardware
from loadmaster.models.graph.library import layer
from loadmaster.models.graph.limits import enough_bytes, least_bytes, whole_bytes
from loadmaster.models.graph.orders import orders
from loadmaster.models.graph.plan import GraphPlan
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.residence import peak_bytes
from loadmaster.models.graph.statistics import statistics_of
from loadmaster.planner.graph.driver import plan_graph
from loadmaster.planner.options import PlanOptions, PlanProgress
from tests.models.graph import enumeration, problems
from tests.models.graph.random_programs import random_program

PLENTY = 1 << 40


def planned(problem: GraphProblem, budget_bytes: int = PLENTY, **options: object) -> GraphPlan:
    return plan_graph(problem, PlanOptions(budget_bytes=budget_bytes, **{"gap": 0.0, **options}))  # type: ignore[arg-type]


def best_under(problem: GraphProblem, budget_bytes: int) -> float | None:
    """Of all schedules of all orders that fit."""
    found = []
    for order in orders(problem.program):
        step = problem.step(order.program)
        for schedule in enumeration.schedules(problem, step):
            if peak_bytes(problem, step, schedule) <= budget_bytes:
                found.append(enumeration.time_us(problem, step, schedule))
    return min(found, default=None)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("training", [False, True])
def test_a_plan_is_the_best_of_all_schedules(seed: int, training: bool) -> None:
    problem = problems.rgcn(seed, training=training, feature_gradients=False)
    plan = planned(problem)
    assert plan.status == "optimal"
    assert plan.objective == pytest.approx(best_under(problem, PLENTY), rel=1e-6)
    assert plan.bound == pytest.approx(plan.objective, rel=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.2, 0.5, 0.9])
def test_a_plan_under_a_budget_is_the_best_of_all_schedules_that_fit(share: float) -> None:
    problem = problems.rgcn(1, training=True, feature_gradients=False)
    low, high = enough_bytes(problem), whole_bytes(problem)
    budget_bytes = int(low + share * (high - low))
    plan = planned(problem, budget_bytes)
    assert check_plan(problem, plan).ok
    best = best_under(problem, budget_bytes)
    assert best is not None and plan.objective is not None and plan.bound is not None
    assert plan.bound <= best * (1 + 1e-9)
    assert plan.objective == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("seed", range(3))
def test_below_what_is_enough_by_rule_there_is_the_best_plan_or_a_proof(seed: int, share: float) -> None:
    problem = problems.rgcn(seed, training=True, feature_gradients=seed > 1)
    low, high = least_bytes(problem), enough_bytes(problem)
    budget_bytes = int(low + share * (high - low))
    plan, best = planned(problem, budget_bytes), best_under(problem, budget_bytes)
    assert plan.status == ("infeasible" if best is None else "optimal")
    if best is not None:
        assert check_plan(problem, plan).ok
        assert plan.objective == pytest.approx(best, rel=1e-6)
        assert plan.bound == pytest.approx(best, rel=1e-6)


CHEAP = [("rgcn", True), ("gat", True), ("rgat", False), ("hgt", False), ("simple-hgn", False)]


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 1_000), st.sampled_from(CHEAP), st.floats(0, 1))
def test_plans_pass_the_checker_and_are_no_worse_than_rules(seed: int, of: tuple[str, bool], share: float) -> None:
    assert_no_worse_than_rules(seed, *of, share)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rgat", "hgt"])
def test_plans_of_training_are_no_worse_than_rules(name: str) -> None:
    assert_no_worse_than_rules(3, name, True, 0.5)


def assert_no_worse_than_rules(seed: int, name: str, training: bool, share: float) -> None:
    problem = problems.problem(layer(name, 4, 4), seed, training=training)
    low, high = enough_bytes(problem), whole_bytes(problem)
    plan = planned(problem, int(low + share * (high - low)), gap=0.01, time_limit_s=6.0)
    verdict = check_plan(problem, plan)
    assert verdict.ok, verdict.violations
    assert verdict.objective == pytest.approx(plan.objective)
    assert plan.bound is not None and plan.bound <= verdict.objective * (1 + 1e-9)
    for method in ("hector", "vanilla", "unfused"):
        try:
            other = planned(problem, plan.budget_bytes, method=method)
        except LimitReachedError:
            continue
        assert check_plan(problem, other).ok
        assert plan.bound <= other.objective * (1 + 1e-9)  # type: ignore[operator]
        assert plan.objective <= other.objective * 1.01 + 1e-9  # type: ignore[operator]


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(st.integers(0, 100_000))
def test_random_programs_are_planned_and_pass_the_checker(seed: int) -> None:
    problem = problems.problem(random_program(seed), seed)
    plan = planned(problem, gap=0.01)
    verdict = check_plan(problem, plan)
    assert verdict.ok, verdict.violations
    assert plan.bound is not None and plan.bound <= verdict.objective * (1 + 1e-9)
    assert plan.status == "optimal"


def test_more_memory_is_never_slower() -> None:
    problem = problems.with_store(1)
    low = enough_bytes(problem)
    found = [planned(problem, low + room) for room in (0, 5_000, 20_000, 100_000, 1_000_000)]
    times = [plan.objective for plan in found]
    assert times == sorted(times, reverse=True)  # type: ignore[type-var]
    assert [plan.hot_rows for plan in found] == sorted(plan.hot_rows for plan in found)


@pytest.mark.slow
def test_rules_take_their_orders() -> None:
    problem = problems.problem(layer("rgat", 4, 4), 0, training=True)
    hector, vanilla, unfused = (planned(problem, method=m) for m in ("hector", "vanilla", "unfused"))
    assert [*hector.choices.values()].count("weights first") == 2
    assert set(vanilla.choices.values()) == {"as written", "for each edge"}
    assert set(unfused.choices.values()) == {"as written", "compact"}
    assert unfused.schedule is not None
    assert all(len(kernel.stores) == 1 for kernel in unfused.schedule.kernels)
    assert {plan.status for plan in (hector, vanilla, unfused)} == {"feasible"}


def test_a_budget_below_the_least_is_infeasible_and_says_what_works() -> None:
    problem = problems.rgcn(0, training=True)
    plan = planned(problem, least_bytes(problem) - 1)
    assert plan.status == "infeasible"
    assert plan.infeasibility is not None
    works = plan.infeasibility.minimum_budget_bytes
    assert plan.infeasibility.short_bytes == works - least_bytes(problem) + 1
    assert planned(problem, works).status != "infeasible"
    assert best_under(problem, least_bytes(problem) - 1) is None


def test_a_method_that_does_not_fit_says_what_it_takes() -> None:
    problem = problems.problem(layer("rgat", 4, 4), 0, training=True)
    with pytest.raises(LimitReachedError, match="the smallest takes"):
        planned(problem, enough_bytes(problem) - 1, method="vanilla")


def test_a_cancelled_run_has_no_plan() -> None:
    with pytest.raises(CancelledError):
        plan_graph(problems.rgcn(0), PlanOptions(budget_bytes=PLENTY), cancelled=lambda: True)


def test_progress_is_told() -> None:
    told: list[PlanProgress] = []
    plan_graph(problems.rgcn(0), PlanOptions(budget_bytes=PLENTY), on_progress=told.append)
    assert {"rules"} <= {progress.phase for progress in told}


def test_the_package_plans_graph_problems() -> None:
    problem = problems.rgcn(0, budget_bytes=PLENTY)
    plan = loadmaster.plan(problem, progress=False)
    assert isinstance(plan, GraphPlan)
    assert plan.budget_bytes == PLENTY
    with pytest.raises(InputError):
        loadmaster.plan(problem, method="megatron", progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rgcn", "rgat", "hgt"])
@pytest.mark.parametrize("dataset", ["aifb", "fb15k"])
def test_a_step_on_a_known_data_set_is_planned_to_the_optimum(name: str, dataset: str) -> None:
    of = data_set(dataset)
    statistics = statistics_of(*generated(dataset), of.node_type_counts, of.relations)
    problem = GraphProblem(name, layer(name, 64, 64), statistics, graph_hardware("h100"))
    plan = planned(problem, 80 * 10**9, gap=0.01)
    assert plan.status == "optimal"
    for method in ("hector", "vanilla", "unfused"):
        assert plan.objective <= planned(problem, 80 * 10**9, method=method).objective * 1.01  # type: ignore[operator]
