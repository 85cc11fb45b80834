"""Driver of collective problems: one table of algorithms, each with the bound that proves it.

Each size gets its share of the time (:mod:`one_size`: list scheduling with restarts over forms, chunk counts and
sketches, CP-SAT for what is small). Algorithms that are faster at another size than what was found there are taken
over, and the sizes at which one overtakes the other are looked up (:mod:`table`).

Methods: ``auto``; ``greedy``: list scheduling alone; ``pipeline``: TACCL's three steps (routing, ordering, contiguity);
``cpsat``: CP-SAT from a first schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from loadmaster.errors import CancelledError, CheckFailedError, LimitReachedError
from loadmaster.models.collective.checker import check_plan
from loadmaster.models.collective.plan import Algorithm, CollectivePlan, Unreachable
from loadmaster.models.collective.problem import CollectiveProblem
from loadmaster.planner.collective.in_hand import InHand
from loadmaster.planner.collective.one_size import OneSize
from loadmaster.planner.collective.plannable import expect_plannable
from loadmaster.planner.collective.table import shared, with_crossovers
from loadmaster.planner.effort import GOING_ON, Effort
from loadmaster.planner.options import PlanOptions, PlanProgress
from loadmaster.solvers.solution import relative_gap


def plan_collective(
    problem: CollectiveProblem,
    options: PlanOptions,
    *,
    on_progress: Callable[[PlanProgress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> CollectivePlan:
    """Plan one collective at all sizes of its problem.

    Raises:
        InputError: a size does not divide into the chunks asked for, the sketch does not fit, or it is too large.
        LimitReachedError: the limit came before every size had an algorithm.
        CancelledError: cancelled before that.
        CheckFailedError: a schedule failed its check, or a bound is above one: a bug.
    """
    expect_plannable(problem)
    effort = Effort(options, on_progress, cancelled)
    in_hand = InHand(problem)

    def told() -> None:
        if in_hand.is_whole():
            effort.hold(lambda: _plan(problem, effort, in_hand.table(), GOING_ON))

    for place, size_bytes in enumerate(problem.sizes_bytes):
        share_s = effort.left_s / (len(problem.sizes_bytes) - place)
        search = in_hand.turn = OneSize(problem, size_bytes, effort, effort.elapsed_s + share_s, told)
        algorithm = search.run()
        if search.infeasible is not None:
            return _infeasible(problem, effort, search.infeasible)
        if algorithm is None:
            if effort.was_cancelled:
                raise CancelledError("cancelled before a plan was found")
            raise LimitReachedError(
                f"no schedule of {size_bytes} bytes within {share_s:.3g} s. Give more time (--time-limit), fewer "
                "sizes, or a sketch with more links or fewer symmetries."
            )
        in_hand.found[size_bytes] = algorithm
    in_hand.turn = None
    table = with_crossovers(problem, shared(problem, in_hand.table()))
    proved = all(algorithm.gap <= options.gap for algorithm in table)
    with effort.on_clock("check"):
        plan = _plan(problem, effort, table, effort.stopped_by(proved=proved))
    return replace(plan, seconds=dict(effort.seconds))


def _plan(problem: CollectiveProblem, effort: Effort, table: tuple[Algorithm, ...], stopped_by: str) -> CollectivePlan:
    """Build the checked plan of a table of algorithms."""
    objective, bound = (sum(ns) / 1e3 for ns in zip(*((a.time_ns, a.bound_ns) for a in table), strict=True))
    proved = all(algorithm.gap <= effort.options.gap for algorithm in table)
    plan = replace(
        _empty(problem, effort),
        status="optimal" if proved else "feasible",
        objective=objective,
        bound=bound,
        gap=relative_gap(objective, bound),
        method="+".join(sorted({algorithm.method for algorithm in table})),
        stopped_by=stopped_by,
        algorithms=table,
    )
    verdict = check_plan(problem, plan)
    if not verdict.ok:
        raise CheckFailedError(
            f"the plan of {problem.name} fails its check: {verdict.violations[0]}. Please report it."
        )
    return replace(plan, check=verdict.summary())


def _infeasible(problem: CollectiveProblem, effort: Effort, cut: Unreachable) -> CollectivePlan:
    """Build the answer that no schedule exists: which chunk cannot reach which rank, and why."""
    return replace(_empty(problem, effort), status="infeasible", stopped_by="proof", infeasibility=cut)


def _empty(problem: CollectiveProblem, effort: Effort) -> CollectivePlan:
    """Collect the fields that every answer states about its run."""
    return CollectivePlan(
        name=problem.name,
        problem_sha256=problem.sha256,
        status="feasible",
        objective=None,
        bound=None,
        gap=None,
        unit="us",
        method="none",
        stopped_by="method",
        seconds=dict(effort.seconds),
        solver=effort.solver_facts(),
        check={},
        algorithms=(),
        options=effort.options.to_document(),
    )
