"""Plans for GPUs that differ: best of all by brute force, with each GPU's own limit; what balancing gains."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.hardware import hardware
from loadmaster.models.partition.checker import check
from loadmaster.models.partition.limits import spread
from loadmaster.models.partition.meshes import mesh
from loadmaster.models.partition.tables.names import model
from tests.models.partition.instances import best_by_force, every_plan, random_problem, unequal
from tests.planner.partition.test_partition_driver import METHODS, PLENTY, planned


@pytest.mark.parametrize("seed", [0, 6, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 6))])
def test_no_plan_is_better(seed: int) -> None:
    problem = unequal(random_problem(seed, mesh=((3, 1) if seed % 2 else (2, 1),), operators=2), seed)
    verdicts = [verdict for splits in every_plan(problem) if (verdict := check(problem, splits, PLENTY)).ok]
    peaks = sorted({verdict.peak_bytes for verdict in verdicts})
    # The smallest budgets that any plan keeps, one between, plenty.
    for budget_bytes in (*peaks[:2], peaks[len(peaks) // 2], PLENTY):
        plan = planned(problem, budget_bytes)
        assert plan.objective == pytest.approx(best_by_force(problem, budget_bytes), rel=1e-6)
        assert plan.status == "optimal" and plan.check["peak_bytes"] <= budget_bytes
    lacking = planned(problem, peaks[0] - 1).infeasibility
    assert lacking is not None and peaks[0] - 1 < lacking.minimum_budget_bytes <= peaks[0]


@pytest.mark.slow
@settings(max_examples=15)
@given(st.integers(0, 10**6), st.sampled_from([((3, 1), 2), ((2, 1),), ((1, 1, 2),)]))
def test_plans_hold_and_earlier_methods_are_never_better(seed: int, weights: tuple[int | tuple[int, ...], ...]) -> None:
    problem = unequal(random_problem(seed, mesh=weights, operators=4, copies=True), seed)
    best = planned(problem)
    assert best.objective is not None and best.status == "optimal"
    tight = planned(problem, spread(problem, 3)[-2:][0])
    assert tight.objective is None or tight.objective >= best.objective - 1e-9
    for method in METHODS:
        plan = planned(problem, method=method)
        assert plan.objective is not None and plan.objective >= best.objective - 1e-9


def test_shares_by_speed_take_less_time_than_equal_ones() -> None:
    def planned_us(**options: str) -> float:
        problem = model("gpt2", mesh("2", **options), hardware("h100"), batch=12, sequence=64)
        objective = planned(problem).objective
        assert objective is not None
        return objective

    slow, equal, by_speed, fast = (
        planned_us(),
        planned_us(speeds="2,1", weights="1,1"),
        planned_us(speeds="2,1"),
        planned_us(speeds="2,2"),
    )
    # With equal shares the faster GPU waits for the slower one.
    assert equal == pytest.approx(slow)
    assert fast < by_speed < equal


@pytest.mark.slow
def test_a_small_gpu_has_a_limit_of_its_own() -> None:
    """A budget that is enough for two large GPUs is not for one large and one small one."""
    problem = model("gpt2", mesh("2"), hardware("h100"), batch=12, sequence=64)
    peak = planned(problem).check["peak_bytes"]
    assert planned(problem, peak).status == "optimal"
    (axis,) = problem.axes
    small = replace(problem, axes=(replace(axis, memory_factors=(1.0, 0.5)),))
    plan = planned(small, peak)
    assert plan.objective is None or plan.objective > planned(problem, peak).objective  # type: ignore[operator]
    # Its share is as small as its memory: that plan fits again, and takes no more of the large one than of two.
    fitting = replace(problem, axes=(replace(axis, weights=(2, 1), memory_factors=(1.0, 0.5)),))
    assert planned(fitting, 2 * peak).status == "optimal"
