"""Plans of partition: best of all by brute force, with a budget and without; earlier methods; what cannot be done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

import loadmaster
from loadmaster.errors import CancelledError, InputError, LimitReachedError
from loadmaster.models.hardware import hardware
from loadmaster.models.kinds import kind_named
from loadmaster.models.partition.checker import check, check_plan
from loadmaster.models.partition.limits import least_bytes
from loadmaster.models.partition.meshes import mesh
from loadmaster.models.partition.plan import PartitionPlan
from loadmaster.models.partition.problem import PartitionProblem
from loadmaster.models.partition.tables.builder import Graph
from loadmaster.models.partition.tables.names import model
from loadmaster.planner.options import PlanOptions
from loadmaster.planner.partition import driver, lagrangian, restrictions
from loadmaster.planner.partition.elimination import TooWideError
from loadmaster.solvers.program import FloatArray
from tests.models.partition.instances import axes, best_by_force, every_plan, random_problem, two_products

PLENTY = 1 << 40
METHODS = [name for name in kind_named("partition").methods if name != "auto"]


def planned(problem: PartitionProblem, budget_bytes: int = PLENTY, method: str = "auto") -> PartitionPlan:
    found = loadmaster.plan(problem, budget_bytes=budget_bytes, gap=0.0, method=method, progress=False)
    assert isinstance(found, PartitionPlan)
    if found.splits is not None:
        assert check_plan(problem, found).ok
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "copies"),
    [
        (0, False),
        (3, False),
        (7, True),
        *(pytest.param(n, False, marks=pytest.mark.slow) for n in (1, 2, 4, 5, 7)),
        pytest.param(3, True, marks=pytest.mark.slow),
    ],
)
def test_no_plan_is_better(seed: int, copies: bool) -> None:
    problem = random_problem(seed, mesh=(2,), operators=2, copies=copies)
    plan = planned(problem)
    assert plan.status == "optimal"
    assert plan.objective == pytest.approx(best_by_force(problem, PLENTY))
    # Less memory than that plan takes, but enough for another one.
    peak = plan.check["peak_bytes"]
    peaks = {verdict.peak_bytes for splits in every_plan(problem) if (verdict := check(problem, splits, PLENTY)).ok}
    for budget_bytes in sorted(b for b in peaks if b < peak)[-1:]:
        plan = planned(problem, budget_bytes)
        assert plan.objective == pytest.approx(best_by_force(problem, budget_bytes), rel=1e-6)
        assert plan.status == "optimal" and plan.check["peak_bytes"] <= budget_bytes


def test_megatron_gathers_no_matrix_along_the_last_axis() -> None:
    """Batch 4 on 2 x 2: it could be divided there, too, and matrices gathered, as in HSDP."""
    problem = model("llama3-8b", mesh("2x2", gbps="45,350"), hardware("h100"), batch=4)
    splits = {method: planned(problem, method=method).splits for method in ("megatron", "hsdp")}
    gathered = {}
    for method, found in splits.items():
        assert found is not None
        gathered[method] = {
            problem.tensors[problem.original(t)].name
            for operator, chosen in zip(problem.operators, found.strategies, strict=True)
            if not problem.is_copy(operator)
            for t, need in zip(operator.inputs, problem.strategies(operator)[chosen[-1]].inputs, strict=True)
            if (of := problem.tensors[problem.original(t)]).role == "parameter" and len(of.shape) > 1
            if need.part == "R"
        }
    assert not gathered["megatron"] and len(gathered["hsdp"]) > 200


@pytest.mark.parametrize("seed", range(4))
def test_earlier_methods_are_never_better(seed: int) -> None:
    problem = random_problem(seed, mesh=(2, 2), operators=5, copies=seed % 2 == 1)
    best = planned(problem).objective
    assert best is not None
    for method in METHODS:
        plan = planned(problem, method=method)
        assert plan.objective is not None and plan.objective >= best - 1e-9
        assert plan.bound == (pytest.approx(best) if method == "module" else None)


def test_one_step_of_recursion_is_exact() -> None:
    """On one axis there is nothing to recur on."""
    for seed in range(4):
        problem = random_problem(seed, mesh=(2,), operators=5)
        assert planned(problem, method="recursive").objective == pytest.approx(planned(problem).objective)


def test_methods_are_what_they_say() -> None:
    problem = two_products(2, 2, objective="bytes", replicas=False)

    def splits_of(method: str) -> tuple[set[tuple[str, ...]], set[tuple[int, ...]]]:
        plan = planned(problem, method=method)
        assert plan.splits is not None
        return set(plan.splits.placements), set(plan.splits.strategies)

    assert all(len(set(p)) == 1 for p in splits_of("equal-chop")[0])
    assert all(2 not in s for s in splits_of("no-reduction")[1])  # 2: over the index that is summed
    assert splits_of("all-row")[0] == {("S0", "S0")}
    may_be_whole = planned(replace(problem, replicas=True), method="all-row")
    assert may_be_whole.splits is not None and set(may_be_whole.splits.placements) == {("S0", "S0")}


def perceptron() -> PartitionProblem:
    g = Graph(4, hardware("p100"))
    h = g.elementwise(
        "relu", g.product("first", "nk,km->nm", g.tensor("x", (512, 16), "input"), g.parameter("a", (16, 32)))
    )
    out = g.product("second", "nk,km->nm", h, g.parameter("b", (32, 4)))
    g.reached(out, g.tensor("given", (512, 4), "input"))
    g.backward()
    g.optimizer(1, 4)
    return replace(g.problem("perceptron", "", axes(2)), objective="bytes")


A, B = 16 * 32 * 4, 32 * 4 * 4


@pytest.mark.parametrize(
    ("method", "received"),
    [
        # Both gradients are summed up everywhere.
        ("data-parallel", 2 * A + 2 * B),
        # The first matrix is gathered once, the second twice; each gradient is summed where its share lies.
        ("fsdp", A + 2 * B + A + B),
        ("hsdp", A + 2 * B + A + B),
        # Each is gathered once.
        ("zero-2", A + B + A + B),
    ],
)
def test_what_people_do_by_hand(method: str, received: int) -> None:
    plan = planned(perceptron(), method=method)
    assert plan.objective == received and plan.splits is not None
    parts = {"R"} if method == "data-parallel" else {"S0", "S1"}
    assert {plan.splits.placements[n][0] for n in (1, 4)} <= parts


@pytest.mark.parametrize("method", ["megatron", "hsdp"])
def test_matrices_are_divided_along_the_last_axis(method: str) -> None:
    plan = planned(replace(perceptron(), axes=axes(2, 2)), method=method)
    assert plan.splits is not None
    for n, tensor in enumerate(perceptron().tensors):
        if tensor.role == "parameter":
            first, last = plan.splits.placements[n]
            assert first == "R" and last in ("S0", "S1")


@pytest.mark.slow
def test_more_memory_is_never_worse() -> None:
    problem = random_problem(9, mesh=(2, 2), operators=5)
    frontier = loadmaster.frontier(problem, PlanOptions(gap=0.0), count=4, progress=False)
    found = [point.plan.objective for point in frontier.points if point.plan.objective is not None]
    assert len(found) > 1 and found == sorted(found, reverse=True)


def test_programs_agree_with_elimination(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(5, mesh=(2, 2), operators=5)
    exact = planned(problem).objective

    def nothing_known(unary: Sequence[FloatArray], *_: object, **__: object) -> tuple[list[int], float]:
        return [len(costs) - 1 for costs in unary], 0.0

    def too_wide(*_: object, **__: object) -> None:
        raise TooWideError

    for module in (driver, lagrangian, restrictions):
        monkeypatch.setattr(module, "minimize", nothing_known)
    monkeypatch.setattr(lagrangian, "Elimination", too_wide)
    plan = planned(problem)
    assert plan.objective == pytest.approx(exact, rel=1e-6)
    assert plan.gap is not None and plan.gap <= 2e-6 and plan.solver["solves"]


def test_too_little_memory_names_what_is_largest() -> None:
    problem = two_products(2)
    plan = planned(problem, 1000)
    assert plan.status == "infeasible" and plan.infeasibility is not None
    assert plan.infeasibility.minimum_budget_bytes == 1000 + plan.infeasibility.short_bytes
    assert set(plan.infeasibility.largest) >= {"a", "b"}


def test_no_plan_where_buffers_do_not_fit_is_proved() -> None:
    """Every tensor divided would fit; what operators gather does not."""
    problem = two_products(2, 2)
    plan = planned(problem, least_bytes(problem))
    assert plan.status == "infeasible" and plan.infeasibility is not None
    enough = plan.infeasibility.minimum_budget_bytes
    assert enough > least_bytes(problem) and planned(problem, enough).status == "optimal"


def test_a_method_that_takes_too_much_says_how_much() -> None:
    problem = two_products(2)
    peak = planned(problem, method="data-parallel").check["peak_bytes"]
    with pytest.raises(LimitReachedError, match=r"no plan was found under .*; the smallest takes"):
        planned(problem, peak - 1, "data-parallel")


def test_a_mesh_that_divides_nothing_replicates() -> None:
    odd = two_products(7)
    plan = planned(odd)
    assert plan.splits is not None and {p for (p,) in plan.splits.placements} == {"R"}
    assert plan.check["moved_bytes"] == 0


def test_cancelled_before_a_plan() -> None:
    with pytest.raises(CancelledError):
        loadmaster.plan(two_products(2), budget_bytes=PLENTY, cancelled=lambda: True, progress=False)


def test_ties_without_a_common_choice_are_refused() -> None:
    problem = two_products(4)
    x = replace(problem.tensors[0], tie="t")
    tensors = (x, replace(problem.tensors[1], tie="t"), *problem.tensors[2:])
    shapes = replace(problem, tensors=(replace(x, shape=(4, 63)), *tensors[1:]), replicas=False)
    with pytest.raises(InputError, match=r"tie.*no placement in common"):
        loadmaster.plan(
            replace(shapes, tensors=(replace(x, shape=(5, 64)), replace(tensors[1], shape=(64, 5)), *tensors[2:])),
            budget_bytes=PLENTY,
            progress=False,
        )
