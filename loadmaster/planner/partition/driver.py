"""Driver of ``partition``: a sum of pairwise costs where no budget binds, else prices for memory and the compact
program.

Methods by hand (:mod:`.restrictions`) are tried unless the best plan of all is there at once. Where no price for memory
comes to a plan, the least budget that has one is looked for: no budget below what is proved on the way has one.

Of the program the relaxation comes first. Where its point is a plan that a moment without a row refuses, the row is
added; where the moment has a row, and what a solver tolerates is more than the budget, what is chosen is cut off. Where
the point is fractional, each axis gets one role for the whole model (:mod:`.modules`): few choices are left then, and a
plan is found soon where there is one. At last integers are asked for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from loadmaster.errors import LimitReachedError
from loadmaster.models.partition import transport
from loadmaster.models.partition.checker import PartitionCheck, Rules, check
from loadmaster.models.partition.choices import Choices, coarsened
from loadmaster.models.partition.moments import Memory, Moment, in_units
from loadmaster.models.partition.plan import PartitionInfeasibility, PartitionPlan, Splits
from loadmaster.models.partition.problem import PartitionProblem
from loadmaster.models.units import show_bytes
from loadmaster.planner.effort import CLOSE, GOING_ON, Effort
from loadmaster.planner.options import PlanOptions, PlanProgress
from loadmaster.planner.partition.lagrangian import join, least_bytes, search
from loadmaster.planner.partition.modules import by_roles
from loadmaster.planner.partition.pairwise import minimize
from loadmaster.planner.partition.restrictions import METHODS
from loadmaster.solvers.solution import Solution, SolverStatus

# What solvers tolerate: of a bound of theirs, scaled to about one, so much is not proved.
_TOLERANCE = 1e-6
# Numbers of all costs up to which elimination takes no time worth counting, nor a program of what memory is needed.
_SMALL = 100_000
_BLOCKERS = 3
_ANY_BYTES = 1 << 62


def plan_partition(
    problem: PartitionProblem,
    options: PlanOptions,
    *,
    on_progress: Callable[[PlanProgress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> PartitionPlan:
    """Plan one ``partition`` problem: ``auto`` as above; other methods by :mod:`.restrictions` or :mod:`.modules`.
    Raises LimitReachedError if there may be a plan under the budget, but none was found; CancelledError if cancelled
    before any."""
    effort = Effort(options, on_progress, cancelled)
    with effort.on_clock("build"):
        choices = coarsened(problem)
    return _Run(choices, effort).plan()


class _Run:
    """One run, or with ``whole`` a part of that one among fewer choices, whose bound bounds no other plan."""

    def __init__(self, choices: Choices, effort: Effort, whole: _Run | None = None) -> None:
        self.choices, self.problem, self.effort = choices, choices.problem, effort
        self.budget_bytes = effort.budget_bytes
        self.whole = whole
        with effort.on_clock("build"):
            self.memory = Memory(choices)
            self.rules = Rules(self.problem)
            self.moments = self.memory.moments(int(self.memory.whole_bytes.argmax()))
        self.bound: float | None = None
        self.best: tuple[float, Splits] | None = None
        self.verdict: PartitionCheck | None = None
        # The least budget that any assignment that was tried keeps; what every plan needs.
        self.works_bytes: int | None = None
        self.needed_bytes = int(self.memory.least_bytes.max())
        self.covers: list[transport.Cover] = []

    def plan(self) -> PartitionPlan:
        self.effort.expect_uncancelled()
        with self.effort.keep_plan_on_crash(lambda: self.best is not None):
            if self._is_infeasible():
                self._least()
            elif self.effort.options.method == "auto":
                self._auto()
            elif self.effort.options.method == "module":
                self._by_roles()
            else:
                self._by_method(self.effort.options.method)
        if self.best is None or self.verdict is None:
            self.effort.expect_uncancelled()
            if self._is_infeasible():
                envelope = self.effort.envelope(self.problem, "proof")
                return PartitionPlan(**envelope, budget_bytes=self.budget_bytes, infeasibility=self._lacking())
            raise LimitReachedError(self._nothing_found())
        return self._plan(self.best[1], self.verdict, self.effort.stopped_by(proved=self._is_proved()))

    def _nothing_found(self) -> str:
        found = f"no plan was found under {show_bytes(self.budget_bytes)}"
        if self.works_bytes is not None:
            found += f"; the smallest takes {show_bytes(self.works_bytes)}"
        return f"{found}. Give more time, or a larger budget."

    def _is_infeasible(self) -> bool:
        return self.needed_bytes > self.budget_bytes

    def _lacking(self) -> PartitionInfeasibility:
        n = int(self.memory.least_bytes.argmax())
        held = [moment.shares for moment in self.memory.moments(n)]
        shares = max(held, key=lambda of: sum(float(sizes.min()) for sizes in of.values()))
        largest = sorted(shares, key=lambda v: float(shares[v].min()), reverse=True)[:_BLOCKERS]
        names = tuple(self.problem.tensors[self.choices.variables[v].members[0]].name for v in largest)
        where = f"operator {n} ({self.problem.operators[n].words})"
        short_bytes = self.needed_bytes - self.budget_bytes
        return PartitionInfeasibility(self.needed_bytes, short_bytes, where, names, self.works_bytes)

    def _by_method(self, method: str) -> None:
        with self.effort.on_clock("solve"):
            chosen = METHODS[method](self.choices, self.effort.over)
        self._try(method, chosen)

    def _by_hand(self) -> None:
        """Try all other methods: no plan is worse than the best of theirs."""
        for method in METHODS:
            if self.best is None or not self.effort.over():
                self._by_method(method)

    def _by_roles(self) -> None:
        """Find the best plan under any roles of the axes. The bound is that of all plans: the gap is their cost."""
        runs = self._roles()
        self._bound_of_all()
        for optimum, run in runs:
            if not self._done() and (self.best is None or optimum < self.best[0]):
                self._under(run, functools.partial(run._programs, integer=True))

    def _roles(self) -> list[tuple[float, _Run]]:
        """Try all roles by elimination; return (what any plan costs at least, its run), cheapest first."""
        runs = []
        for _, _, choices in by_roles(self.problem):
            if self.best is not None and self.effort.over():
                break
            with self.effort.on_clock("solve"):
                _, optimum = minimize(choices.unary, choices.pairs, stop=self.effort.over)
            run = _Run(choices, self.effort, self)
            if math.isfinite(optimum) and not run._is_infeasible():
                runs.append((optimum, run))
        runs.sort(key=lambda one: one[0])
        for optimum, run in runs:
            if not self._done() and (self.best is None or optimum < self.best[0]):
                self._under(run, run._eliminated)
        return runs

    def _under(self, run: _Run, look: Callable[[], None]) -> None:
        """Look for a better plan among fewer choices."""
        run.best, run.verdict, run.works_bytes = self.best, self.verdict, self.works_bytes
        look()
        self.best, self.verdict, self.works_bytes = run.best, run.verdict, run.works_bytes
        self._say("roles", "one tried")

    def _is_small(self) -> bool:
        return sum(costs.size for costs in self.choices.pairs.values()) <= _SMALL

    def _bound_of_all(self) -> None:
        """Prove a bound of all plans, whatever their roles."""
        with self.effort.on_clock("solve"):
            chosen, bound = minimize(self.choices.unary, self.choices.pairs, stop=self.effort.over)
        self._prove(bound)
        verdict = check(self.problem, self.choices.splits(chosen), _ANY_BYTES, self.rules)
        if (not verdict.ok or verdict.peak_bytes > self.budget_bytes) and not self._done():
            self._solved_program(integer=False)

    def _auto(self) -> None:
        """Plan without the budget first, and under it where that is too much; methods by hand come before slow ones."""
        if self._is_small():
            self._eliminated(self._by_hand)
        else:
            self._by_hand()
            self._eliminated()
        if self.best is None and not self._done():
            self._least()
        if self._is_infeasible():
            return
        self._programs(integer=False)
        if not self._done():
            self._roles()
        self._programs(integer=True)
        if self.best is None and self._is_infeasible():
            self._least()

    def _eliminated(self, otherwise: Callable[[], None] = lambda: None) -> None:
        """Plan by elimination: without the budget, then with prices for memory under it. ``otherwise`` is called in
        between, where the best plan of all was not found without the budget."""
        with self.effort.on_clock("solve"):
            chosen, optimum = minimize(self.choices.unary, self.choices.pairs, stop=self.effort.over)
        self._prove(optimum)
        self._try("elimination", chosen)
        if self.best is None or self.best[0] > (self.bound or 0.0) * (1 + CLOSE):
            otherwise()
        if not self._done():
            self._prices(optimum)

    def _prices(self, optimum: float) -> None:
        """Search prices for memory, from one at which all of it costs a tenth of the best plan without."""
        first_price = 0.1 * (optimum if optimum > 0 else 1.0) / max(self.budget_bytes, 1)
        take = functools.partial(self._try, "prices")
        search(self.choices, self.moments, self.budget_bytes, first_price, take, self._prove, self._done)

    def _least(self) -> None:
        """Find the least budget that has a plan, as far as averages over some moments tell."""

        moments = list(self.moments)

        def prove(least: float, at: Sequence[Moment]) -> None:
            if math.isfinite(least):
                least = in_units(least, at)
            if self.works_bytes is not None:
                least = min(least, self.works_bytes)
            if math.isfinite(least):
                self.needed_bytes = max(self.needed_bytes, int(least))

        def stop() -> bool:
            is_known = self.works_bytes is not None and self.needed_bytes >= self.works_bytes
            return is_known or self.best is not None or self.effort.over()

        take = functools.partial(self._try, "least memory")
        with self.effort.on_clock("solve"):
            least_bytes(self.choices, moments, take, prove, stop)
        while not stop() and self._is_small():
            assert self.works_bytes is not None, "an assignment was found"
            with self.effort.on_clock("build"):
                program = transport.formulate(
                    self.choices, moments, self.works_bytes, scale=1.0, integer=True, least_memory=True
                )
            solution = self._solved("least memory", program, 0.0)
            if solution.bound is not None:
                prove((solution.bound - _TOLERANCE) * self.works_bytes, moments)
            if solution.values is None:
                return
            chosen = program.chosen(solution.values)
            fullest = take(chosen)
            if fullest is None or not join(moments, fullest):
                return

    def _programs(self, *, integer: bool) -> None:
        """Solve the program, with a row for every moment that its points break; a cut where a moment has a row."""
        while not self._done() and not self._is_infeasible():
            program, solution = self._solved_program(integer=integer)
            if solution.values is None:
                return
            whole = all(np.allclose(solution.values[c].max(), 1.0, atol=1e-6) for c in program.states)
            chosen = program.chosen(solution.values)
            broken = self._try("program" if integer else "relaxation", chosen)
            if not whole or broken is None:
                return
            if not join(self.moments, broken):
                self.covers.append(transport.cover(broken, chosen))

    def _solved_program(self, *, integer: bool) -> tuple[transport.Transport, Solution]:
        """Build and solve the program; its value bounds all plans."""
        scale = self._scale()
        with self.effort.on_clock("build"):
            program = transport.formulate(
                self.choices, self.moments, self.budget_bytes, self.covers, scale=scale, integer=integer
            )
        solution = self._solved("program" if integer else "relaxation", program, self.effort.options.gap / 2)
        if solution.status is SolverStatus.INFEASIBLE:
            self.needed_bytes = max(self.needed_bytes, self.budget_bytes + 1)
        elif solution.bound is not None:
            self._prove((solution.bound - _TOLERANCE) * scale)
        return program, solution

    def _scale(self) -> float:
        """Estimate what a plan costs: what solvers tolerate is little compared with it."""
        for cost in (None if self.best is None else self.best[0], self.bound):
            if cost:
                return cost
        costs = (*self.choices.unary, *self.choices.pairs.values())
        return max((float(c[np.isfinite(c)].max(initial=0.0)) for c in costs), default=0.0) or 1.0

    def _solved(self, phase: str, what: transport.Transport, gap: float) -> Solution:
        return self.effort.solved(what.program, lambda: self._say(phase, "solving"), gap=gap)

    def _try(self, phase: str, chosen: Sequence[int]) -> Moment | None:
        """Take an assignment if it keeps the budget; else return the moment at which it takes most."""
        with self.effort.on_clock("check"):
            splits = self.choices.splits(chosen)
            verdict = check(self.problem, splits, _ANY_BYTES, self.rules)
        if not verdict.ok:  # a fractional point, made whole, can ask for what cannot be brought there
            self._say(phase, "no plan")
            return None
        self.works_bytes = min(verdict.peak_bytes, self.works_bytes or _ANY_BYTES)
        if verdict.peak_bytes > self.budget_bytes:
            self._say(phase, f"{show_bytes(verdict.peak_bytes)} are too much")
            moments = self.memory.moments(int(verdict.resident_bytes.argmax()))
            return max(moments, key=lambda moment: moment.bytes_of(chosen))
        if self.best is None or verdict.objective < self.best[0]:
            self.best, self.verdict = (verdict.objective, splits), verdict
            self.effort.hold(lambda: self._plan(splits, verdict, GOING_ON))
        self._say(phase, f"{show_bytes(verdict.peak_bytes)} at the most")
        return None

    def _prove(self, bound: float) -> None:
        """Raise the bound to one proved for plans better than the best in hand; infinite: no plan keeps the budget."""
        if self.best is not None:
            bound = min(bound, self.best[0])
        elif math.isinf(bound):
            self.needed_bytes = max(self.needed_bytes, self.budget_bytes + 1)
            return
        self.bound = max(self.bound or 0.0, bound)

    def _done(self) -> bool:
        return self.effort.over() or self._is_proved()

    def _is_proved(self) -> bool:
        return self.best is not None and self.effort.is_proved(self.best[0], self.bound)

    @property
    def bound_of_all(self) -> float | None:
        """Lower bound of all plans, among all choices."""
        return self.bound if self.whole is None else self.whole.bound

    def _say(self, phase: str, message: str) -> None:
        self.effort.say(phase, message, None if self.best is None else self.best[0], self.bound_of_all)

    def _plan(self, splits: Splits, verdict: PartitionCheck, stopped_by: str) -> PartitionPlan:
        return PartitionPlan(
            **self.effort.envelope(self.problem, stopped_by, verdict, self.bound_of_all),
            budget_bytes=self.budget_bytes,
            splits=splits,
            redistributions=verdict.redistributions,
        )
