"""The program of an index plan's problem: a configuration for each shard."""

from __future__ import annotations

from loadmaster.api.report.index.view import IndexView
from loadmaster.api.report.programs import mps_file
from loadmaster.models.index.formulation import formulate
from loadmaster.models.index.serving import options

__all__ = ["mps"]


def mps(seen: IndexView) -> bytes:
    """The program under the plan's budget. What only the check can tell is not in it."""
    problem, budget_bytes = seen.problem, seen.plan.budget_bytes
    of = [options(problem, shard) for shard in range(len(problem.shards))]
    formulated = formulate(problem, of, budget_bytes, unit_us=1.0)
    return mps_file(formulated.program, seen.plan, f"configurations of shards, hosts within {budget_bytes} bytes")
