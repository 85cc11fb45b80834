"""Prices of what a plan is short of: what a gigabyte more, a faster link or host, or more host memory would give.

Each change is answered twice. The bound falls by the difference of two optima of the relaxed program
(:mod:`loadmaster.models.training.formulation`); a dual would be the slope of the same at no change at all, and say less
of a whole gigabyte. The plan gains what planning again gains. A search is lucky or not, and that is no gain: every
schedule that was found is replayed by the checker on the problem as it was and on each changed one, and the best of
each count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from loadmaster.errors import CancelledError, LimitReachedError, SolverError
from loadmaster.models.envelope import Price
from loadmaster.models.training.checker import check
from loadmaster.models.training.plan import Schedule, TrainingPlan
from loadmaster.models.training.problem import TrainingProblem
from loadmaster.planner.effort import Effort
from loadmaster.planner.options import SHORTEST_S, PlanOptions, PlanProgress
from loadmaster.planner.training.driver import plan_from
from loadmaster.planner.training.outlook import relaxed_us

_MORE_BYTES = 1 << 30
_MORE = 1.1
_MORE_WORDS = "10 %"


class _Case(NamedTuple):
    """A step under a budget, and what it has more, in words."""

    more: str
    problem: TrainingProblem
    budget_bytes: int

    def best_us(self, schedules: list[Schedule]) -> float:
        """Step of the best schedule that holds here."""
        verdicts = (check(self.problem, schedule, self.budget_bytes) for schedule in schedules)
        return min((verdict.step_us for verdict in verdicts if verdict.ok), default=math.inf)


def prices(
    problem: TrainingProblem,
    plan: TrainingPlan,
    options: PlanOptions,
    *,
    others: Sequence[TrainingPlan] = (),
    on_progress: Callable[[PlanProgress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> tuple[Price, ...]:
    """Price what a feasible plan may be short of; all changes together are planned within the options' time limit, from
    what is known: the plan, and feasible ones under ``others``' budgets. After a cancel it is not planned again, and
    what is known so far counts."""
    assert plan.schedule is not None
    # The budget that a problem states is the most that it allows.
    problem = replace(problem, budget_bytes=None)
    now, *changed = _cases(problem, plan.budget_bytes)
    schedules = [one.schedule for one in (plan, *others) if one.schedule is not None]

    def asked(case: _Case, limit_s: float) -> PlanOptions:
        limited = options.with_limit(case.budget_bytes, "budget_bytes")
        return replace(limited, prices=False, time_limit_s=max(limit_s, SHORTEST_S))

    end_s = time.monotonic() + options.time_limit_s
    bounds = [
        relaxed_us(case.problem, Effort(asked(case, end_s - time.monotonic()), on_progress, cancelled))
        for case in (now, *changed)
    ]
    end_s = time.monotonic() + options.time_limit_s
    for n, case in enumerate(changed):
        share_s = (end_s - time.monotonic()) / (len(changed) - n)
        try:
            found = plan_from(
                case.problem, asked(case, share_s), schedules, on_progress=on_progress, cancelled=cancelled
            )
        except (CancelledError, LimitReachedError, SolverError):
            continue
        if found.schedule is not None:
            schedules.append(found.schedule)
    before_us = now.best_us(schedules)
    return tuple(
        Price(
            case.more,
            None if bounds[0] is None or bound is None else max(bounds[0] - bound, 0.0),
            max(before_us - case.best_us(schedules), 0.0),
        )
        for case, bound in zip(changed, bounds[1:], strict=True)
    )


def _cases(problem: TrainingProblem, budget_bytes: int) -> Iterator[_Case]:
    """List the step as it is, and with more of each resource that it can be short of."""
    host, groups = problem.host, problem.groups
    yield _Case("", problem, budget_bytes)
    yield _Case("1 GiB more of the budget", problem, budget_bytes + _MORE_BYTES)
    there, back = replace(host, to_gbps=_MORE * host.to_gbps), replace(host, from_gbps=_MORE * host.from_gbps)
    yield _Case(f"a link {_MORE_WORDS} faster to {host.name}", replace(problem, host=there), budget_bytes)
    yield _Case(f"a link {_MORE_WORDS} faster from {host.name}", replace(problem, host=back), budget_bytes)
    if any(group.host_update_us for group in groups):
        quicker = tuple(
            g if not g.host_update_us else replace(g, host_update_us=g.host_update_us / _MORE) for g in groups
        )
        yield _Case(f"updates {_MORE_WORDS} faster on {host.name}", replace(problem, groups=quicker), budget_bytes)
    if problem.disk is not None:
        disk = replace(problem.disk, to_gbps=_MORE * problem.disk.to_gbps, from_gbps=_MORE * problem.disk.from_gbps)
        yield _Case(f"{disk.name} {_MORE_WORDS} faster", replace(problem, disk=disk), budget_bytes)
    if host.capacity_bytes is not None:
        larger = replace(host, capacity_bytes=int(_MORE * host.capacity_bytes))
        yield _Case(f"{_MORE_WORDS} more memory of {host.name}", replace(problem, host=larger), budget_bytes)
