"""How ``buckets`` is solved: exactly, by dynamic programming over the gradients sent and the messages used.

``done[j]`` is the earliest time when gradients 0..j-1 have arrived in m messages; of the last message's start i,
done[j] = min over i of max(done'[i], ready of j-1) + message(i..j), where done' is that of m-1 messages.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from buckets.checker import check
from buckets.problem import BucketsPlan, BucketsProblem
from loadmaster.errors import CancelledError
from loadmaster.planner.effort import Effort
from loadmaster.planner.options import PlanOptions, PlanProgress


def plan_buckets(
    problem: BucketsProblem,
    options: PlanOptions,
    *,
    on_progress: Callable[[PlanProgress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> BucketsPlan:
    """Plan one problem: ``auto`` the best messages, ``one`` a single message.

    Raises:
        CancelledError: cancelled before any plan.
    """
    limit = options.limit
    assert isinstance(limit, int), "settled options have one"
    effort = Effort(options, on_progress, cancelled)
    if effort.cancelled():
        raise CancelledError("cancelled before a plan was found")
    ends: tuple[int, ...] = ()
    with effort.on_clock("solve"):
        if limit:
            ends = (len(problem.gradients),) if options.method == "one" else best_ends(problem, limit)
    with effort.on_clock("check"):
        verdict = check(problem, ends, limit) if limit else None
    objective = None if verdict is None else verdict.objective
    # The best of all choices is its own proof; a single message proves nothing.
    bound = objective if options.method == "auto" else None
    effort.say("solved", f"{len(ends)} messages", objective, bound)
    return BucketsPlan(
        name=problem.name,
        problem_sha256=problem.sha256,
        status="infeasible" if verdict is None else "optimal" if bound is not None else "feasible",
        objective=objective,
        bound=bound,
        gap=None if bound is None else 0.0,
        unit=problem.unit,
        method=options.method,
        stopped_by="proof" if verdict is None else "gap" if bound is not None else "method",
        seconds=dict(effort.seconds),
        solver=effort.solver_facts(),
        check={} if verdict is None else verdict.summary(),
        options=options.to_document(),
        messages=limit,
        ends=ends,
    )


def best_ends(problem: BucketsProblem, messages: int) -> tuple[int, ...]:
    """The ends of at most so many messages that have all arrived soonest."""
    count = len(problem.gradients)
    # Nothing is sent at time 0, in no messages.
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ()), *[(inf, ())] * count]
    for _ in range(min(messages, count)):
        best = [best[0]] + [
            min(best[end], *(_with(problem, best[first], first, end) for first in range(end)))
            for end in range(1, count + 1)
        ]
    return best[count][1]


def _with(
    problem: BucketsProblem, before: tuple[float, tuple[int, ...]], first: int, end: int
) -> tuple[float, tuple[int, ...]]:
    done_us, ends = before
    start_us = max(done_us, problem.gradients[end - 1].ready_us)
    return start_us + problem.message_us(first, end), (*ends, end)
