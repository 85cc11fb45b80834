"""The clock, the caller, the options and the costs of one planning run: what every move asks before it goes on."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from loadmaster.cancelling import is_cancelled
from loadmaster.errors import CancelledError, SolverError, SolverKilledError
from loadmaster.models.envelope import Plan
from loadmaster.models.kind import Problem, Verdict
from loadmaster.planner.options import PlanOptions, PlanProgress
from loadmaster.solvers.process import solve
from loadmaster.solvers.program import Program
from loadmaster.solvers.solution import Solution, SolveOptions, relative_gap

logger = logging.getLogger(__name__)
LEAST_SECONDS = 0.1  # that a solver gets to begin with
GOING_ON = "nothing"  # what has stopped a search that goes on
CLOSE = 1e-9  # relative: sums of the same costs in another order are equal to so many digits


@dataclass
class Effort:
    """Time, options and costs of one planning run. ``solver``, ``cpu_seconds`` and ``nodes`` are of the solves so far.

    Attributes:
        seconds: wall seconds spent on ``build``, ``solve`` and ``check``.
        crashed: a solver failed while a plan was in hand, and the run ended with that.
        killed: a solver was killed from outside, and started once more.
        cut_short: the clock ended a part of the search that had more to try.
        plan: makes the best plan in hand, see :meth:`hold`.
    """

    options: PlanOptions
    on_progress: Callable[[PlanProgress], None] | None = None
    asked_to_stop: Callable[[], bool] | None = None
    was_cancelled: bool = False
    seconds: dict[str, float] = field(default_factory=lambda: {"build": 0.0, "solve": 0.0, "check": 0.0})
    solver: tuple[str, str] = ("none", "")
    cpu_seconds: float = 0.0
    nodes: int = 0
    solves: int = 0
    crashed: bool = False
    killed: bool = False
    cut_short: bool = False
    plan: Callable[[], Plan] | None = None

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._processor_began = time.process_time()

    @property
    def budget_bytes(self) -> int:
        """Budget of a kind that has one: settled options state it."""
        budget_bytes = self.options.budget_bytes
        assert isinstance(budget_bytes, int), "settled options have one"
        return budget_bytes

    @property
    def elapsed_s(self) -> float:
        """Wall seconds since the run began."""
        return time.monotonic() - self._began

    @property
    def left_s(self) -> float:
        """Wall seconds until the time limit."""
        return self.options.time_limit_s - self.elapsed_s

    @property
    def total_cpu_seconds(self) -> float:
        """Processor seconds of this process and all its solves."""
        return self.cpu_seconds + time.process_time() - self._processor_began

    def cancelled(self) -> bool:
        """Return whether the caller cancelled the run."""
        if is_cancelled() or (self.asked_to_stop is not None and self.asked_to_stop()):
            self.was_cancelled = True
        return self.was_cancelled

    def expect_uncancelled(self) -> None:
        """Raise CancelledError if the caller cancelled the run, which has no plan yet."""
        if self.cancelled():
            raise CancelledError("cancelled before a plan was found")

    def over(self) -> bool:
        """Return whether to stop: out of time, or cancelled."""
        return self.cancelled() or self.left_s <= 0

    def say(self, phase: str, message: str, objective: float | None = None, bound: float | None = None) -> None:
        """Report to the caller; objective and bound in the unit of the problem."""
        if self.on_progress is not None:
            gap = relative_gap(objective, bound)
            self.on_progress(PlanProgress(self.elapsed_s, phase, message, objective, bound, gap, self.plan))

    def hold(self, make: Callable[[], Plan]) -> None:
        """Take note of a better plan: reports from now on carry ``make``. It builds that plan, or a better one that was
        found since, with :data:`GOING_ON` for what stopped it. It is called wherever the search reports, if at all, and
        uses neither clock nor reports."""
        self.plan = make

    def count(self, solution: Solution) -> None:
        """Add the cost of a solve to the run's account."""
        self.cpu_seconds += solution.cpu_seconds
        self.nodes += solution.nodes
        self.solves += 1
        self.solver = (solution.solver, solution.solver_version)

    def solved(
        self,
        program: Program,
        on_progress: Callable[[], None],
        *,
        gap: float,
        limit_s: float | None = None,
        cutoff: float | None = None,
    ) -> Solution:
        """Solve a program within what is left of the effort, on the clock and in the account.

        Args:
            gap: at which it may stop.
            limit_s: wall seconds, where that is less than what is left.
            cutoff: only what costs no more is of interest; "infeasible" then means that nothing does.
        """
        try:
            return self._solved(program, on_progress, gap, limit_s, cutoff)
        except SolverKilledError as error:
            # Only once in a run: where memory is short, the next one would be killed, too.
            if self.killed or self.left_s < LEAST_SECONDS:
                raise
            logger.warning("%s It is started once more.", error)
            self.killed = True
            return self._solved(program, on_progress, gap, limit_s, cutoff)

    def _solved(
        self, program: Program, on_progress: Callable[[], None], gap: float, limit_s: float | None, cutoff: float | None
    ) -> Solution:
        options = self.options
        left_s = self.left_s if limit_s is None else min(limit_s, self.left_s)
        with self.on_clock("solve"):
            solution = solve(
                program,
                SolveOptions(
                    time_limit_s=max(left_s, LEAST_SECONDS),
                    gap=gap,
                    seed=options.seed,
                    memory_limit_bytes=options.solver_memory_bytes,
                    cutoff=cutoff,
                ),
                solver=options.solver,
                cancelled=self.cancelled,
                on_progress=lambda _: on_progress(),
            )
        self.count(solution)
        return solution

    @contextlib.contextmanager
    def keep_plan_on_crash(self, has_plan: Callable[[], bool]) -> Iterator[None]:
        """Run a block; if a solver fails in it while a plan is in hand, the block ends and the run keeps that plan."""
        try:
            yield
        except SolverError as error:
            if not has_plan():
                raise
            logger.warning("%s The plan in hand is kept.", error)
            self.crashed = True

    def stopped_by(self, *, proved: bool, least_s: float = 0.0) -> str:
        """Return why an answer is not better: gap, cancel, crash, method, or time (the clock cut a part short, or at
        most ``least_s`` is left)."""
        if proved:
            return "gap"
        if self.was_cancelled:
            return "cancel"
        if self.crashed:
            return "crash"
        return "time" if self.cut_short or self.left_s <= least_s else "method"

    def solver_facts(self) -> dict[str, Any]:
        """Collect what a plan records of its solves."""
        name, version = self.solver
        return {
            "name": name,
            "version": version,
            "cpu_seconds": round(self.total_cpu_seconds, 3),
            "solves": self.solves,
            "nodes": self.nodes,
        }

    def is_proved(self, objective: float | None, bound: float | None) -> bool:
        """Return whether the gap between a plan and a bound is at most the one asked for."""
        gap = relative_gap(objective, bound)
        return gap is not None and gap <= self.options.gap + CLOSE

    def envelope(
        self,
        problem: Problem,
        stopped_by: str,
        verdict: Verdict | None = None,
        bound: float | None = None,
        method: str | None = None,
    ) -> dict[str, Any]:
        """Collect the fields that plans of every kind have. No verdict: the answer is that no plan exists. ``bound`` is
        that of all plans; ``method`` is the one that found the plan, where it is not the one asked for."""
        objective = None if verdict is None else verdict.objective
        found = "optimal" if self.is_proved(objective, bound) else "feasible"
        return {
            "name": problem.name,
            "problem_sha256": problem.sha256,
            "status": "infeasible" if verdict is None else found,
            "objective": objective,
            "bound": None if verdict is None else bound,
            "gap": relative_gap(objective, bound),
            "unit": problem.unit,
            "method": method or self.options.method,
            "stopped_by": stopped_by,
            "seconds": dict(self.seconds),
            "solver": self.solver_facts(),
            "check": {} if verdict is None else verdict.summary(),
            "options": self.options.to_document(),
        }

    def on_clock(self, what: str) -> Stopwatch:
        """Add the wall seconds of a ``with`` block to ``seconds[what]``."""
        return Stopwatch(self.seconds, what)


@dataclass
class Stopwatch:
    """Context manager of :meth:`Effort.on_clock`."""

    seconds: dict[str, float]
    what: str

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.seconds[self.what] += time.monotonic() - self._began


# Solvers prune what is better by less than their tolerance, and count the rest as proved. Costs are given in units in
# which an objective is about this, so that the tolerance is a few parts in 10 to the 10.
ABOUT = 4096.0
# HiGHS's absolute tolerance of an objective; no other solver's is larger.
TOLERANCE = 1e-6


def unit_of(objective: float) -> float:
    """Cost that counts as 1, for an objective of about the given size."""
    return objective / ABOUT if objective > 0 else 1.0


def proved(bound: float, unit: float) -> float:
    """Turn a solver's bound in a unit into a proved bound, less its tolerance."""
    return (bound - TOLERANCE) * unit
