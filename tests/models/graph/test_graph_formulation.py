"""The program of candidate kernels beside its twin in PuLP, and beside all schedules of small programs."""

from __future__ import annotations

from collections.abc import Sequence

import pulp
import pytest

from loadmaster.models.graph.candidates import Candidates, candidates
from loadmaster.models.graph.costs import Costs, least_us
from loadmaster.models.graph.formulation import formulate
from loadmaster.models.graph.hot_rows import segments
from loadmaster.models.graph.inline import base
from loadmaster.models.graph.library import layer
from loadmaster.models.graph.orders import orders
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.residence import lasting_bytes, peak_bytes, value_bytes
from loadmaster.models.graph.schedule_rules import broken_rules
from loadmaster.models.graph.sequence import in_sequence
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import SolveOptions, SolverStatus
from tests.models import cbc
from tests.models.graph import enumeration, problems

EXACT = SolveOptions(time_limit_s=60, gap=1e-9)


def all_candidates(problem: GraphProblem, *, by_time_alone: bool) -> list[Candidates]:
    return [
        candidates(
            Costs(problem.step(order.program), problem.statistics, problem.element_bytes, problem.hardware),
            by_time_alone=by_time_alone,
        )
        for order in orders(problem.program)
    ]


def costs_of(problem: GraphProblem, of: Candidates) -> Costs:
    return Costs(of.program, problem.statistics, problem.element_bytes, problem.hardware)


def twin(problem: GraphProblem, of: Sequence[Candidates], budget_bytes: int | None) -> float | None:
    """The optimum of the same program, written constraint by constraint; None where there is none."""
    p = pulp.LpProblem("graph", pulp.LpMinimize)
    x = [pulp.LpVariable(f"x{o}", cat="Binary") for o in range(len(of))]
    p += pulp.lpSum(x) == 1
    hot = segments(problem)
    z = [pulp.LpVariable(f"z{h}", 0, rows) for h, (rows, _) in enumerate(hot)]
    hot_bytes = pulp.lpSum(z) * (problem.store.row_bytes if problem.store else 0)
    costs = [-saved * column for column, (_, saved) in zip(z, hot, strict=True)]
    for o, order in enumerate(of):
        y = [pulp.LpVariable(f"y{o}_{c}", cat="Binary") for c in range(len(order.found))]
        values = sorted(order.must | order.may)
        q = {v: pulp.LpVariable(f"q{o}_{v}", 0, len(values)) for v in values}
        pairs = [*zip(y, order.found, strict=True)]
        costs += [c.time_us * column for column, c in pairs]
        stored = {v: pulp.lpSum(column for column, c in pairs if v in c.kernel.stores) for v in values}
        for v in values:
            p += stored[v] == x[o] if v in order.must else stored[v] <= x[o]
        for column, c in pairs:
            for v in c.reads:
                p += column <= stored[v]
                for u in c.kernel.stores:
                    p += q[u] >= q[v] + 1 - (1 + len(values)) * (1 - column)
            for v in c.inline:
                p += column + stored[v] <= x[o]
            for u in c.kernel.stores:
                for v in c.kernel.stores:
                    p += q[u] - q[v] <= len(values) * (1 - column)
        if budget_bytes is not None:
            _fits(p, problem, order, x[o], pairs, hot_bytes, budget_bytes)
    p += pulp.lpSum(costs)
    return cbc.optimum(p)


def _fits(p, problem, order, x, pairs, hot_bytes, budget_bytes) -> None:  # type: ignore[no-untyped-def]
    step = order.program
    size = {n: value_bytes(problem, step, n) for n in range(len(step.values))}
    lasting = lasting_bytes(problem, step)
    gradients = sum(size[n] for n in step.given("gradient").values())
    waits = {v: pulp.LpVariable(f"l{x.name}_{v}", 0, 1) for v in order.must | order.may if v < step.forward_count}
    for column, c in pairs:
        backward = min(c.kernel.stores) >= step.forward_count
        if backward:
            for v in c.reads & waits.keys():
                p += waits[v] >= column
        held = lasting + gradients * backward + sum(size[v] for v in {*c.kernel.stores, *c.reads})
        p += held * column + lasting * (x - column) + hot_bytes <= budget_bytes
    for n in step.results:
        if base(step, n) in waits:
            p += waits[base(step, n)] >= x
    p += (lasting + gradients) * x + pulp.lpSum(size[v] * w for v, w in waits.items()) + hot_bytes <= budget_bytes


