"""Driver of ``graph``: solves the program of each order, first without the budget, then under it where that binds.

The optimum without a budget bounds all plans. Where its kernels, put into sequence, and the hot rows that are worth it
take more than the budget, the program is solved with rows of memory. A set of kernels that is still too much is
excluded, with all others that are too much for the same reason (:func:`loadmaster.models.graph.sequence.conflict`), and
so on. Schedules by rule are tried first: there is a plan as soon as one of them fits. Orders are solved one by one,
those with the least bound first; those that take more than the best plan are left out.

Other methods are rules: what other systems do, and what plans are compared with ([Wu24] section 3.4.3).

hector      linear operators reordered wherever that multiplies weights first, compact wherever that can be
vanilla     as written, every product for each edge
unfused     as written, compact, every value that is kept by a kernel of its own
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from loadmaster.errors import LimitReachedError
from loadmaster.models.graph.candidates import Candidates, candidates
from loadmaster.models.graph.checker import GraphCheck, check, fastest_tiles, kernel_costs, kernel_words
from loadmaster.models.graph.costs import Costs, least_us
from loadmaster.models.graph.formulation import Formulated, formulate, least_at_once
from loadmaster.models.graph.hot_rows import as_many_as_fit, gather_us, worth_rows
from loadmaster.models.graph.limits import least_bytes
from loadmaster.models.graph.lowering import greedy_kept, greedy_schedule, least_kept, lowered
from loadmaster.models.graph.orders import COMPACT, Order, orders
from loadmaster.models.graph.plan import GraphInfeasibility, GraphPlan
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.residence import largest_at, over_time, peak_bytes
from loadmaster.models.graph.rewriting import FIRST, SPREAD, WEIGHTS
from loadmaster.models.graph.schedule import Kernel, Schedule
from loadmaster.models.graph.sequence import Fact, Sequences, conflict, in_sequence
from loadmaster.models.units import show_bytes
from loadmaster.planner.effort import CLOSE, GOING_ON, Effort, proved, unit_of
from loadmaster.planner.options import PlanOptions, PlanProgress
from loadmaster.solvers.solution import Solution, SolverStatus

_BLOCKERS = 3
# Reasons for which sets of kernels are excluded: they take more memory in sequence than the rows of memory count.
_MOST_ROUNDS = 50


def _hector(orders: Sequence[Order]) -> Order:
    """Choose the order with most products of weights; of equals the one with fewest other changes."""

    def rank(order: Order) -> tuple[int, int]:
        forms = [form.partition(",")[0] for form in order.choices.values()]
        return (forms.count(WEIGHTS), -sum(form not in (WEIGHTS, FIRST, COMPACT) for form in forms))

    return max(orders, key=rank)


def _vanilla(orders: Sequence[Order]) -> Order:
    """Choose the order as written, with most products for each edge."""
    written = [o for o in orders if set(o.choices.values()) <= {FIRST, SPREAD, COMPACT}]
    return max(written, key=lambda order: [*order.choices.values()].count(SPREAD))


METHODS: Mapping[str, tuple[Callable[[Sequence[Order]], Order], Callable[[Program], Schedule]]] = {
    "hector": (_hector, greedy_schedule),
    "vanilla": (_vanilla, greedy_schedule),
    "unfused": (lambda orders: orders[0], lambda program: lowered(program, greedy_kept(program), fuse=False)),
}


def plan_graph(
    problem: GraphProblem,
    options: PlanOptions,
    *,
    on_progress: Callable[[PlanProgress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> GraphPlan:
    """Plan one ``graph`` problem: ``auto`` and the other methods as above. Raises LimitReachedError if there may be a
    plan under the budget, but none was found; CancelledError if cancelled before any plan."""
    return _Run(problem, Effort(options, on_progress, cancelled)).plan()


@dataclass(frozen=True)
class _Found:
    """A schedule that fits the budget, and its verdict."""

    order: Order
    program: Program
    schedule: Schedule
    hot_rows: int
    verdict: GraphCheck


class _Run:
    def __init__(self, problem: GraphProblem, effort: Effort) -> None:
        self.problem, self.budget_bytes, self.effort = problem, effort.budget_bytes, effort
        with effort.on_clock("build"):
            self.orders = orders(problem.program)
            self.steps = [problem.step(order.program) for order in self.orders]
        self.wanted_rows = worth_rows(problem)
        # What plans of each order do not go below, once that is known.
        self.lower: list[float] = []
        self.best: _Found | None = None
        # Of all schedules that were tried: the least time, whatever memory it takes, and what takes least memory.
        self.best_without_us = math.inf
        self.smallest: tuple[int, Program, Schedule] | None = None
        self.is_infeasible = False

    def plan(self) -> GraphPlan:
        self.effort.expect_uncancelled()
        method = self.effort.options.method
        with self.effort.keep_plan_on_crash(lambda: self.best is not None):
            if method == "auto":
                self._auto()
            else:
                choose, schedule = METHODS[method]
                at = self.orders.index(choose(self.orders))
                self._try(method, at, schedule(self.steps[at]).kernels)
        if self.best is None:
            if self.is_infeasible:
                envelope = self.effort.envelope(self.problem, "proof")
                return GraphPlan(**envelope, budget_bytes=self.budget_bytes, infeasibility=self._lacking())
            self.effort.expect_uncancelled()
            assert self.smallest is not None, "schedules by rule were tried"
            raise LimitReachedError(
                f"no plan was found under {show_bytes(self.budget_bytes)}; the smallest takes "
                f"{show_bytes(self.smallest[0])} ({self.smallest[0]} bytes). Give a larger budget."
            )
        return self._plan(self.best, self.effort.stopped_by(proved=self._is_proved()))

    def _auto(self) -> None:
        for at, step in enumerate(self.steps):
            for schedule in (greedy_schedule(step), lowered(step, least_kept(step))):
                self._try("rules", at, schedule.kernels)
        if least_bytes(self.problem) > self.budget_bytes:
            self.is_infeasible = True
            return
        link_us = gather_us(self.problem, self.wanted_rows)
        self.lower = [least_us(self._costs(p)) + link_us for p in range(len(self.orders))]
        for p in self._by_promise():
            if self.lower[p] < self.best_without_us and not self.effort.over():
                self._without_budget(p)
        for p in self._by_promise():
            if self.lower[p] < self._best_us and not self._done():
                self._under_the_budget(p)
        self.is_infeasible = all(math.isinf(lower) for lower in self.lower)

    def _by_promise(self) -> list[int]:
        return sorted(range(len(self.orders)), key=lambda p: self.lower[p])

    def _without_budget(self, p: int) -> None:
        """Solve one order without rows of memory."""
        with self.effort.on_clock("build"):
            of = candidates(self._costs(p), by_time_alone=True)
            if of.are_all:
                self.lower[p] = max(self.lower[p], of.least_us + gather_us(self.problem, self.wanted_rows))
        if self.lower[p] < self.best_without_us:
            self._rounds("program", p, of, None, rounds=1)

    def _under_the_budget(self, p: int) -> None:
        """Solve one order with rows of memory; with all values that may be kept, where they are not too many."""
        with self.effort.on_clock("build"):
            of = candidates(self._costs(p), by_time_alone=False)
            if of.are_all and least_at_once(self.problem, of) > self.budget_bytes:
                self.lower[p] = math.inf
                return
            if not of.are_all:
                of = replace(candidates(self._costs(p), by_time_alone=True), are_all=False)
        self._rounds("memory", p, of, self.budget_bytes, rounds=_MOST_ROUNDS)

    def _costs(self, p: int) -> Costs:
        problem = self.problem
        return Costs(self.steps[p], problem.statistics, problem.element_bytes, problem.hardware)

    @property
    def _best_us(self) -> float:
        return math.inf if self.best is None else self.best.verdict.objective

    @property
    def bound(self) -> float | None:
        """Lower bound of all plans, in any order."""
        return min(*self.lower, self._best_us) if self.lower else None

    def _rounds(self, phase: str, p: int, of: Candidates, budget_bytes: int | None, *, rounds: int) -> None:
        """Solve one order, put its kernels into sequence, exclude them, again. An optimum is a bound, where the
        candidates are all that count, as long as all that was excluded was put into the best sequence there is: then
        nothing better was lost."""
        # All features over the link, which the program's hot rows save from.
        constant = gather_us(self.problem, 0)
        scale = unit_of(max(self.best_without_us, constant))
        kernels_us = self._best_us - gather_us(self.problem, self.wanted_rows)
        with self.effort.on_clock("build"):
            of = of.within(kernels_us * (1.0 + CLOSE))
            formulated = formulate(self.problem, [of], budget_bytes, scale)
        nothing_lost = of.are_all
        for at in range(rounds):
            if self.effort.over() if budget_bytes is None else self._done():
                return
            best_us = self._best_us
            cutoff = None if math.isinf(best_us) else (best_us - constant) / scale
            solution = self._solved(phase, formulated, cutoff)
            if nothing_lost:
                if solution.status is SolverStatus.INFEASIBLE:
                    self.lower[p] = max(self.lower[p], best_us)
                elif solution.bound is not None:
                    self.lower[p] = max(self.lower[p], proved(solution.bound, scale) + constant)
            if solution.values is None or self.lower[p] >= self._best_us:
                return
            _, chosen = formulated.chosen(solution.values)
            nothing_lost &= self._try(phase, p, [of.found[c].kernel for c in chosen])
            if at < rounds - 1:
                formulated = formulated.without(0, self._alike(p, of, chosen), f"excluded[{at}]")

    def _alike(self, p: int, of: Candidates, chosen: Sequence[int]) -> list[list[int]]:
        """List groups of candidates: one of each, taken together, are too much, or what was tried."""
        with self.effort.on_clock("build"):
            facts = [Fact(frozenset(of.found[c].kernel.stores), of.found[c].reads) for c in chosen]
            reason = conflict(Sequences(self.problem, self.steps[p]), facts, self.budget_bytes)
            if reason is None:
                return [[c] for c in chosen]
            every = [(frozenset(one.kernel.stores), one.reads) for one in of.found]
            return [
                [c for c, (stores, reads) in enumerate(every) if fact.stores <= stores and fact.reads <= reads | stores]
                for fact in reason
            ]

    def _solved(self, phase: str, what: Formulated, cutoff: float | None) -> Solution:
        gap = self.effort.options.gap / 2
        return self.effort.solved(what.program, lambda: self._say(phase, "solving"), gap=gap, cutoff=cutoff)

    def _try(self, phase: str, order: int, kernels: Iterable[Kernel]) -> bool:
        """Take a set of kernels where it is the best that fits, with as many hot rows as fit next to it. Return whether
        no plan of these kernels is better than the best one now."""
        program = self.steps[order]
        with self.effort.on_clock("check"):
            found = in_sequence(self.problem, program, [*kernels])
        if found is None:
            return True
        with self.effort.on_clock("check"):
            schedule = fastest_tiles(self.problem, program, found.schedule)
            peak = peak_bytes(self.problem, program, schedule)
            if self.smallest is None or peak < self.smallest[0]:
                self.smallest = (peak, program, schedule)
            kernels_us = sum(cost.time_us for cost in kernel_costs(self.problem, program, schedule))
            self.best_without_us = min(self.best_without_us, kernels_us + gather_us(self.problem, self.wanted_rows))
            if peak > self.budget_bytes:
                self._say(phase, f"{show_bytes(peak)} are too much")
                return found.is_least
            hot_rows = min(self.wanted_rows, as_many_as_fit(self.problem, self.budget_bytes - peak))
            if kernels_us + gather_us(self.problem, hot_rows) < self._best_us:
                choices = self.orders[order].choices
                verdict = check(self.problem, choices, program, schedule, hot_rows, self.budget_bytes)
                assert verdict.ok, verdict.violations
                best = _Found(self.orders[order], program, schedule, hot_rows, verdict)
                self.best = best
                self.effort.hold(lambda: self._plan(best, GOING_ON))
        self._say(phase, f"{show_bytes(peak)} at the most")
        return found.is_least

    def _done(self) -> bool:
        return self.effort.over() or self._is_proved()

    def _is_proved(self) -> bool:
        return self.best is not None and self.effort.is_proved(self.best.verdict.objective, self.bound)

    def _say(self, phase: str, message: str) -> None:
        self.effort.say(phase, message, None if self.best is None else self.best.verdict.objective, self.bound)

    def _lacking(self) -> GraphInfeasibility:
        """State the smallest budget that works, of all that was tried."""
        assert self.smallest is not None, "schedules by rule were tried"
        peak, program, schedule = self.smallest
        at = int(over_time(self.problem, program, schedule).argmax())
        largest = tuple(largest_at(self.problem, program, schedule, at, _BLOCKERS))
        return GraphInfeasibility(peak, peak - self.budget_bytes, kernel_words(program, schedule, at), largest)

    def _plan(self, found: _Found, stopped_by: str) -> GraphPlan:
        return GraphPlan(
            **self.effort.envelope(self.problem, stopped_by, found.verdict, self.bound),
            budget_bytes=self.budget_bytes,
            choices=dict(found.order.choices),
            program=found.program,
            schedule=found.schedule,
            kernels=found.verdict.kernels,
            hot_rows=found.hot_rows,
        )
