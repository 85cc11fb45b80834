"""What plans of graph layers prove, against every schedule in every tile: optima, bounds and verdicts, to the byte."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from loadmaster.models.graph.checker import check_plan
from loadmaster.models.graph.device import GraphHardware, TemplateTiles
from loadmaster.models.graph.hot_rows import as_many_as_fit, gather_us
from loadmaster.models.graph.library import layer
from loadmaster.models.graph.orders import orders
from loadmaster.models.graph.plan import GraphPlan
from loadmaster.models.graph.problem import FeatureStore, GraphProblem
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.residence import peak_bytes
from loadmaster.models.graph.schedule import Schedule, Tiles
from loadmaster.models.graph.sequence import in_sequence
from loadmaster.models.graph.statistics import GraphStatistics
from loadmaster.models.graph.tracing import Edges, Nodes, Traced, per_relation, traced
from loadmaster.planner.graph.driver import plan_graph
from loadmaster.planner.options import PlanOptions
from tests.models.graph import enumeration, problems

SOME_TILES = (
    TemplateTiles(),
    TemplateTiles(gemm=Tiles(rows=(16, 128)), traverse=Tiles(warps=(8,))),
    TemplateTiles(*[Tiles(rows=(64,), columns=(64,), warps=(4,))] * 5),
)


@cache
def program(name: str, width: int) -> Program:
    """A layer of few values."""
    if name == "rgcn":
        return layer("rgcn", width, width)

    def weighed(nodes: Nodes, edges: Edges, weights: Any) -> Traced:
        found: Traced = edges.sum(edges.source(nodes.h) @ weights.W[edges.relation])
        return found

    return traced(weighed, nodes={"h": width}, weights={"W": per_relation(width, width)})


@cache
def all_schedules(forward: Program, training: bool) -> list[tuple[Program, list[Schedule]]]:
    """Of every order."""
    problem = problems.problem(forward, 0, training=training, feature_gradients=False)
    steps = [problem.step(order.program) for order in orders(forward)]
    return [(step, [*enumeration.schedules(problem, step)]) for step in steps]


@cache
def statistics(seed: int) -> GraphStatistics:
    """Of a few graphs: of one relation with nearly all edges, and of many with few."""
    return problems.statistics(seed, nodes=40 << seed, edges=300 << (2 * seed), relations=1 + 7 * seed)


def hardware(rng: random.Random) -> GraphHardware:
    """One whose constants are anything from 1/1000 to 1000 times those of a GPU."""
    few = problems.hardware(rng.randrange(100))
    if rng.random() < 0.5:
        few = replace(few, dram_gbps=10 ** rng.uniform(-3, 4), step_us=10 ** rng.uniform(-3, 4))
        few = replace(few, matrix_tflops=(10 ** rng.uniform(-5, 2), 10 ** rng.uniform(-5, 2)))
    return replace(few, tiles=rng.choice(SOME_TILES))


def random_problem(seed: int) -> GraphProblem:
    """Small graphs; with feature rows on the host in some, of up to a GiB each. What takes long to plan is rare."""
    rng = random.Random(seed)
    forward = program("rgcn" if seed % 10 == 1 else "weighed", rng.choice([4, 64]))
    store = None
    if rng.random() < 0.3:
        store = FeatureStore(400, rng.choice([256, rng.randint(1, 1 << 30)]), 1_000, 10 ** rng.uniform(-1, 2))
    return GraphProblem(
        "small",
        forward,
        statistics(rng.randrange(4)),
        hardware(rng),
        training=seed % 10 == 2,
        feature_gradients=False,
        element_bytes=rng.choice([2, 4]),
        store=store,
    )


def every(problem: GraphProblem) -> Iterator[tuple[int, float]]:
    """Bytes without hot rows, and microseconds without the link, of all schedules in their best tiles and sequence."""
    for step, schedules in all_schedules(problem.program, problem.training):
        for schedule in schedules:
            found = in_sequence(problem, step, schedule.kernels)
            assert found is not None and found.is_least
            yield peak_bytes(problem, step, found.schedule), enumeration.time_us(problem, step, schedule)


def planned(problem: GraphProblem, budget_bytes: int) -> GraphPlan:
    return plan_graph(problem, PlanOptions(budget_bytes=budget_bytes, gap=0.0, time_limit_s=60))


def assert_true(problem: GraphProblem, plan: GraphPlan, best_us: float | None) -> None:
    """What it says is true."""
    if plan.status == "infeasible":
        assert best_us is None
        return
    assert best_us is not None and plan.objective is not None and plan.bound is not None
    assert check_plan(problem, plan).ok
    assert plan.bound <= best_us * (1 + 1e-9)
    assert plan.objective >= best_us * (1 - 1e-9)
    if plan.status == "optimal":
        assert plan.objective <= best_us * (1 + 1e-6)


def assert_proofs_hold(seed: int, *, everywhere: bool) -> None:
    """At the peak of the best schedule, one byte below it, at the least peak of all, one byte below; and where it says
    that a plan works."""
    problem = random_problem(seed)
    store = problem.store
    rows = 0 if store is None else store.rows
    tried = [*every(problem)]

    def best_under(budget_bytes: int) -> float | None:
        fits = [
            took + gather_us(problem, min(rows, as_many_as_fit(problem, budget_bytes - peak)))
            for peak, took in tried
            if peak <= budget_bytes
        ]
        return min(fits, default=None)

    least = min(peak for peak, _ in tried)
    best_peak = min(tried, key=lambda found: found[1])[0] + (0 if store is None else rows * store.row_bytes)
    budgets = [best_peak, best_peak - 1, least, least - 1]
    if everywhere:
        largest = planned(problem, 1 << 60)
        assert_true(problem, largest, best_under(1 << 60))
        peak = int(largest.check["peak_bytes"])
        budgets += [peak, peak - 1]
    else:
        budgets = [budgets[seed % 4]]
    for budget_bytes in budgets:
        plan = planned(problem, budget_bytes)
        assert_true(problem, plan, best_under(budget_bytes))
        if plan.infeasibility is not None:
            works = plan.infeasibility.minimum_budget_bytes
            assert works >= least
            assert planned(problem, works).status != "infeasible"


@pytest.mark.parametrize("seed", range(6))
def test_what_is_proved_is_true(seed: int) -> None:
    assert_proofs_hold(seed, everywhere=True)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(1, 6))
def test_what_is_proved_is_true_of_many(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        assert_proofs_hold(seed, everywhere=False)
