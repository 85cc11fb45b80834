"""The checker of graph plans: what it counts, and plans that do not hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.graph.checker import check_plan
from loadmaster.models.graph.hot_rows import as_many_as_fit, gather_us, hit_rate, segments
from loadmaster.models.graph.inline import Inline, base
from loadmaster.models.graph.library import layer
from loadmaster.models.graph.limits import enough_bytes, least_bytes, spread, summary, whole_bytes
from loadmaster.models.graph.plan import GraphPlan
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.residence import graph_bytes, over_time, value_bytes
from loadmaster.planner.graph.driver import plan_graph
from loadmaster.planner.options import PlanOptions
from tests.models.graph import problems

PLENTY = 1 << 30


def planned(problem: GraphProblem, budget_bytes: int = PLENTY, method: str = "auto") -> GraphPlan:
    return plan_graph(problem, PlanOptions(budget_bytes=budget_bytes, method=method))


def held_by_hand(problem: GraphProblem, plan: GraphPlan) -> list[int]:
    """Bytes at each kernel: a value lies there if it is stored by then, and read then or later, or a result."""
    program, schedule = plan.program, plan.schedule
    assert program is not None and schedule is not None
    needs = Inline(program, frozenset(schedule.kept))
    reads = [{r for n in kernel.stores for r in needs.to_make(n).reads} for kernel in schedule.kernels]
    results = {base(program, n) for n in program.results}
    found = []
    for at in range(len(schedule.kernels)):
        there = graph_bytes(problem)
        for n, value in enumerate(program.values):
            stored = schedule.kept.get(n)
            if value.op in ("feature", "parameter", "degree"):
                is_there = True
            elif value.op == "gradient":
                is_there = at >= schedule.forward_count
            elif stored is None or stored > at:
                is_there = False
            else:
                is_there = stored == at or n in results or any(n in reads[k] for k in range(at, len(reads)))
            there += value_bytes(problem, program, n) * is_there
        found.append(there)
    return found


@pytest.mark.parametrize("name", ["rgcn", "rgat", "hgt", "gat"])
@pytest.mark.parametrize("training", [False, True])
def test_memory_is_what_lies_there_while_each_kernel_runs(name: str, training: bool) -> None:
    problem = problems.problem(layer(name, 4, 4), 0, training=training)
    plan = planned(problem, method="hector")
    assert plan.program is not None and plan.schedule is not None
    assert over_time(problem, plan.program, plan.schedule).tolist() == held_by_hand(problem, plan)
    assert check_plan(problem, plan).peak_bytes == max(held_by_hand(problem, plan))


def _kernels(change: Callable[[tuple[object, ...]], tuple[object, ...]]) -> Callable[[GraphPlan], GraphPlan]:
    def changed(plan: GraphPlan) -> GraphPlan:
        assert plan.schedule is not None
        return replace(plan, schedule=replace(plan.schedule, kernels=change(plan.schedule.kernels)))  # type: ignore[arg-type]

    return changed


def _another_program(plan: GraphPlan) -> GraphPlan:
    return replace(plan, program=layer("gat", 4, 4))


def _late(plan: GraphPlan) -> GraphPlan:
    """A value of the forward pass, stored by the backward pass."""
    assert plan.schedule is not None
    return replace(plan, schedule=replace(plan.schedule, forward_count=plan.schedule.forward_count - 1))


WRONG: list[tuple[str, Callable[[GraphPlan], GraphPlan]]] = [
    ("(G1)", lambda plan: replace(plan, choices={"nothing": "chosen"})),
    ("(G1)", lambda plan: replace(plan, choices={"aggregate7": "as written", "linear4": "for each edge"})),
    ("(G1)", _another_program),
    ("(S1)", _kernels(lambda kernels: kernels[:-1])),
    ("(S2)", _kernels(lambda kernels: kernels[::-1])),
    ("(G2)", _late),
    ("(G3)", lambda plan: replace(plan, hot_rows=1)),
    ("(G3)", lambda plan: replace(plan, budget_bytes=1_000)),
]


@pytest.mark.parametrize(("rule", "change"), WRONG)
def test_a_plan_that_does_not_hold_is_refused_by_its_rule(rule: str, change: Callable[[GraphPlan], GraphPlan]) -> None:
    problem = problems.rgcn(0, training=True)
    verdict = check_plan(problem, change(planned(problem)))
    assert not verdict.ok
    assert any(violation.startswith(rule) for violation in verdict.violations), verdict.violations


def test_a_plan_of_another_problem_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        check_plan(problems.rgcn(1), planned(problems.rgcn(0)))
    assert caught.value.field == "problem_sha256"


def test_an_infeasible_plan_is_not_checked() -> None:
    problem = problems.rgcn(0)
    with pytest.raises(InputError, match="there is no schedule"):
        check_plan(problem, planned(problem, 1_000))


def test_kernels_and_the_link_make_the_step() -> None:
    problem = problems.with_store(0)
    plan = planned(problem, enough_bytes(problem) + 100 * 256)
    verdict = check_plan(problem, plan)
    assert 0 < plan.hot_rows < 400
    assert verdict.gather_us > 0
    assert verdict.objective == pytest.approx(sum(k.time_us for k in plan.kernels) + verdict.gather_us)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 50), st.integers(0, 400), st.integers(0, 400))
def test_more_hot_rows_are_never_slower_and_each_saves_less(seed: int, few: int, more: int) -> None:
    problem = problems.with_store(seed)
    few, more = sorted((few, more))
    assert hit_rate(problem, few) <= hit_rate(problem, more)
    assert gather_us(problem, more) <= gather_us(problem, few)
    savings = [saved for _, saved in segments(problem)]
    assert all(b <= a * (1 + 1e-6) + 1e-9 for a, b in itertools.pairwise(savings))
    assert sum(rows for rows, _ in segments(problem)) == 400
    assert gather_us(problem, 0) - gather_us(problem, 400) == pytest.approx(
        sum(rows * saved for rows, saved in segments(problem))
    )


def test_hot_rows_fill_the_room_that_there_is() -> None:
    problem = problems.with_store(0)
    assert [as_many_as_fit(problem, room) for room in (-1, 255, 256, 1_000, 1 << 40)] == [0, 0, 1, 3, 400]
    assert as_many_as_fit(problems.rgcn(0), 1 << 40) == 0


def test_budgets_lie_between_what_is_needed_and_the_whole() -> None:
    problem = problems.rgcn(0, training=True)
    least, enough, whole = least_bytes(problem), enough_bytes(problem), whole_bytes(problem)
    assert least <= enough <= whole
    found = spread(problem, 5)
    assert found == sorted(found)
    assert (found[0], found[-1]) == (enough, whole)
    assert planned(problem, enough).status in ("optimal", "feasible")


def test_the_summary_says_what_there_is() -> None:
    found = summary(problems.with_store(0))
    assert found.figures["orders"] == 3
    assert found.figures["least_budget_bytes"] <= found.figures["enough_bytes"] <= found.figures["whole_bytes"]
    assert dict(found.rows)["features"].endswith("400 rows, 1000 read a step at 1 GB/s")
