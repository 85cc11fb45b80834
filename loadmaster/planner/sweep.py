"""The frontier: the best plan for each of several limits, planned side by side, monotone by construction.

A plan for a small limit is a plan for a larger one, and a bound for a large limit is a bound for a smaller one; both
are passed along before the points are returned. The same holds between a problem and its restrictions: their plans are
plans of the whole, and its bound is a bound of each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, cast

from loadmaster.errors import CancelledError, CheckFailedError, InputError, LimitReachedError
from loadmaster.models.checking import restated
from loadmaster.models.envelope import Plan, Price
from loadmaster.models.kind import Limit, Problem, Verdict, resolve
from loadmaster.models.kinds import kind_named, limit_of
from loadmaster.models.shown import one_line, remembered
from loadmaster.models.units import show_cost, show_limit, show_share
from loadmaster.planner.options import PlanOptions, PlanProgress
from loadmaster.solvers.solution import relative_gap

OnProgress = Callable[[PlanProgress], None] | None
Cancelled = Callable[[], bool] | None


@dataclass(frozen=True)
class FrontierPoint:
    """Point of a frontier: a limit and its plan, which may be infeasible."""

    limit: int
    plan: Any

    @property
    def budget_bytes(self) -> int:
        """Same as ``limit``, for kinds whose limit is a budget in bytes."""
        return self.limit


@dataclass(frozen=True, repr=False)
class Frontier:
    """Points of a frontier by ascending limit; ``undecided`` limits have neither a plan nor a proof of infeasibility.
    ``restrictions`` are the frontiers of the same problem with fewer choices, by name, and ``prices`` those at each
    limit that has a plan, where they were asked for."""

    name: str
    points: tuple[FrontierPoint, ...]
    undecided: tuple[int, ...] = ()
    restrictions: Mapping[str, Frontier] = field(default_factory=dict)
    prices: Mapping[int, Sequence[Price]] = field(default_factory=dict)

    def __repr__(self) -> str:
        parts = [f"{len(self.points)} points"]
        solved = [p for p in self.points if p.plan.objective is not None]
        for point in solved[:1] + solved[1:][-1:]:
            limit = limit_of(point.plan.kind)
            shown = show_limit(point.limit, limit.unit)
            parts.append(
                f"{show_cost(point.plan.objective, point.plan.unit)} (gap {show_share(point.plan.gap)}) at {shown}"
            )
        if self.undecided:
            parts.append(f"{len(self.undecided)} undecided")
        return one_line(self, self.name, parts)

    def _repr_html_(self) -> str:
        problem = remembered(self.points[0].plan.problem_sha256) if self.points else None
        return cast(str, resolve("loadmaster.api.report.notebook:frontier_html")(self, problem))


@dataclass(frozen=True)
class Figures:
    """Objective and bound known at one limit; None where unknown."""

    objective: float | None
    bound: float | None


@dataclass(frozen=True)
class Best:
    """Best that a frontier knows of one limit: the place of the point whose plan it is, and the bound."""

    plan_of: int | None
    bound: float | None


def prices_of(kind: str, field: str) -> Callable[..., Sequence[Price]]:
    """Return the function of a kind that prices what a plan is short of; InputError, naming ``field``: it has none."""
    limit = kind_named(kind).limit
    if limit is None or limit.prices is None:
        raise InputError(field, True, f"means nothing to {kind}", "Leave it out.")
    found: Callable[..., Sequence[Price]] = resolve(limit.prices)
    return found


def monotone(points: Sequence[Figures]) -> list[Best]:
    """Apply the rule of every frontier to points by ascending limit: plans serve larger limits, bounds smaller ones.

    >>> monotone([Figures(9.0, 5.0), Figures(None, None), Figures(10.0, 7.0)])
    [Best(plan_of=0, bound=7.0), Best(plan_of=0, bound=7.0), Best(plan_of=0, bound=7.0)]
    """
    plans: list[int | None] = []
    best: int | None = None
    for place, point in enumerate(points):
        known = None if best is None else points[best].objective
        if point.objective is not None and (known is None or point.objective <= known):
            best = place
        plans.append(best)
    bounds: list[float | None] = []
    bound: float | None = None
    for point in reversed(points):
        if point.bound is not None and (bound is None or point.bound > bound):
            bound = point.bound
        bounds.append(bound)
    return [Best(plan_of, bound) for plan_of, bound in zip(plans, reversed(bounds), strict=True)]


def sweep(
    problem: Problem,
    options: PlanOptions,
    plan: Callable[[Problem, PlanOptions, OnProgress, Cancelled], Plan],
    *,
    limits: Sequence[int | str] | None = None,
    budgets_bytes: Sequence[int | str] | None = None,
    count: int = 6,
    workers: int = 2,
    restrictions: bool = False,
    prices: bool = False,
    on_progress: OnProgress = None,
    cancelled: Cancelled = None,
) -> Frontier:
    """Plan every limit by ``plan``, ``workers`` at a time. The phase of a report names its limit and its restriction.
    ``restrictions``: plan the problem's restrictions under the same limits, too. ``prices``: and with a little more of
    each resource, one at a time.

    Raises:
        InputError: the problem's kind has no limit; no limits, or what is none; no restrictions, no prices.
        CancelledError: cancelled before any plan was found.
    """
    limit = limit_of(problem.kind)
    prices, options = prices or options.prices, replace(options, prices=False)
    restricted = _restricted(problem, limit) if restrictions else {}
    price = prices_of(problem.kind, "prices") if prices else None
    wanted = _wanted(problem, limit, limits, budgets_bytes, count)
    if workers < 1:
        raise InputError("workers", workers, "is no number of workers", "Give 1 or more.")
    lock = threading.Lock()

    def reports(value: int, name: str) -> Callable[[PlanProgress], None]:
        def report(progress: PlanProgress) -> None:
            if on_progress is not None:
                words = ", ".join(filter(None, (show_limit(value, limit.unit), name)))
                with lock:
                    on_progress(replace(progress, phase=f"{words}: {progress.phase}"))

        return report

    def point(asked: tuple[str, Problem, int]) -> Plan | None:
        name, one, value = asked
        try:
            return plan(one, options.with_limit(value), reports(value, name), cancelled)
        except (LimitReachedError, CancelledError):
            return None

    everyone = {"": problem, **restricted}
    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(point, [(name, one, value) for name, one in everyone.items() for value in wanted]))
    if cancelled is not None and cancelled() and not any(p is not None and p.objective is not None for p in found):
        raise CancelledError("cancelled before a plan was found")
    plans = {name: found[n * len(wanted) : (n + 1) * len(wanted)] for n, name in enumerate(everyone)}
    own = plans.pop("")
    for others in plans.values():
        own = [_better(problem, limit, mine, other) for mine, other in zip(own, others, strict=True)]
    best = _best_plans(problem, limit, wanted, own)
    beside = {}
    for name, others in plans.items():
        known = _best_plans(restricted[name], limit, wanted, others)
        raised = [_raised(restricted[name], limit, one, whole) for one, whole in zip(known, best, strict=True)]
        beside[name] = _frontier(problem.name, wanted, raised)
    priced = {}
    if price is not None:
        both = zip(wanted, best, strict=True)
        solved = {value: one for value, one in both if one is not None and one.objective is not None}

        def prices_at(value: int) -> Sequence[Price]:
            others = [one for other, one in solved.items() if other != value]
            told = reports(value, "prices")
            return price(problem, solved[value], options, others=others, on_progress=told, cancelled=cancelled)

        with ThreadPoolExecutor(workers) as pool:
            priced = dict(zip(solved, pool.map(prices_at, solved), strict=True))
    return replace(_frontier(problem.name, wanted, best), restrictions=beside, prices=priced)


def _restricted(problem: Problem, limit: Limit) -> dict[str, Problem]:
    if limit.restrictions is None:
        raise InputError("restrictions", True, f"means nothing to {problem.kind}", "Leave it out.")
    found: dict[str, Problem] = resolve(limit.restrictions)(problem)
    return found


def _frontier(name: str, wanted: Sequence[int], plans: Sequence[Plan | None]) -> Frontier:
    return Frontier(
        name,
        tuple(FrontierPoint(value, plan) for value, plan in zip(wanted, plans, strict=True) if plan is not None),
        tuple(value for value, plan in zip(wanted, plans, strict=True) if plan is None),
    )


def _better(problem: Problem, limit: Limit, own: Plan | None, other: Plan | None) -> Plan | None:
    """Put a restriction's plan in place of the problem's own where it is better: checked there, without its bound."""
    if other is None or other.objective is None:
        return own
    if own is not None and own.objective is not None and own.objective <= other.objective:
        return own
    lent = replace(other, problem_sha256=problem.sha256)
    lent = _checked(problem, lent, f"{problem.name}: a restriction's plan breaks")
    return _with_bound(problem, limit, lent, None if own is None else own.bound)


def _raised(problem: Problem, limit: Limit, plan: Plan | None, whole: Plan | None) -> Plan | None:
    """Give a restriction's plan the bound of the whole problem, where that is better."""
    if plan is None or plan.objective is None or whole is None or whole.bound is None:
        return plan
    known = plan.bound is not None and plan.bound >= whole.bound
    return plan if known else _with_bound(problem, limit, plan, whole.bound)


