"""Sizes beyond what can be planned are refused with what can be; a schedule is there whatever the time."""

from __future__ import annotations

import pytest

from loadmaster.errors import InputError
from loadmaster.models.collective.bounds import all_bounds, lower_bound
from loadmaster.models.collective.checker import check, check_plan
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.instance import Chunk
from loadmaster.models.collective.problem import Collective, CollectiveProblem
from loadmaster.models.collective.proof import prove
from loadmaster.planner.collective.baseline import MOST_DELIVERIES, deliveries, expect_plannable
from loadmaster.planner.collective.driver import plan_collective
from loadmaster.planner.collective.greedy import searcher
from loadmaster.planner.collective.routes import sequential
from loadmaster.planner.collective.sketches import candidates
from loadmaster.planner.effort import Effort
from loadmaster.planner.options import PlanOptions
from tests.models.collective.tiny import EVEN, problem, ring, switched


@pytest.mark.parametrize("collective", [*EVEN, "custom"])
def test_deliveries_are_chunks_times_the_ranks_that_must_get_them(collective: Collective) -> None:
    more: dict[str, object] = {"root": 1} if collective in ("broadcast", "reduce", "scatter", "gather") else {}
    if collective == "custom":
        more["custom"] = (Chunk(8, (0,), (0, 1, 2)), Chunk(8, (1, 2), (2,)))
    posed = problem(ring(4), collective, 96, **more)
    count = 1 if collective == "custom" else 3
    chunks = instance_of(posed, 96, count).chunks
    # A sum is delivered to who wants it, from who has its last part: not counted is one rank that had it at first.
    wanted = [
        len(chunk.targets) - 1 if chunk.reduces and len(chunk.targets) > 1 else len(set(chunk.targets))
        for chunk in chunks
        if chunk.reduces
    ]
    copied = [len(set(chunk.targets) - set(chunk.sources)) for chunk in chunks if not chunk.reduces]
    if collective in ("reduce_scatter", "reduce"):
        # As many parts move as sums lack.
        wanted = [len(chunk.sources) - 1 for chunk in chunks]
    assert deliveries(posed, count) == sum(wanted) + sum(copied)


@pytest.mark.parametrize(
    ("posed", "field", "remedy"),
    [
        (problem(ring(8), "allgather", 8 * 32768, chunk_counts=(32768,)), "chunk_counts", "at most 4681"),
        (problem(ring(8), "broadcast", 1 << 20, chunk_counts=(1, 1 << 16), root=0), "chunk_counts", "at most 37449"),
        (problem(ring(600), "alltoall", 600 * 64), "topology", "at most 512 ranks"),
    ],
)
def test_what_is_too_large_is_refused_with_what_can_be_planned(
    posed: CollectiveProblem, field: str, remedy: str
) -> None:
    with pytest.raises(InputError, match=remedy) as refused:
        plan_collective(posed, PlanOptions(time_limit_s=0.1))
    assert refused.value.field == field


def test_the_largest_that_is_named_passes() -> None:
    most = MOST_DELIVERIES // (8 * 7)
    expect_plannable(problem(ring(8), "allgather", 8 * most, chunk_counts=(most,)))
    with pytest.raises(InputError):
        expect_plannable(problem(ring(8), "allgather", 8 * (most + 1), chunk_counts=(most + 1,)))


@pytest.mark.parametrize("collective", ["allgather", "alltoall"])
def test_without_time_the_plainest_schedule_is_there(collective: Collective) -> None:
    instance = instance_of(problem(switched(2, 2), collective, 64), 64, 1)
    assert searcher(instance).search(bound_ns=0, seconds=0.0) == sequential(instance)


def test_without_time_sums_are_there_too() -> None:
    instance = instance_of(problem(switched(2, 2), "allreduce", 64), 64, 1)
    found = searcher(instance).search(bound_ns=0, seconds=0.0)
    assert found is not None
    assert check(instance, found).ok


def test_symmetries_are_looked_for_while_there_is_time() -> None:
    posed = problem(switched(2, 4), "allgather", 64)
    assert any(sketch.symmetry for sketch in candidates(posed))
    hurried = candidates(posed, lambda: True)
    assert hurried and not any(sketch.symmetry for sketch in hurried)


def test_bounds_that_are_out_of_time_still_hold() -> None:
    posed = problem(switched(2, 4), "allgather", 64)
    instance = instance_of(posed, 64, 1)
    first, best = next(all_bounds(instance)), lower_bound(instance)
    assert lower_bound(instance, over=lambda: True) == first
    assert 0 < first.ns < best.ns
    assert prove(posed, 64, lambda: True).bound.ns <= prove(posed, 64).bound.ns


def test_every_phase_asks_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no time at all there is a plan: the plainest, with the bounds that come first."""
    posed = problem(switched(2, 2), "allgather", 64)
    monkeypatch.setattr(Effort, "elapsed_s", property(lambda _: 1e6))
    plan = plan_collective(posed, PlanOptions(method="greedy", gap=0.0, time_limit_s=1.0))
    assert plan.stopped_by == "time"
    assert check_plan(posed, plan).ok
