"""Extras of frontiers: what a kind adds to them, and what they are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from loadmaster.api.report.measured import Measured
from loadmaster.models.envelope import Plan
from loadmaster.models.kind import Limit, Problem, resolve
from loadmaster.models.kinds import limit_of

if TYPE_CHECKING:
    from loadmaster.planner import Frontier, Price


@dataclass(frozen=True)
class Extras:
    """The columns and points that a kind adds to its frontiers, and what these are compared with.

    Attributes:
        objective: its name.
        baseline: the objective with more than enough of the limit, after its name.
        published: limit -> objective found by others, ``published_by`` whom.
        header, rows: further columns; a row for every plan.
        unplanned: the name of the step with nothing planned, the limit it takes, and its objective.
        restrictions: by name, the plans of the problem with fewer choices.
        prices: by limit, what a little more of each resource would give.
    """

    objective: str = "objective"
    baseline: tuple[str, float] | None = None
    published: Mapping[int, float] = field(default_factory=dict)
    published_by: str = ""
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    unplanned: tuple[str, int, float] | None = None
    restrictions: Mapping[str, Sequence[Plan]] = field(default_factory=dict)
    measured: Sequence[Measured] = ()
    prices: Mapping[int, Sequence[Price]] = field(default_factory=dict)

    def beside(self, found: Frontier, measured: Sequence[Measured] = ()) -> Extras:
        """Return these extras with the restrictions and prices of a frontier, and what was measured."""
        plans = {name: [point.plan for point in of.points] for name, of in found.restrictions.items()}
        return replace(self, restrictions=plans, measured=measured, prices=found.prices)


def extras_of(problem: Problem | None, plans: Sequence[Plan]) -> Extras:
    """The extras that the kind of a problem adds, if it does and the problem is at hand."""
    limit = None if problem is None else limit_of(problem.kind)
    if limit is None or limit.extras is None:
        return Extras()
    found: Extras = resolve(limit.extras)(problem, plans)
    return found


@dataclass(frozen=True)
class Scale:
    """The scale that objectives are drawn in: divided by ``factor`` they are in ``unit``."""

    factor: float
    unit: str


def scale_of(unit: str) -> Scale:
    """The scale to draw a unit in: milliseconds for microseconds, millijoules for microjoules."""
    return {"us": Scale(1e3, "ms"), "uj": Scale(1e3, "mJ")}.get(unit, Scale(1.0, unit))


def feasible(plans: Sequence[Plan]) -> list[Plan]:
    """Select the plans with an objective: the points of the curve."""
    return [plan for plan in plans if plan.objective is not None]


def published(limit: Limit, curve: Sequence[Plan], extras: Extras) -> list[tuple[int, float]]:
    """Published results of others for the limits of the curve, as (limit, objective)."""
    swept = {limit.of_plan(plan) for plan in curve}
    return sorted((value, objective) for value, objective in extras.published.items() if value in swept)
