"""A planner without a solver, for tests: keeps as many results as fit the budget, from the first on."""

from __future__ import annotations

from dataclasses import asdict, replace

from loadmaster.models.memory.checker import check
from loadmaster.models.memory.plan import MemoryInfeasibility, MemoryPlan
from loadmaster.models.memory.problem import MemoryProblem
from tests.executor.memory import schedules


class HandPlanner:
    """Keeps results 0..n-1 for the largest n that fits; remembers what it was asked."""

    def __init__(self, step: int = 4) -> None:
        self.step = step
        self.asked: list[MemoryProblem] = []

    def __call__(self, problem: MemoryProblem) -> MemoryPlan:
        self.asked.append(problem)
        assert problem.budget_bytes is not None
        peaks = []
        for n in range(len(problem.forward), -self.step, -self.step):
            by_hand = schedules.schedule(problem, lambda i, n=n: i < n)
            verdict = check(problem, by_hand, problem.budget_bytes)
            if verdict.ok:
                plan = schedules.plan(problem, by_hand, problem.budget_bytes)
                return replace(plan, objective=verdict.time_us, check=verdict.summary())
            peaks.append(verdict.peak_bytes)
        least = min(peaks)
        found = MemoryInfeasibility(least, least - problem.budget_bytes, "the middle", ())
        empty = asdict(schedules.plan(problem, by_hand, problem.budget_bytes))
        return MemoryPlan(**(empty | {"status": "infeasible", "schedule": None, "infeasibility": found}))


def keep_everything_peak(problem: MemoryProblem) -> int:
    """The planned peak of the step that recomputes nothing."""
    return check(problem, schedules.schedule(problem, lambda i: True), 1 << 60).peak_bytes


def keep_nothing_peak(problem: MemoryProblem) -> int:
    """The planned peak of the step that recomputes everything."""
    return check(problem, schedules.schedule(problem, lambda i: False), 1 << 60).peak_bytes