def optimum(problem: GraphProblem, of: Sequence[Candidates], budget_bytes: int | None) -> float | None:
    formulated = formulate(problem, of, budget_bytes, 100.0)
    solution = solve(formulated.program, EXACT)
    if solution.status is SolverStatus.INFEASIBLE:
        return None
    assert solution.objective is not None
    return solution.objective * formulated.scale


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("training", [False, True])
def test_the_program_and_its_twin_have_one_optimum(seed: int, training: bool) -> None:
    for problem in (problems.rgcn(seed, training=training), problems.problem(problems.scored(), seed)):
        of = all_candidates(problem, by_time_alone=True)
        assert optimum(problem, of, None) == pytest.approx(twin(problem, of, None), rel=1e-6)


@pytest.mark.parametrize("share", [0.4, 0.7, 0.9, 1.2])
def test_the_program_and_its_twin_agree_under_a_budget(share: float) -> None:
    for problem in (problems.with_store(1), problems.rgcn(2, training=True)):
        of = all_candidates(problem, by_time_alone=False)
        steps = [problem.step(order.program) for order in orders(problem.program)]
        whole = max(peak_bytes(problem, s, next(enumeration.schedules(problem, s))) for s in steps[:1])
        found, expected = optimum(problem, of, int(share * whole)), twin(problem, of, int(share * whole))
        assert (found is None) == (expected is None)
        if expected is not None:
            assert found == pytest.approx(expected, rel=1e-5, abs=1e-4)


SMALL = [
    lambda seed: problems.rgcn(seed),
    lambda seed: problems.rgcn(seed, element_bytes=2),
    lambda seed: problems.problem(problems.scored(), seed),
]


@pytest.mark.parametrize("small", range(len(SMALL)))
@pytest.mark.parametrize("seed", range(2))
def test_the_optimum_is_the_best_of_all_schedules(small: int, seed: int) -> None:
    assert_best_of_all(SMALL[small](seed))


@pytest.mark.slow
def test_the_optimum_of_attention_is_the_best_of_all_schedules() -> None:
    assert_best_of_all(problems.problem(layer("gat", 4, 4), 0))


def assert_best_of_all(problem: GraphProblem) -> None:
    best = {}
    for at, order in enumerate(orders(problem.program)):
        step = problem.step(order.program)
        best[at] = min(enumeration.time_us(problem, step, s) for s in enumeration.schedules(problem, step))
    of = all_candidates(problem, by_time_alone=True)
    assert optimum(problem, of, None) == pytest.approx(min(best.values()), rel=1e-6)
    # Every order by itself, too.
    for at, one in enumerate(of):
        assert optimum(problem, [one], None) == pytest.approx(best[at], rel=1e-6)
        assert least_us(costs_of(problem, one)) <= one.least_us + 1e-9 <= best[at] + 2e-9


@pytest.mark.parametrize("seed", range(2))
def test_the_optimum_of_a_step_of_training_is_the_best_of_all_schedules(seed: int) -> None:
    test = problems.rgcn(seed, training=True, feature_gradients=False)
    for order, one in zip(orders(test.program), all_candidates(test, by_time_alone=True), strict=True):
        step = test.step(order.program)
        best = min(enumeration.time_us(test, step, s) for s in enumeration.schedules(test, step))
        assert optimum(test, [one], None) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_kernels_that_no_schedule_of_the_least_time_has_can_be_left_out(seed: int) -> None:
    problem = problems.rgcn(seed, training=True)
    left_out = 0
    for of in all_candidates(problem, by_time_alone=True):
        least = optimum(problem, [of], None)
        assert least is not None
        fewer = of.within(least * (1 + 1e-9))
        assert optimum(problem, [fewer], None) == pytest.approx(least, rel=1e-6)
        left_out += len(of.found) - len(fewer.found)
    assert left_out


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("rgat", marks=pytest.mark.slow), "hgt"])
def test_what_the_program_takes_is_a_schedule_that_holds(name: str) -> None:
    problem = problems.problem(layer(name, 4, 4), 0, training=True)
    of = all_candidates(problem, by_time_alone=True)[:2]
    formulated = formulate(problem, of, None, 100.0)
    solution = solve(formulated.program, EXACT)
    assert solution.values is not None
    order, chosen = formulated.chosen(solution.values)
    step = of[order].program
    found = in_sequence(problem, step, [of[order].found[c].kernel for c in chosen])
    assert found is not None
    schedule = found.schedule
    assert broken_rules(step, schedule) == []
    assert enumeration.time_us(problem, step, schedule) == pytest.approx(solution.objective * 100.0, rel=1e-6)


def test_a_set_of_kernels_can_be_excluded() -> None:
    problem = problems.rgcn(0)
    of = all_candidates(problem, by_time_alone=True)
    formulated = formulate(problem, of, None, 100.0)
    first = solve(formulated.program, EXACT)
    assert first.values is not None and first.objective is not None
    order, chosen = formulated.chosen(first.values)
    second = solve(formulated.without(order, [[c] for c in chosen], "excluded").program, EXACT)
    assert second.values is not None and second.objective is not None
    assert second.objective >= first.objective
    assert formulated.chosen(second.values) != (order, chosen)
