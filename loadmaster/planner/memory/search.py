"""The state of one search for a memory plan: the best checked schedule, the best proved bound, the clock.

Two moves: *relax* raises the bound (:mod:`loadmaster.models.memory.relaxation`), *restrict* finds plans
(:mod:`loadmaster.models.memory.banded`). Other modules of this package stand on them. Every plan is completed and
checked before it counts.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from loadmaster.errors import CheckFailedError
from loadmaster.models.memory import relaxation
from loadmaster.models.memory.banded_points import Banded
from loadmaster.models.memory.checker import MemoryCheck, check
from loadmaster.models.memory.completion import complete
from loadmaster.models.memory.plan import MemoryPlan, Schedule
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.relaxation_points import Relaxation
from loadmaster.models.memory.rows import OutOfTimeError
from loadmaster.models.memory.statements import overhead_gap
from loadmaster.models.memory.unconstrained import unconstrained_cost
from loadmaster.planner.effort import GOING_ON, Effort
from loadmaster.planner.memory.answer import ROUNDING, at_most, lesser
from loadmaster.planner.memory.retries import NO_ANSWER, Retries
from loadmaster.planner.memory.slots import Slots
from loadmaster.solvers.process import solve
from loadmaster.solvers.program import FloatArray, Program
from loadmaster.solvers.solution import Progress, Solution, SolveOptions, SolverStatus, relative_gap

T = TypeVar("T")

# No move is worth starting with less wall time than this left.
LEAST_SECONDS = 0.5
# A solve ends within this time once it is asked to, killed if it must be; of a short limit it is this share.
ENDING_S = 0.6
ENDING_SHARE = 0.1
# A relaxation is solved to this gap: what is left over is lost from the bound.
RELAXATION_GAP = 5e-4
# A restriction is solved to this gap: finer is below what its slots cost anyway.
RESTRICTION_GAP = 2e-3
# A restriction that has found no plan after this share of its time is left to another way to look for one.
FIRST_PLAN_SHARE = 0.6
# Small graphs have round sizes and budgets, where a byte decides: up to this many stage-by-operator cells a restriction
# may fill the budget to the byte, and is solved again if solver tolerances took it further. They are solved whole.
TO_THE_BYTE_CELLS = 1_500
# A bound that is above a checked plan by more than this share is false, and not rounding.
TOO_HIGH = 1e-6
# A restriction under way is ended early only by a plan this good: a caller who asks for less proof still gets what the
# solve at hand can find.
GOOD_GAP = 0.01


@dataclass
class Search:
    """State of one search. ``best`` and ``verdict`` belong together; no plan is below ``bound``.

    Attributes:
        unconstrained: objective of the step with memory to spare: the first bound.
        closing_s: wall seconds it takes to complete and check a plan: those of the trivial one, until others took more.
        nearest: while there is no plan, a schedule that takes more than the budget, and the verdict on it.
        fallback: another search, whose plan this one reports but does not start from, until it takes it: a search that
            starts from a poor plan ends near it.
    """

    problem: MemoryProblem
    budget_bytes: int
    effort: Effort
    best: Schedule | None = None
    verdict: MemoryCheck | None = None
    nearest: tuple[Schedule, MemoryCheck] | None = None
    method: str = ""
    bound: float | None = None
    infeasible: bool = False
    closing_s: float = 0.0
    fallback: Search | None = None
    retries: Retries = field(default_factory=Retries)
    unconstrained: float = field(init=False)

    def __post_init__(self) -> None:
        self.unconstrained = self.built(lambda: unconstrained_cost(self.problem))
        self.raise_bound(self.unconstrained)

    # -- where we stand ----------------------------------------------------------------------------------------------

    @property
    def objective(self) -> float | None:
        """Objective of the best plan so far."""
        return None if self.verdict is None else self.verdict.objective

    @property
    def gap(self) -> float | None:
        """Gap of the best plan to the best bound."""
        return None if self.objective is None else relative_gap(self.objective, at_most(self.bound, self.objective))

    def done(self) -> bool:
        """Return whether to stop: gap reached, infeasible, out of time, or cancelled."""
        stopped = self.effort.cancelled() or self.left_s < LEAST_SECONDS
        return stopped or self.infeasible or self.gap_is_proved()

    def say(self, phase: str, message: str, objective: float | None = None) -> None:
        """Report progress to the caller, with the better objective of this search and its fallback."""
        best = lesser(self.objective, None if self.fallback is None else self.fallback.objective)
        self.effort.say(phase, message, lesser(objective, best), self.bound)

    # -- moves -------------------------------------------------------------------------------------------------------

    def relax(
        self, starts: Sequence[int], limit_s: float, gap: float = RELAXATION_GAP, cutoff: float | None = None
    ) -> tuple[Relaxation, FloatArray] | None:
        """Raise the bound with groups of backward stages, given by their first ones; learn whether a plan can exist at
        all. It is solved to ``gap``. ``cutoff``: no optimum beyond it is of interest; there is a plan that costs so
        much. Returns the relaxation and its optimum; None if that was not reached."""
        phase = f"bound, {len(starts)} boundar{'y' if len(starts) == 1 else 'ies'}"
        until = self.build_deadline()
        try:
            make = functools.partial(relaxation.build, self.problem, self.budget_bytes, starts, out_of_time=until)
            relaxed = self.built(make)
        except OutOfTimeError:
            self.say(phase, "no time left to write it")
            return None

        def live(progress: Progress) -> None:
            self.raise_bound(progress.bound)
            self.say(phase, f"{progress.nodes} nodes")

        options = SolveOptions(seed=self.effort.options.seed, cutoff=cutoff)
        solution = self.solved(relaxed.program, limit_s, gap, live, self.gap_is_proved, options)
        # Under a cutoff, infeasible only means that nothing better exists.
        if solution.status is SolverStatus.INFEASIBLE and cutoff is None:
            self.prove_infeasible(phase)
        self.raise_bound(solution.bound)
        self.say(phase, "done")
        if solution.status is not SolverStatus.OPTIMAL or solution.values is None:
            return None
        return relaxed, solution.values

    def raise_bound(self, bound: float | None) -> None:
        """Take a proved lower bound if it is better (one from a relaxation, never from a restriction). Raises
        CheckFailedError if a checked plan is below it: one of the two is wrong."""
        if bound is not None and bound > float("-inf") and (self.bound is None or bound > self.bound):
            self.bound = bound
            self._expect_no_plan_below()

    def _expect_no_plan_below(self) -> None:
        if self.bound is not None and self.objective is not None and self.objective < self.bound * (1 - TOO_HIGH):
            raise self._contradiction(f"a proved bound of {self.bound} is above its objective of {self.objective}")

    def _contradiction(self, text: str) -> CheckFailedError:
        where = f"{self.problem.name} under {self.budget_bytes} bytes"
        return CheckFailedError(f"{where}: a {self.method} schedule passes its check, but {text}: please report it")

    def prove_infeasible(self, phase: str) -> None:
        """Take a proof that no plan exists. Raises CheckFailedError if a checked plan is in hand: one of the two is
        wrong."""
        if self.best is not None:
            raise self._contradiction(f"{phase} says that there is none")
        self.infeasible = True

    def restrict(self, slots: Slots, limit_s: float, *, seed: int = 0, offload: bool = True) -> SolverStatus:
        """Look for a better plan in one restriction, starting from the best so far. ``OPTIMAL``: there is nothing left
        in it."""
        make = functools.partial(self.restriction, slots, self.budget_bytes, offload=offload)
        restriction = make(to_the_byte=self.is_small)
        if restriction is None:
            return SolverStatus.NO_SOLUTION
        phase = f"plans, {len(restriction.groups)} slots"
        status, found = self.solve_restriction(restriction, restriction.program, phase, limit_s, seed)
        if self.is_small and found is not None and not found.ok and self.left_s >= LEAST_SECONDS:
            restriction = make(to_the_byte=False)
            if restriction is not None:
                self.solve_restriction(restriction, restriction.program, phase, limit_s, seed)
        self.say(phase, "done")
        return status

    def solve_restriction(
        self, restriction: Banded, program: Program, phase: str, limit_s: float, seed: int
    ) -> tuple[SolverStatus, MemoryCheck | None]:
        """Solve a restriction, or a part of it, and take its plan if it is better. ``program`` is the restriction's,
        perhaps with more columns fixed. Returns the status, and the verdict on the plan, None without a plan."""
        latest: float | None = None

        def live(progress: Progress) -> None:
            nonlocal latest
            latest = progress.objective
            self.say(phase, f"{progress.nodes} nodes", progress.objective)

        deadline = time.monotonic() + FIRST_PLAN_SHARE * limit_s

        def enough() -> bool:
            is_lost = self.may_minimize_bytes and latest is None and time.monotonic() > deadline
            return is_lost or self._good(latest)

        options = SolveOptions(seed=self.effort.options.seed + seed)
        if self.best is not None:
            columns, values = restriction.start(self.best)
            options = replace(options, start_columns=columns, start_values=values)

        def found(values: FloatArray) -> None:
            self.offer(lambda: complete(self.problem, self.budget_bytes, restriction.decisions(values)), "banded")

        solution = self.solved(program, limit_s, RESTRICTION_GAP, live, enough, options, found)
        return solution.status, None if solution.values is None else self.take(restriction, solution.values)

    @property
    def incumbent(self) -> Schedule | None:
        """Best plan; before one is found, the schedule that comes nearest to the budget."""
        return self.best or (self.nearest and self.nearest[0])

    @property
    def is_small(self) -> bool:
        """True if restrictions are small enough to be solved whole, and a byte may decide."""
        return self.problem.stage_count * len(self.problem.forward) <= TO_THE_BYTE_CELLS

    @property
    def may_minimize_bytes(self) -> bool:
        """True if any plan may be looked for by its bytes: none is in hand, and nothing travels to the host."""
        return self.best is None and not self.problem.may_offload

    def take(self, restriction: Banded, values: FloatArray) -> MemoryCheck:
        """Take the plan of a restriction's point if it is better; return the verdict on it."""
        began, decisions = time.monotonic(), restriction.decisions(values)
        verdict = self.adopt(self.built(lambda: complete(self.problem, self.budget_bytes, decisions)), "banded")
        self.closing_s = max(self.closing_s, time.monotonic() - began)
        return verdict

    def restriction(
        self, slots: Slots, budget_bytes: int | None, *, offload: bool = True, to_the_byte: bool = False
    ) -> Banded | None:
        """Build one member of the portfolio, with the incumbent among its points; None if time is too short. No budget:
        it is minimized."""
        make = functools.partial(slots.restriction, self.problem, self.incumbent, budget_bytes, offload=offload)
        until = self.build_deadline()
        try:
            return self.built(lambda: make(to_the_byte=to_the_byte, out_of_time=until))
        except OutOfTimeError:
            self.say(f"plans, {slots.count} slots", "no time left to write it")
            return None

    def adopt(self, schedule: Schedule, method: str) -> MemoryCheck:
        """Check a schedule and take it if it holds the budget and is better; return the verdict."""
        with self.effort.on_clock("check"):
            verdict = check(self.problem, schedule, self.budget_bytes)
        if not verdict.ok:
            self.say("check", f"a {method} schedule was refused: {verdict.violations[0]}")
        else:
            self._keep(schedule, verdict, method)
        return verdict

    def offer(self, make: Callable[[], Schedule], method: str) -> None:
        """Offer a point of a solve under way, which may make a better plan. It is looked at when the caller asks for
        the best so far, or at once while no plan is in hand."""

        def look() -> None:
            # The clock of the solve goes on.
            schedule = make()
            verdict = check(self.problem, schedule, self.budget_bytes)
            if verdict.ok:
                self._keep(schedule, verdict, method)

        def in_hand() -> MemoryPlan:
            look()
            return self.in_hand()

        if self.best is None:
            look()
        else:
            self.effort.hold(in_hand)

    def _keep(self, schedule: Schedule, verdict: MemoryCheck, method: str) -> None:
        if self.verdict is not None and verdict.objective >= self.verdict.objective:
            return
        self.best, self.verdict, self.method = schedule, verdict, method
        self._expect_no_plan_below()
        if verdict.objective <= self.unconstrained * (1 + ROUNDING):
            self.raise_bound(verdict.objective)
        self.effort.hold(lambda: self.in_hand())

    def in_hand(self) -> MemoryPlan:
        """Return the best plan so far, the fallback's among them."""
        best = self
        if self.fallback is not None and lesser(self.objective, self.fallback.objective) != self.objective:
            best = self.fallback
        return best.plan(GOING_ON)

    def plan(self, stopped_by: str) -> MemoryPlan:
        """Build the plan of the best schedule, with the bound so far."""
        assert self.verdict is not None, "a plan is in hand"
        bound = at_most(self.bound, self.verdict.objective)
        return MemoryPlan(
            **self.effort.envelope(self.problem, stopped_by, self.verdict, bound, self.method),
            budget_bytes=self.budget_bytes,
            overhead_gap=overhead_gap(self.verdict.objective, bound, self.unconstrained),
            unconstrained=self.unconstrained,
            schedule=self.best,
        )

    def take_fallback(self) -> None:
        """Take the fallback's plan if it is better, and drop the fallback."""
        if self.fallback is not None and self.fallback.best is not None:
            self.adopt(self.fallback.best, self.fallback.method)
        self.fallback = None

    def has_plan(self) -> bool:
        """Return whether a plan is in hand, the fallback's among them."""
        self.take_fallback()
        return self.best is not None

    def gap_is_proved(self) -> bool:
        """Return whether the plan in hand is within the asked gap."""
        objective = self.objective
        return objective is not None and self.effort.is_proved(objective, at_most(self.bound, objective))

    def _good(self, objective: float | None) -> bool:
        gap = relative_gap(lesser(objective, self.objective), self.bound)
        return gap is not None and gap <= min(self.effort.options.gap, GOOD_GAP)

    # -- tools -------------------------------------------------------------------------------------------------------

    @property
    def left_s(self) -> float:
        """Wall seconds until the time limit, less what it takes to end a solve, complete and check its plan."""
        return self.effort.left_s - self.closing_s - min(ENDING_S, ENDING_SHARE * self.effort.options.time_limit_s)

    def build_deadline(self) -> Callable[[], bool]:
        """Start a clock for writing a program: it says whether to give up, cancelled or too late to solve it."""
        return lambda: self.effort.cancelled() or self.left_s < LEAST_SECONDS

    def built(self, make: Callable[[], T]) -> T:
        """Run something that builds, on the build clock."""
        with self.effort.on_clock("build"):
            return make()

    def solved(
        self,
        program: Program,
        limit_s: float,
        gap: float,
        on_progress: Callable[[Progress], None],
        enough: Callable[[], bool],
        options: SolveOptions | None = None,
        on_point: Callable[[FloatArray], None] | None = None,
    ) -> Solution:
        """Solve in a process of its own, within the time left; ends early when the caller cancels or has enough. Raises
        SolverError as :class:`~loadmaster.planner.memory.retries.Retries` does."""

        def stop() -> bool:
            # A solver looks at its own clock now and then only, and starts late on a busy machine.
            return self.effort.cancelled() or self.left_s <= 0 or enough()

        asked = replace(
            options or SolveOptions(seed=self.effort.options.seed),
            time_limit_s=max(LEAST_SECONDS, min(limit_s, self.left_s)),
            gap=gap,
            memory_limit_bytes=self.effort.options.solver_memory_bytes,
        )

        told = functools.partial(solve, program, on_progress=on_progress, on_point=on_point, cancelled=stop)
        ask = functools.partial(told, solver=self.effort.options.solver)
        with self.effort.on_clock("solve"):
            solution = self.retries.answer(ask, asked)
        if solution is not NO_ANSWER:
            self.effort.count(solution)
        return solution
