"""Check of a whole plan: the replay by its kind's checker, and the comparison of all else that the plan states."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from loadmaster.errors import InputError
from loadmaster.models.documents import expect_problem
from loadmaster.models.envelope import Plan
from loadmaster.models.kind import Kind, Problem, Verdict, resolve
from loadmaster.models.statements import Share, Statements, compared, recomputed

PlanT = TypeVar("PlanT", bound=Plan)


@dataclass(frozen=True)
class NoPlan:
    """Verdict on an infeasible answer, for which nothing is replayed."""

    violations: tuple[str, ...] = ()
    objective: float = math.inf

    @property
    def ok(self) -> bool:
        """True if nothing in the answer is known to be false."""
        return not self.violations

    def summary(self) -> dict[str, object]:
        """Fields that a plan document records of the check."""
        return {"ok": self.ok}


@dataclass(frozen=True)
class Checked:
    """Result of a check.

    Attributes:
        verdict: of the kind's checker, with false statements of the plan among its violations; or :class:`NoPlan`.
        trusted: paths of the plan's statements that are taken on trust; empty where the replay fails.
        least: lower bound of all plans' objective that is known without a search; None where there is none.
    """

    verdict: Verdict
    trusted: tuple[str, ...] = ()
    least: float | None = None


def checked(kind: Kind, problem: Problem, plan: Plan) -> Checked:
    """Replay a plan under its own limit and its problem's, and compare all that it states with what follows. Raises
    InputError if the plan belongs to another problem, or its fields do not go together."""
    if plan.kind != kind.name:
        remedy = "Plan this problem again, or give the problem the plan was made for."
        raise InputError("kind", plan.kind, f"is another kind than the problem's, {kind.name}", remedy)
    expect_problem(plan.problem_sha256, problem.sha256)
    replayed: Verdict | None = None
    if plan.status != "infeasible":
        replayed = resolve(kind.check)(problem, under_both_limits(kind, problem, plan))
        if not replayed.ok:
            return Checked(replayed)
    held = compared(_statements(kind, plan), _limit(kind), problem, plan, replayed)
    verdict = NoPlan(held.wrong) if replayed is None else _with_violations(replayed, held.wrong)
    return Checked(verdict, held.trusted, held.least)


def restated(kind: Kind, problem: Problem, plan: PlanT, verdict: Verdict) -> PlanT:
    """Fill in what follows from changed decisions, limit or bound of a feasible plan; the verdict is of its replay."""
    follows = recomputed(_statements(kind, plan), _limit(kind), problem, plan, verdict).fields
    plain: dict[str, Any] = {
        f.name: float(follows[f.name]) if isinstance(follows[f.name], Share) else follows[f.name]
        for f in fields(plan)
        if f.name in follows
    }
    return replace(plan, **plain)


def under_both_limits(kind: Kind, problem: Problem, plan: PlanT) -> PlanT:
    """Set the plan's limit to that of its problem where the latter is stricter."""
    stated = None if kind.limit is None else kind.limit.stated(problem)
    if kind.limit is None or stated is None or kind.limit.of_plan(plan) <= stated:
        return plan
    return kind.limit.set(plan, stated)


def _statements(kind: Kind, plan: Plan) -> Statements:
    if kind.statements is None:
        return Statements(frozenset(f.name for f in fields(plan)) - {f.name for f in fields(Plan)})
    found: Statements = resolve(kind.statements)
    return found


def _limit(kind: Kind) -> str | None:
    return None if kind.limit is None else kind.limit.field


def _with_violations(verdict: Verdict, more: Collection[str]) -> Verdict:
    if not more:
        return verdict
    judged: Any = verdict
    changes: dict[str, Any] = {"violations": (*judged.violations, *more)}
    if any(f.name == "ok" for f in fields(judged)):
        changes["ok"] = False
    changed: Verdict = replace(judged, **changes)
    return changed
