"""The tiles of kernels: stated by the device, chosen by plans, held by the checker."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from loadmaster.errors import InputError
from loadmaster.models.graph.checker import check_plan, fastest_tiles, kernel_costs
from loadmaster.models.graph.datasets import data_set, generated
from loadmaster.models.graph.device import FASTEST, GraphHardware, TemplateTiles, graph_hardware
from loadmaster.models.graph.documents import read_problem, write_problem
from loadmaster.models.graph.library import layer
from loadmaster.models.graph.lowering import greedy_schedule
from loadmaster.models.graph.plan import GraphPlan
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.schedule import EVERY_TILE, Schedule, Tile, Tiles
from loadmaster.models.graph.statistics import statistics_of
from loadmaster.planner.graph.driver import plan_graph
from loadmaster.planner.options import PlanOptions
from tests.models.graph import problems

H200 = graph_hardware("h200")


def on(tiles: TemplateTiles, of: GraphHardware = H200) -> GraphProblem:
    """A step of training of few edges of many relations: tiles of many rows are mostly empty."""
    data = data_set("aifb")
    statistics = statistics_of(*generated("aifb"), data.node_type_counts, data.relations)
    return GraphProblem("rgcn", layer("rgcn", 64, 64), statistics, replace(of, tiles=tiles))


def planned(problem: GraphProblem) -> GraphPlan:
    return plan_graph(problem, PlanOptions(budget_bytes=1 << 40, gap=0.0, time_limit_s=60))


def tiled(plan: GraphPlan, tile: Tile, at: int | None = None) -> GraphPlan:
    """The same with all kernels, or one of them, in this tile."""
    assert plan.schedule is not None
    kernels = [replace(k, tile=tile) if at in (None, n) else k for n, k in enumerate(plan.schedule.kernels)]
    return replace(plan, schedule=replace(plan.schedule, kernels=tuple(kernels)))


def test_no_tiles_that_pass_the_check_are_faster_than_those_of_an_optimal_plan() -> None:
    problem = on(TemplateTiles())
    plan = planned(problem)
    assert plan.status == "optimal" and plan.objective is not None and plan.schedule is not None
    assert plan.objective < 0.99 * (planned(on(FASTEST)).objective or 0.0)
    for tile in itertools.product(EVERY_TILE.rows, EVERY_TILE.columns[::2], EVERY_TILE.warps):
        for at in (None, *range(len(plan.schedule.kernels))):
            verdict = check_plan(problem, tiled(plan, Tile(*tile), at))
            assert verdict.ok, verdict.violations
            assert verdict.objective >= plan.objective * (1 - 1e-9)


@pytest.mark.parametrize(
    ("tile", "said"),
    [
        (Tile(24, 64, 4), "24 rows, 64 columns and 4 warps; kernels have rows: 16, 32, 64, 128;"),
        (Tile(64, 48, 4), "64 rows, 48 columns and 4 warps; kernels have"),
        (
            Tile(64, 64, 3),
            "and 3 warps; kernels have rows: 16, 32, 64, 128; columns: 16, 32, 64, 128, 256; warps: 4, 8:",
        ),
    ],
)
def test_a_tile_that_no_kernel_has_is_refused(tile: Tile, said: str) -> None:
    problem = problems.rgcn(0, training=True)
    verdict = check_plan(problem, tiled(planned(problem), tile, 0))
    assert any(v.startswith("(S6)") and said in v and "take some of these" in v for v in verdict.violations)


def test_a_tile_that_the_device_leaves_out_is_refused() -> None:
    problem = on(FASTEST)
    plan = planned(problem)
    assert check_plan(problem, plan).ok
    (violation, *_) = check_plan(problem, tiled(plan, Tile(16, 64, 4))).violations
    assert violation.startswith("(G4)") and "h200 has rows: " in violation


def test_a_device_has_no_tiles_that_no_kernel_has() -> None:
    document = write_problem(on(FASTEST))
    assert read_problem(document) == on(FASTEST)
    document["hardware"]["tiles"]["gemm"]["rows"] = [24, 128]
    with pytest.raises(InputError) as caught:
        read_problem(document)
    assert caught.value.field == "hardware.tiles.gemm.rows"
    assert "24" in str(caught.value) and "Use some of 16, 32, 64, 128." in str(caught.value)


def test_a_document_that_states_no_tiles_has_all() -> None:
    document = write_problem(on(TemplateTiles()))
    assert "tiles" not in document["hardware"]
    assert read_problem(document).hardware.tiles.of("gemm") == EVERY_TILE


@pytest.mark.parametrize("seed", range(2))
def test_the_tiles_that_are_taken_are_the_best_of_all(seed: int) -> None:
    problem = problems.rgcn(seed)
    few = TemplateTiles(gemm=Tiles(rows=(32, 64)), traverse=Tiles(warps=(4,)))
    for tiles in (TemplateTiles(), few):
        there = replace(problem, hardware=replace(problem.hardware, tiles=tiles))
        step = there.step(there.program)
        schedule = fastest_tiles(there, step, greedy_schedule(step))
        of = tiles.of
        for at, kernel in enumerate(schedule.kernels):
            assert kernel.tile in of(kernel.template)
            least = min(kernel_us(there, schedule, at, Tile(*t)) for t in every(of(kernel.template)))
            assert kernel_us(there, schedule, at, kernel.tile) == pytest.approx(least, rel=1e-12)


def every(tiles: Tiles) -> list[tuple[int, int, int]]:
    return [*itertools.product(tiles.rows, tiles.columns[:1], tiles.warps)]


def kernel_us(problem: GraphProblem, schedule: Schedule, at: int, tile: Tile) -> float:
    kernels = [replace(k, tile=tile) if n == at else k for n, k in enumerate(schedule.kernels)]
    step = problem.step(problem.program)
    return kernel_costs(problem, step, replace(schedule, kernels=tuple(kernels)))[at].time_us
