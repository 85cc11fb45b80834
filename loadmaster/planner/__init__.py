"""The planner floor: how each kind of problem is solved. ``plan(problem, options)`` is the way in. No torch, no web;
every solve runs in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import loadmaster
from loadmaster import live_line
from loadmaster.errors import InputError
from loadmaster.models.canonical import sha256
from loadmaster.models.documents import Document
from loadmaster.models.envelope import Plan as AnyPlan
from loadmaster.models.envelope import Price
from loadmaster.models.kind import resolve
from loadmaster.models.kinds import Plan, Problem, kind_named, read_problem
from loadmaster.models.shown import remember
from loadmaster.models.units import show_limit
from loadmaster.planner.options import LIMIT_NAMES, PlanOptions, PlanProgress
from loadmaster.planner.sweep import Frontier, FrontierPoint, prices_of, sweep

__all__ = [
    "Frontier",
    "FrontierPoint",
    "PlanOptions",
    "PlanProgress",
    "Price",
    "cache_key",
    "frontier",
    "plan",
    "settled",
]


def plan(
    problem: Problem | Document | str | Path,
    options: PlanOptions | None = None,
    *,
    on_progress: Callable[[PlanProgress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    progress: bool | None = None,
    **changes: Any,
) -> Plan:
    """Plan a problem: a typed one, a document, or the path of one. Returns a checked plan, or an infeasible one that
    says what to relax.

    Args:
        options: see :class:`PlanOptions`; single ones may be given by keyword (``budget_bytes=8 << 30`` or ``"50%"``).
        on_progress: called in this thread with each report, which carries the best plan so far
            (:attr:`PlanProgress.plan`).
        cancelled: asked several times a second; once true, the best plan so far is returned.
        progress: show the search in a line on standard error. None: in a terminal or a notebook, unless ``on_progress``
            is given.

    Raises:
        InputError: the problem or an option cannot be used.
        LimitReachedError, CancelledError: the limit, or a cancel, came before any plan.
        SolverError: a solve broke.
    """
    typed = read_problem(problem)
    if typed is problem:
        resolve(kind_named(typed.kind).validate)(typed)
    with _told(typed, progress, on_progress) as report:
        return _planned(typed, replace(options or PlanOptions(), **changes), report, cancelled)


def frontier(
    problem: Problem | Document | str | Path,
    options: PlanOptions | None = None,
    *,
    limits: Sequence[int | str] | None = None,
    budgets_bytes: Sequence[int | str] | None = None,
    count: int = 6,
    workers: int = 2,
    restrictions: bool = False,
    prices: bool = False,
    on_progress: Callable[[PlanProgress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    progress: bool | None = None,
) -> Frontier:
    """Plan a sweep of limits side by side. See :func:`loadmaster.planner.sweep.sweep`.

    Args:
        limits: of the problem's kind, in its unit or as shares (``"50%"``); evenly spread ones if none are given.
        budgets_bytes: the same, for kinds whose limit is a budget in bytes.
        restrictions: plan the problem with fewer choices, too, where its kind can (of ``memory``: recompute only,
            offload only); their frontiers are in ``restrictions`` of the one returned.
        prices: plan each limit again with a little more of each resource, one at a time, where its kind can
            (``training``); what that gives is in ``prices``, by limit.
        progress: as for :func:`plan`.

    Raises:
        InputError: the problem is of a kind that has no limit, or has no restrictions or prices; and as there.
    """
    typed = read_problem(problem)
    with _told(typed, progress, on_progress) as report:
        return sweep(
            typed,
            options or PlanOptions(),
            _planned,
            limits=limits,
            budgets_bytes=budgets_bytes,
            count=count,
            workers=workers,
            restrictions=restrictions,
            prices=prices,
            on_progress=report,
            cancelled=cancelled,
        )


def settled(problem: Problem, options: PlanOptions) -> PlanOptions:
    """Return the options as they stand for a problem: with its own limit where they give none, under its own name.
    Raises InputError for a method of another kind, a limit for a kind that has none, no limit for a kind that has one,
    or more than the problem states: no such plan would pass the check."""
    kind = kind_named(problem.kind)
    if options.method not in kind.methods:
        raise InputError(
            "options.method", options.method, f"is no method for {kind.name}", f"Use one of {', '.join(kind.methods)}."
        )
    if options.prices:
        prices_of(kind.name, "options.prices")
    limit = kind.limit
    given = {name: value for name in LIMIT_NAMES if (value := getattr(options, name)) is not None}
    for name, value in given.items():
        if limit is None or name not in ("limit", limit.field):
            raise InputError(f"options.{name}", value, f"means nothing to {kind.name}", "Leave it out.")
    if limit is None:
        return options
    given = {name: limit.value(value, problem, f"options.{name}") for name, value in given.items()}
    if len(set(given.values())) > 1:
        raise InputError("options.limit", options.limit, f"is not {limit.field}", f"Give {limit.field} alone.")
    stated = limit.stated(problem)
    for name, value in given.items():
        if stated is not None and value > stated:
            shown, most = show_limit(value, limit.unit), show_limit(stated, limit.unit)
            raise InputError(
                f"options.{name}",
                value,
                f"{shown} is more than the {most} that the problem states",
                f"Give at most {stated}, or let the problem state more in its field {limit.field}.",
            )
    value = next(iter(given.values()), stated)
    own = limit.field if limit.field in LIMIT_NAMES else "limit"
    if value is None:
        remedy = f"Give options.{own}, or {limit.flag} on the command line."
        raise InputError(f"problem.{limit.field}", None, "is missing here and in the options", remedy)
    return options.with_limit(value, own)


def cache_key(problem: Problem, options: PlanOptions) -> str:
    """Hash that is equal for requests with the same answer: problem, limit, options and version of Loadmaster."""
    asked = settled(problem, options).to_document()
    return sha256({"problem": problem.sha256, "options": asked, "version": loadmaster.__version__})


@contextmanager
def _told(
    problem: Problem, progress: bool | None, on_progress: Callable[[PlanProgress], None] | None
) -> Iterator[Callable[[PlanProgress], None] | None]:
    """Route progress reports to the caller, to a line on standard error, to both, or nowhere."""
    if progress is None and on_progress is not None:
        progress = False
    with live_line.line(progress) as line:

        def report(reported: PlanProgress) -> None:
            line.show(reported.line(problem.unit))
            if on_progress is not None:
                on_progress(reported)

        yield on_progress if line.quiet else report


def _planned(
    problem: Problem,
    options: PlanOptions,
    on_progress: Callable[[PlanProgress], None] | None,
    cancelled: Callable[[], bool] | None,
) -> Plan:
    """Plan a validated problem by the planner of its kind."""
    plan_kind = resolve(kind_named(problem.kind).plan)
    remember(problem)
    captured_with = getattr(problem, "captured_with", None)
    if on_progress is not None and captured_with is not None:
        on_progress = _with_origin(on_progress, captured_with)
    options = settled(problem, options)
    found: Plan = plan_kind(problem, options, on_progress=on_progress, cancelled=cancelled)
    if options.prices and found.objective is not None:
        price = prices_of(problem.kind, "options.prices")
        told = None if on_progress is None else _of_prices(found, on_progress)
        prices: dict[str, Any] = {
            "prices": tuple(price(problem, found, options, on_progress=told, cancelled=cancelled))
        }
        found = replace(found, **prices)
    return found if captured_with is None else replace(found, captured_with=captured_with)


def _of_prices(plan: Plan, on_progress: Callable[[PlanProgress], None]) -> Callable[[PlanProgress], None]:
    """Wrap a callback for reports of plans with more of a resource: the plan in hand is the one without it."""

    began_s = time.monotonic() - sum(plan.seconds.values())
    figures: dict[str, Any] = {"objective": plan.objective, "bound": plan.bound, "gap": plan.gap, "plan": lambda: plan}

    def report(progress: PlanProgress) -> None:
        seconds = time.monotonic() - began_s
        on_progress(replace(progress, seconds=seconds, phase=f"prices: {progress.phase}", **figures))

    return report


def _with_origin(
    on_progress: Callable[[PlanProgress], None], captured_with: Mapping[str, str]
) -> Callable[[PlanProgress], None]:
    """Wrap a callback so that the plans of its reports state what their problem was captured with."""
    known: list[tuple[Callable[[], AnyPlan], Callable[[], AnyPlan]]] = []

    def report(progress: PlanProgress) -> None:
        if (make := progress.plan) is not None:
            # The same function for the same plan.
            if not known or known[0][0] is not make:
                known[:] = [(make, lambda: replace(make(), captured_with=captured_with))]
            progress = replace(progress, plan=known[0][1])
        on_progress(progress)

    return report
