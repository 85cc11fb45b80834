"""Driver of ``index``: rules first, then the program; for the longest thread the sum before and after that.

Whether there is a plan at all is known at once: hosts share nothing, so every shard with the least bytes is the proof
or the plan. What takes no longer than every shard at its quickest is the best plan, and no program is solved for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loadmaster.errors import CheckFailedError, LimitReachedError
from loadmaster.models.index.changes import changes
from loadmaster.models.index.checker import IndexCheck, check
from loadmaster.models.index.formulation import Formulated, formulate
from loadmaster.models.index.limits import lacking, least_us
from loadmaster.models.index.plan import Choice, IndexPlan
from loadmaster.models.index.problem import IndexProblem
from loadmaster.models.index.serving import Option, options
from loadmaster.models.units import show_bytes
from loadmaster.planner.effort import CLOSE, GOING_ON, Effort, proved, unit_of
from loadmaster.planner.index.by_rule import greedy, on_threads, one_for_all
from loadmaster.planner.options import PlanOptions, PlanProgress
from loadmaster.solvers.solution import Solution

# A solver holds a row to its tolerance, the checker to the byte: what is over by less is excluded, so many times.
_MOST_ROUNDS = 20


def plan_index(
    problem: IndexProblem,
    options: PlanOptions,
    *,
    on_progress: Callable[[PlanProgress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> IndexPlan:
    """Plan one ``index`` problem: ``auto`` as above, ``greedy`` by rule alone, ``one-for-all`` the same for all shards.
    Raises LimitReachedError if no configuration serves all shards within the budget, as ``one-for-all`` asks;
    CancelledError if cancelled before any plan."""
    return _Run(problem, Effort(options, on_progress, cancelled)).plan()


@dataclass(frozen=True)
class _Found:
    """Choices that hold, and their verdict."""

    choices: tuple[Choice, ...]
    verdict: IndexCheck

    @property
    def rank(self) -> tuple[float, float]:
        """Key by which plans are compared: the objective, then the sum over all threads."""
        return self.verdict.objective, self.verdict.total_us


class _Run:
    def __init__(self, problem: IndexProblem, effort: Effort) -> None:
        self.problem, self.budget_bytes, self.effort = problem, effort.budget_bytes, effort
        with effort.on_clock("build"):
            self.options = [options(problem, s) for s in range(len(problem.shards))]
            self.bound = least_us(problem)
        self.best: _Found | None = None

    def plan(self) -> IndexPlan:
        self.effort.expect_uncancelled()
        missing = lacking(self.problem, self.budget_bytes)
        if missing is not None:
            envelope = self.effort.envelope(self.problem, "proof")
            return IndexPlan(**envelope, budget_bytes=self.budget_bytes, infeasibility=missing)
        with self.effort.keep_plan_on_crash(lambda: self.best is not None):
            self._by_rule(self.effort.options.method)
            if self.effort.options.method == "auto":
                self._sum_first()
                self._program()
                self._least_in_all()
        if self.best is None:
            raise LimitReachedError(
                f"no configuration serves all shards under {show_bytes(self.budget_bytes)}. Give a larger budget, or "
                "the method auto, which gives each shard its own."
            )
        return self._plan(self.best, self.effort.stopped_by(proved=self._is_proved(self.best)))

    def _by_rule(self, method: str) -> None:
        with self.effort.on_clock("solve"):
            tried = [] if method == "one-for-all" else [greedy(self.problem, self.options, self.budget_bytes)]
            tried += [] if method == "greedy" else one_for_all(self.problem, self.budget_bytes)
        for chosen in tried:
            if chosen is not None:
                self._take("rules", chosen, on_threads(self.problem, chosen))

    def _sum_first(self) -> None:
        """Minimize the sum first, for the objective of the longest thread: spread by rule, it is often good enough. No
        plan's longest thread is shorter than the least sum, divided equally among all threads."""
        assert self.best is not None, "rules found a plan"
        if self.problem.objective == "sum" or self._is_proved(self.best) or self.effort.over():
            return
        unit_us, of = unit_of(self.best.verdict.total_us), self._quick(self.best)
        with self.effort.on_clock("build"):
            of_sum = replace(self.problem, objective="sum")
            formulated = formulate(of_sum, of, self.budget_bytes, unit_us)
        threads = sum(host.threads for host in self.problem.hosts)
        self._solve("sum", of, formulated, lambda solution: self._bounded(solution, unit_us, threads))

    def _program(self) -> None:
        """Solve the program; what its rows let pass though it is too much is excluded, and it is solved again."""
        assert self.best is not None, "rules found a plan"
        if self._is_proved(self.best) or self.effort.over():
            return
        unit_us, of = unit_of(self.best.verdict.objective), self._quick(self.best)
        with self.effort.on_clock("build"):
            formulated = formulate(self.problem, of, self.budget_bytes, unit_us)
        self._solve("program", of, formulated, lambda solution: self._bounded(solution, unit_us))

    def _quick(self, found: _Found) -> list[list[Option]]:
        """Filter options [shards] to those that a better plan can have: the others take too long."""
        return [[o for o in of if o.time_us <= found.verdict.objective * (1 + CLOSE)] for of in self.options]

    def _bounded(self, solution: Solution, unit_us: float, threads: int = 1) -> None:
        if solution.bound is not None:
            self.bound = max(self.bound, proved(solution.bound, unit_us) / threads)

    def _least_in_all(self) -> None:
        """Minimize the time of all threads together, among plans whose longest thread is not longer."""
        if self.problem.objective == "sum" or self.best is None or self.effort.over():
            return
        longest_us, total_us = self.best.verdict.objective, self.best.verdict.total_us
        if total_us <= sum(of[-1].time_us for of in self.options) * (1 + CLOSE):
            return
        of = self._quick(self.best)
        with self.effort.on_clock("build"):
            formulated = formulate(self.problem, of, self.budget_bytes, unit_of(total_us), longest_us)
        self._solve("least in all", of, formulated, lambda _: None)

    def _solve(
        self, phase: str, of: Sequence[Sequence[Option]], formulated: Formulated, seen: Callable[[Solution], None]
    ) -> None:
        gap = self.effort.options.gap
        for at in range(_MOST_ROUNDS):
            solution = self.effort.solved(formulated.program, lambda: self._say(phase, "solving"), gap=gap)
            seen(solution)
            if solution.values is None:
                return
            numbers = formulated.chosen(solution.values)
            chosen = [options[n] for options, n in zip(of, numbers, strict=True)]
            over = self._over(chosen)
            if over is None:
                threads = on_threads(self.problem, chosen)
                self._take(phase, chosen, threads)
                free = formulated.threads(solution.values)
                self._take(phase, chosen, [t if f is None else f for t, f in zip(threads, free, strict=True)])
                return
            formulated = formulated.without(numbers, over, f"excluded[{at}]")

    def _over(self, chosen: Sequence[Option]) -> list[int] | None:
        """List the shards of a host for which choices take too many bytes; None if all hosts hold theirs."""
        for h in range(len(self.problem.hosts)):
            here = [s for s, shard in enumerate(self.problem.shards) if shard.host == h]
            if sum(chosen[s].size_bytes for s in here) > self.problem.room_bytes(h, self.budget_bytes):
                return here
        return None

    def _take(self, phase: str, chosen: Sequence[Option], threads: Sequence[int | None]) -> None:
        """Keep what is better than all before. Raises CheckFailedError if the checker refuses it."""
        choices = tuple(
            Choice(o.candidate, o.time_us, o.size_bytes, thread) for o, thread in zip(chosen, threads, strict=True)
        )
        with self.effort.on_clock("check"):
            found = _Found(choices, check(self.problem, choices, self.budget_bytes))
        if not found.verdict.ok:
            name = self.problem.name
            first = found.verdict.violations[0]
            raise CheckFailedError(f"a plan of {name} fails its check: {first}. Please report it.")
        if self.best is None or found.rank < self.best.rank:
            self.best = found
            self.effort.hold(lambda: self._plan(found, GOING_ON))
            self._say(phase, "a better plan")

    def _is_proved(self, found: _Found) -> bool:
        return self.effort.is_proved(found.verdict.objective, self._bound_below())

    def _bound_below(self) -> float:
        """Lower bound, at most the objective in hand: a solver's last digits may say more."""
        return self.bound if self.best is None else min(self.bound, self.best.verdict.objective)

    def _say(self, phase: str, message: str) -> None:
        self.effort.say(phase, message, None if self.best is None else self.best.verdict.objective, self._bound_below())

    def _plan(self, found: _Found, stopped_by: str) -> IndexPlan:
        return IndexPlan(
            **self.effort.envelope(self.problem, stopped_by, found.verdict, self._bound_below()),
            budget_bytes=self.budget_bytes,
            choices=found.choices,
            changes=tuple(changes(self.problem, [c.candidate for c in found.choices], self.budget_bytes)),
        )
