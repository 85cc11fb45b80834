"""Plans that modules can run: best of all that keep the roles of axes, by brute force."""

from __future__ import annotations

from dataclasses import replace

import pytest

import loadmaster
from loadmaster.models.partition.checker import check
from loadmaster.models.partition.plan import PartitionPlan, Splits, roles_of
from loadmaster.models.partition.problem import Operator, PartitionProblem, Tensor
from loadmaster.planner.options import PlanOptions
from tests.models.partition.instances import axes, every_plan, two_products

PLENTY = 1 << 40


def products(first: str, second: str, *, rows: int, gbps: float) -> PartitionProblem:
    """y = x a b, where the two products are run by these modules."""
    tensors = (
        Tensor("x", (rows, 8), role="input"),
        Tensor("a", (8, 16), role="parameter"),
        Tensor("h", (rows, 16)),
        Tensor("b", (16, 8), role="parameter"),
        Tensor("y", (rows, 8)),
    )
    operators = (
        Operator("mm", 0, (0, 1), (2,), 8.0, module=first),
        Operator("mm", 0, (2, 3), (4,), 8.0, module=second),
    )
    return PartitionProblem("products", axes(2, gbps=gbps), tensors, operators, two_products(2).signatures)


def is_of_modules(problem: PartitionProblem, splits: Splits) -> bool:
    """Whether modules can run it, on one axis."""
    x, a, h, b, y = (parts[0] for parts in splits.placements)
    first, second = (
        problem.strategies(operator)[chosen[0]]
        for operator, chosen in zip(problem.operators, splits.strategies, strict=True)
    )
    divided = [strategy.name == "m" for strategy in (first, second)]
    if (x, h, y) == ("S0",) * 3 and all(divided) and (a == "R") == (b == "R"):
        return True
    as_they_lie = first.inputs[1].part == a and second.inputs[1].part == b
    stays = second.inputs[0].part == h == first.outputs[0]
    apart = problem.operators[0].module != problem.operators[1].module
    return x == "R" and as_they_lie and (apart or stays)


@pytest.mark.parametrize("modules", [("one", "one"), ("one", "other")])
@pytest.mark.parametrize(("rows", "gbps"), [(4, 1e-4), (64, 1e-3), (4, 1.0)])
def test_no_plan_of_modules_is_better(modules: tuple[str, str], rows: int, gbps: float) -> None:
    problem = products(*modules, rows=rows, gbps=gbps)
    kept = [s for s in every_plan(problem) if is_of_modules(problem, s)]
    costs = [verdict.objective for splits in kept if (verdict := check(problem, splits, PLENTY)).ok]
    plan = loadmaster.plan(problem, budget_bytes=PLENTY, gap=0.0, method="module", progress=False)
    assert isinstance(plan, PartitionPlan) and plan.splits is not None and plan.objective is not None
    assert is_of_modules(problem, plan.splits)
    assert plan.objective == pytest.approx(min(costs))


def test_the_gap_is_what_modules_cost() -> None:
    problem = products("one", "one", rows=4, gbps=1e-4)
    plan = loadmaster.plan(problem, budget_bytes=PLENTY, gap=0.0, method="module", progress=False)
    best = loadmaster.plan(problem, budget_bytes=PLENTY, gap=0.0, progress=False)
    assert plan.bound == best.objective


@pytest.mark.parametrize("budget_bytes", [PLENTY, 5000])
def test_a_role_for_every_axis(budget_bytes: int) -> None:
    """Where a role divides batches it does so everywhere; a budget is kept."""
    problem = replace(products("one", "other", rows=8, gbps=1.0), axes=axes(2, 2))
    plan = loadmaster.plan(problem, PlanOptions(budget_bytes=budget_bytes, method="module"), progress=False)
    assert isinstance(plan, PartitionPlan) and plan.splits is not None
    assert plan.check["peak_bytes"] <= budget_bytes
    for axis, role in enumerate(roles_of(problem, plan.splits)):
        of_batch = {plan.splits.placements[t][axis] for t in (0, 2, 4)}
        assert role == "tensor" or of_batch == {"S0"}
