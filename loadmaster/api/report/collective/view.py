"""A collective plan joined with its problem and its replay, as words and pictures need it."""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.api.report.words import expect_held
from loadmaster.models.collective.checker import PlanCheck, check_plan
from loadmaster.models.collective.plan import Algorithm, CollectivePlan
from loadmaster.models.collective.problem import CollectiveProblem


@dataclass(frozen=True)
class CollectiveView:
    """A plan and its replay: ``check.algorithms`` go with ``plan.algorithms``, one by one."""

    problem: CollectiveProblem
    plan: CollectivePlan
    check: PlanCheck


def view(problem: CollectiveProblem, plan: CollectivePlan) -> CollectiveView:
    """Replay every algorithm of a plan. Raises InputError if the plan is of another problem, holds no algorithm, or
    does not pass the checker."""
    verdict = check_plan(problem, plan)
    expect_held(plan, verdict)
    return CollectiveView(problem, plan, verdict)


def algorithm_gbps(algorithm: Algorithm) -> float | None:
    """Algorithm bandwidth in GB/s: the largest buffer of a rank over the time; None where nothing takes time."""
    return algorithm.size_bytes / algorithm.time_ns if algorithm.time_ns else None


def bus_gbps(problem: CollectiveProblem, algorithm: Algorithm) -> float | None:
    """Bus bandwidth in GB/s: what every rank's link carries if the work is spread evenly, whatever the number of ranks.
    None where there is no such figure (alltoallv, custom)."""
    plain, count = algorithm_gbps(algorithm), problem.topology.rank_count
    match problem.collective:
        case "allreduce":
            factor = 2 * (count - 1) / count
        case "allgather" | "reduce_scatter" | "alltoall" | "scatter" | "gather":
            factor = (count - 1) / count
        case "broadcast" | "reduce":
            factor = 1.0
        case _:
            return None
    return None if plain is None else factor * plain
