"""How ``partition`` is solved: exactly by elimination where no budget binds, else with prices for memory, and by the
compact program.

The relaxation of the program comes first. Where its point is a plan that a moment without a row refuses, the row is
added. Where it is fractional, each axis gets one role for the whole model (:mod:`.modules`): few choices are left then,
and a plan is found soon where there is one. At last integers are asked for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from loadmaster.errors import CancelledError, LimitReachedError
from loadmaster.models.partition import transport
from loadmaster.models.partition.checker import Check, Rules, check
from loadmaster.models.partition.choices import Choices, coarsened
from loadmaster.models.partition.moments import Memory, Moment
from loadmaster.models.partition.plan import Infeasibility, PartitionPlan, Splits
from loadmaster.models.partition.problem import PartitionProblem
from loadmaster.models.units import show_bytes
from loadmaster.planner.effort import GOING_ON, Effort
from loadmaster.planner.options import PlanOptions, PlanProgress
from loadmaster.planner.partition.elimination import TooWideError, minimize
from loadmaster.planner.partition.lagrangian import search
from loadmaster.planner.partition.modules import by_roles
from loadmaster.planner.partition.restrictions import METHODS
from loadmaster.solvers.solution import Solution, SolverStatus, relative_gap

# Sums of the same costs in another order are equal to so many digits.
_CLOSE = 1e-9
_BLOCKERS = 3
_ANY_BYTES = 1 << 62


def plan_partition(
    problem: PartitionProblem,
    options: PlanOptions,
    *,
    on_progress: Callable[[PlanProgress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> PartitionPlan:
    """Plan one problem: ``auto`` as above; other methods choose among fewer states (:mod:`.restrictions`).

    Raises:
        LimitReachedError: there may be a plan under the budget, but none was found.
        CancelledError: cancelled before any plan.
    """
    budget_bytes = options.budget_bytes
    assert isinstance(budget_bytes, int), "settled options have one"
    effort = Effort(options, on_progress, cancelled)
    with effort.on_clock("build"):
        choices = coarsened(problem)
    return _Run(choices, budget_bytes, effort).plan()


class _Run:
    """One run, or with ``whole`` a part of that one among fewer choices, whose own bound bounds no other plan."""

    def __init__(self, choices: Choices, budget_bytes: int, effort: Effort, whole: _Run | None = None) -> None:
        self.choices, self.problem, self.budget_bytes, self.effort = choices, choices.problem, budget_bytes, effort
        self.whole = whole
        with effort.on_clock("build"):
            self.memory = Memory(choices)
            self.rules = Rules(self.problem)
            self.moments = self.memory.moments(int(self.memory.whole_bytes.argmax()))
        self.bound: float | None = None
        self.best: tuple[float, Splits] | None = None
        self.verdict: Check | None = None
        # Of all assignments that were tried: where the one that takes least takes most, and how much.
        self.smallest: tuple[int, int] | None = None
        self.is_infeasible = False

    def plan(self) -> PartitionPlan:
        if self.effort.cancelled():
            raise CancelledError("cancelled before a plan was found")
        lacking = self._infeasibility()
        if lacking is not None:
            return self._answer(lacking)
        with self.effort.keep_plan_on_crash(lambda: self.best is not None):
            if self.effort.options.method == "auto":
                self._auto()
            elif self.effort.options.method == "module":
                self._by_roles()
            else:
                self._by_method(self.effort.options.method)
        if self.best is None:
            if self.effort.was_cancelled:
                raise CancelledError("cancelled before a plan was found")
            if self.is_infeasible and self.smallest is not None:
                return self._answer(self._lacking(*self.smallest))
            raise LimitReachedError(self._nothing_found())
        return self._answer(None)

    def _nothing_found(self) -> str:
        found = f"no plan was found under {show_bytes(self.budget_bytes)}"
        if self.smallest is not None:
            found += f"; the smallest takes {show_bytes(self.smallest[1])}"
        return f"{found}. Give more time, or a larger budget."

    def _infeasibility(self) -> Infeasibility | None:
        """Why there is no plan, where that is plain: everything as divided as it can be is too much."""
        if self.least_bytes <= self.budget_bytes:
            return None
        return self._lacking(int(self.memory.least_bytes.argmax()), self.least_bytes)

    @property
    def least_bytes(self) -> int:
        """What one worker holds at least, where it holds most."""
        return int(self.memory.least_bytes.max())

    def _lacking(self, n: int, least: int) -> Infeasibility:
        held = [moment.shares for moment in self.memory.moments(n)]
        shares = max(held, key=lambda of: sum(float(sizes.min()) for sizes in of.values()))
        largest = sorted(shares, key=lambda v: float(shares[v].min()), reverse=True)[:_BLOCKERS]
        names = tuple(self.problem.tensors[self.choices.variables[v].members[0]].name for v in largest)
        where = f"operator {n} ({self.problem.operators[n].words})"
        return Infeasibility(least, least - self.budget_bytes, where, names)

    def _by_method(self, method: str) -> None:
        try:
            with self.effort.on_clock("solve"):
                chosen = METHODS[method](self.choices, self.effort.cancelled)
        except TooWideError:
            self._say(method, "tables are too wide")
        else:
            self._try(method, chosen)

    def _by_roles(self) -> None:
        """The best plan under any roles of the axes. The bound is that of all plans: the gap is what roles cost."""
        runs = self._roles()
        self._bound_of_all()
        for optimum, run in runs:
            if not self._done() and (self.best is None or optimum < self.best[0]):
                self._under(run, functools.partial(run._programs, integer=True))

    def _roles(self) -> list[tuple[float, _Run]]:
        """Plans under all roles that elimination finds; (what any plan costs at least, its run), cheapest first."""
        runs = []
        for _, choices in by_roles(self.problem):
            try:
                with self.effort.on_clock("solve"):
                    _, optimum = minimize(choices.unary, choices.pairs, cancelled=self.effort.cancelled)
            except TooWideError:
                optimum = 0.0
            run = _Run(choices, self.budget_bytes, self.effort, self)
            if math.isfinite(optimum) and run.least_bytes <= self.budget_bytes:
                runs.append((optimum, run))
        runs.sort(key=lambda one: one[0])
        for optimum, run in runs:
            if not self._done() and (self.best is None or optimum < self.best[0]):
                self._under(run, run._eliminated)
        return runs

    def _under(self, run: _Run, look: Callable[[], None]) -> None:
        """Look for a better plan among fewer choices."""
        run.best, run.verdict = self.best, self.verdict
        look()
        self.best, self.verdict = run.best, run.verdict
        self._say("roles", "one tried")

    def _bound_of_all(self) -> None:
        """Of plans of every sort."""
        try:
            with self.effort.on_clock("solve"):
                chosen, self.bound = minimize(self.choices.unary, self.choices.pairs, cancelled=self.effort.cancelled)
            verdict = check(self.problem, self.choices.splits(chosen), _ANY_BYTES, self.rules)
        except TooWideError:
            verdict = None
        if (verdict is None or verdict.peak_bytes > self.budget_bytes) and not self._done():
            self._solved_program(integer=False)

    def _auto(self) -> None:
        """Without the budget first; where that is too much, under it."""
        self._eliminated()
        self._programs(integer=False)
        if not self._done():
            self._roles()
        self._programs(integer=True)

    def _eliminated(self) -> None:
        """Exact without the budget; with prices for memory under it."""
        try:
            with self.effort.on_clock("solve"):
                chosen, optimum = minimize(self.choices.unary, self.choices.pairs, cancelled=self.effort.cancelled)
            self.bound = optimum
            self._try("elimination", chosen)
            if not self._done():
                self._prices(optimum)
        except TooWideError:
            self._say("elimination", "tables are too wide")

    def _prices(self, optimum: float) -> None:
        """Elimination with a price for memory, from one at which all of it costs a tenth of the best plan without."""

        def taken(chosen: Sequence[int], bound: float) -> Moment | None:
            self.bound = max(self.bound or 0.0, bound)
            return self._try("prices", chosen)

        first_price = 0.1 * max(optimum, 1.0) / max(self.budget_bytes, 1)
        search(self.choices, self.moments, self.budget_bytes, first_price, taken, self._done)

    def _programs(self, *, integer: bool) -> None:
        """The program, with a row for every moment that its points break."""
        while not self._done():
            program, solution = self._solved_program(integer=integer)
            if solution.values is None:
                return
            whole = all(np.allclose(solution.values[c].max(), 1.0, atol=1e-6) for c in program.states)
            broken = self._try("program" if integer else "relaxation", program.chosen(solution.values))
            if not whole or broken is None:
                return
            self.moments.append(broken)

    def _solved_program(self, *, integer: bool) -> tuple[transport.Transport, Solution]:
        """What it comes to bounds all plans."""
        scale = max(self.bound or 0.0, float(max(costs.max() for costs in self.choices.unary)), 1.0)
        with self.effort.on_clock("build"):
            program = transport.formulate(self.choices, self.moments, self.budget_bytes, scale=scale, integer=integer)
        solution = self._solved("program" if integer else "relaxation", program)
        self.is_infeasible = solution.status is SolverStatus.INFEASIBLE
        if solution.bound is not None and not self.is_infeasible:
            self.bound = max(self.bound or 0.0, solution.bound * scale)
        return program, solution

    def _solved(self, phase: str, what: transport.Transport) -> Solution:
        gap = self.effort.options.gap / 2
        return self.effort.solved(what.program, lambda: self._say(phase, "solving"), gap=gap)

    def _try(self, phase: str, chosen: Sequence[int]) -> Moment | None:
        """Take an assignment where it keeps the budget; otherwise the moment at which it takes most."""
        with self.effort.on_clock("check"):
            splits = self.choices.splits(chosen)
            verdict = check(self.problem, splits, _ANY_BYTES, self.rules)
        if not verdict.ok:  # a fractional point, made whole, can ask for what cannot be brought there
            self._say(phase, "no plan")
            return None
        at = int(verdict.resident_bytes.argmax())
        if self.smallest is None or verdict.peak_bytes < self.smallest[1]:
            self.smallest = (at, verdict.peak_bytes)
        if verdict.peak_bytes > self.budget_bytes:
            self._say(phase, f"{show_bytes(verdict.peak_bytes)} are too much")
            return max(self.memory.moments(at), key=lambda moment: moment.bytes_of(chosen))
        if self.best is None or verdict.objective < self.best[0]:
            self.best, self.verdict = (verdict.objective, splits), verdict
            self.effort.hold(lambda: self._plan(splits, verdict, GOING_ON))
        self._say(phase, f"{show_bytes(verdict.peak_bytes)} at the most")
        return None

    def _done(self) -> bool:
        return self.effort.over() or self._is_proved()

    def _is_proved(self) -> bool:
        return self._is_within(None if self.best is None else relative_gap(self.best[0], self.bound))

    def _is_within(self, gap: float | None) -> bool:
        """Whether a gap is no more than what was asked for."""
        return gap is not None and gap <= self.effort.options.gap + _CLOSE

    @property
    def bound_of_all(self) -> float | None:
        """What no plan goes below, among all choices."""
        return self.bound if self.whole is None else self.whole.bound

    def _say(self, phase: str, message: str) -> None:
        self.effort.say(phase, message, None if self.best is None else self.best[0], self.bound_of_all)

    def _answer(self, lacking: Infeasibility | None) -> PartitionPlan:
        if self.best is None or self.verdict is None:
            return self._empty("proof", lacking)
        return self._plan(self.best[1], self.verdict, self.effort.stopped_by(proved=self._is_proved()))

    def _empty(self, stopped_by: str, lacking: Infeasibility | None = None) -> PartitionPlan:
        """What every answer says of the run."""
        return PartitionPlan(
            name=self.problem.name,
            problem_sha256=self.problem.sha256,
            status="infeasible",
            unit=self.problem.unit,
            method=self.effort.options.method,
            stopped_by=stopped_by,
            seconds=dict(self.effort.seconds),
            solver=self.effort.solver_facts(),
            check={},
            options=self.effort.options.to_document(),
            budget_bytes=self.budget_bytes,
            infeasibility=lacking,
        )

    def _plan(self, splits: Splits, verdict: Check, stopped_by: str) -> PartitionPlan:
        gap = relative_gap(verdict.objective, self.bound_of_all)
        return replace(
            self._empty(stopped_by),
            status="optimal" if self._is_within(gap) else "feasible",
            objective=verdict.objective,
            bound=self.bound_of_all,
            gap=gap,
            check=verdict.summary(),
            splits=splits,
            redistributions=verdict.redistributions,
        )