def _wanted(
    problem: Problem,
    limit: Limit,
    limits: Sequence[int | str] | None,
    budgets_bytes: Sequence[int | str] | None,
    count: int,
) -> list[int]:
    name, given = "limits", limits
    if budgets_bytes is not None:
        name, given = "budgets_bytes", budgets_bytes
        if limits is not None:
            raise InputError("limits", list(limits), "are given together with budgets_bytes", "Give one of them.")
        if limit.field != "budget_bytes":
            raise InputError(name, list(budgets_bytes), f"mean nothing to {problem.kind}", "Give limits.")
    if given is None:
        if count < 2:
            raise InputError("count", count, "makes no frontier", "Ask for two points or more.")
        given = limit.default_points(problem, count)
        if (stated := limit.stated(problem)) is not None:
            given = [min(value, stated) for value in given]
    wanted = sorted({limit.value(value, problem, f"{name}[{place}]") for place, value in enumerate(given)})
    if not wanted:
        raise InputError(name, [], "are none", f"Give one or more: {limit.values}.")
    return wanted


def _best_plans(
    problem: Problem, limit: Limit, wanted: Sequence[int], plans: Sequence[Plan | None]
) -> list[Plan | None]:
    """Choose the best plan of each limit, with the best bound; where nothing better is known, the one found there."""
    figures = [Figures(None, None) if plan is None else Figures(plan.objective, plan.bound) for plan in plans]
    best: list[Plan | None] = []
    for value, own, point in zip(wanted, plans, monotone(figures), strict=True):
        plan = None if point.plan_of is None else plans[point.plan_of]
        if plan is None:
            best.append(own)
            continue
        plan = plan if plan is own else _moved(problem, limit, plan, value)
        best.append(plan if plan.bound == point.bound else _with_bound(problem, limit, plan, point.bound))
    return best


def _moved(problem: Problem, limit: Limit, plan: Plan, value: int) -> Plan:
    """Move a smaller limit's plan under a larger one, and check it there."""
    smaller = f"{limit.of_plan(plan)} {limit.unit}"
    return _checked(problem, limit.set(plan, value), f"{problem.name}: a plan for {smaller} breaks under {value}")


def _checked(problem: Problem, plan: Plan, otherwise: str) -> Plan:
    """Check a plan that was made for something narrower, and restate it by the verdict."""
    kind = kind_named(problem.kind)
    verdict: Verdict = resolve(kind.check)(problem, plan)
    if not verdict.ok:
        raise CheckFailedError(f"{otherwise}: {verdict.violations[0]}")
    return restated(kind, problem, plan, verdict)


def _with_bound(problem: Problem, limit: Limit, plan: Plan, bound: float | None) -> Plan:
    """Return a plan with another proved bound, and what follows from it."""
    if limit.with_bound is not None:
        found: Plan = resolve(limit.with_bound)(plan, bound, problem)
        return found
    gap = relative_gap(plan.objective, bound)
    proved = gap is not None and gap <= float(plan.options.get("gap", 0.0))
    return replace(plan, bound=bound, gap=gap, status="optimal" if proved else "feasible")
