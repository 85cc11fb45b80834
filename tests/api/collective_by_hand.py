"""Collectives planned without a planner, for tests of the service and the command line.

A worker's process that loads :class:`HandFloor` has this planner in the real one's place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from loadmaster.api.planning import FloorPlanner
from loadmaster.models.collective.checker import check
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.documents import write_problem
from loadmaster.models.collective.plan import Algorithm, CollectivePlan, Unreachable
from loadmaster.models.collective.problem import CollectiveProblem
from loadmaster.models.collective.proof import prove
from loadmaster.models.kinds import KINDS
from loadmaster.planner import PlanOptions, PlanProgress
from loadmaster.solvers.solution import relative_gap
from tests.models.collective.schedules import ring_allgather
from tests.models.collective.tiny import problem, ring


def ring_document(name: str = "a ring", ranks: int = 4, size_bytes: int = 4000) -> dict[str, Any]:
    """An AllGather on a ring, as its document."""
    return {**write_problem(problem(ring(ranks), "allgather", size_bytes)), "name": name}


def plan_by_hand(
    asked: CollectiveProblem,
    options: PlanOptions,
    *,
    on_progress: Callable[[PlanProgress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> CollectivePlan:
    """Round the ring, for every size; seed 2 says that there is no plan."""
    if on_progress is not None:
        on_progress(PlanProgress(0.0, "by hand", "round the ring"))
    algorithms = []
    for size_bytes in asked.sizes_bytes:
        found = instance_of(asked, size_bytes, 1)
        sends = ring_allgather(found)
        time_ns = check(found, sends).time_ns
        proof = prove(asked, size_bytes)
        proved = (proof.bound.ns, proof.bound.by, proof.throughput_ns)
        algorithms.append(Algorithm(size_bytes, 1, "direct", sends, time_ns, *proved, 0, "by hand", 0.0))
    total_us, bound_us = (sum(getattr(a, name) for a in algorithms) / 1e3 for name in ("time_ns", "bound_ns"))
    gap = relative_gap(total_us, bound_us)
    within = gap is not None and gap <= options.gap
    none = options.seed == 2
    return CollectivePlan(
        name=asked.name,
        problem_sha256=asked.sha256,
        status="infeasible" if none else "optimal" if within else "feasible",
        objective=None if none else total_us,
        bound=None if none else bound_us,
        gap=None if none else gap,
        unit="us",
        method="by hand",
        stopped_by="proof" if none else "gap" if within else "method",
        seconds={"build": 0.0, "solve": 0.5, "check": 0.0},
        solver={"name": "none", "version": "0"},
        check={} if none else {"ok": True},
        algorithms=() if none else tuple(algorithms),
        infeasibility=Unreachable(1, 0, (1, 2), "Chunk 1 cannot reach rank 0.") if none else None,
        options=options.to_document(),
    )


class HandFloor(FloorPlanner):
    """The planner floor, collectives by hand."""

    def __init__(self) -> None:
        KINDS["collective"] = replace(KINDS["collective"], plan=f"{plan_by_hand.__module__}:{plan_by_hand.__name__}")
