"""A collective plan joined with its problem and its replay, as words and pictures need it."""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.api.report.words import expect_held
from loadmaster.models.collective.checker import PlanCheck, check_plan
from loadmaster.models.collective.plan import CollectivePlan
from loadmaster.models.collective.problem import CollectiveProblem


@dataclass(frozen=True)
class CollectiveView:
    """A plan and its replay: ``check.algorithms`` go with ``plan.algorithms``, one by one."""

    problem: CollectiveProblem
    plan: CollectivePlan
    check: PlanCheck


def view(problem: CollectiveProblem, plan: CollectivePlan) -> CollectiveView:
    """Replay every algorithm of a plan.

    Raises:
        InputError: the plan is of another problem, holds no algorithm, or does not pass the checker.
    """
    verdict = check_plan(problem, plan)
    expect_held(plan, verdict)
    return CollectiveView(problem, plan, verdict)
