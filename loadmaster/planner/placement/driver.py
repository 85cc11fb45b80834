"""Driver of ``placement``: the fluid relaxation for the proof and for what should be away, moves in an order that the
links can keep, and a search for better ones. Small problems are solved exactly, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from loadmaster.errors import CheckFailedError, LimitReachedError
from loadmaster.models.placement import room, timed
from loadmaster.models.placement import slots as slots_of
from loadmaster.models.placement.accesses import Accesses
from loadmaster.models.placement.checker import PlacementCheck, check
from loadmaster.models.placement.limits import least_bytes, peak_bytes
from loadmaster.models.placement.plan import Moves, PlacementInfeasibility, PlacementPlan
from loadmaster.models.placement.problem import PlacementProblem
from loadmaster.models.units import show_bytes
from loadmaster.planner.effort import GOING_ON, Effort, proved, unit_of
from loadmaster.planner.options import PlanOptions, PlanProgress
from loadmaster.planner.placement.evictions import Evictions, TiersFullError
from loadmaster.planner.placement.links import Clock, of_fluid
from loadmaster.planner.placement.search import Found, Search
from loadmaster.solvers.program import FloatArray
from loadmaster.solvers.solution import Solution, SolverStatus

# Slots of the fluid relaxation. More of them raise the bound by less than 1 % on traces of 1,500 operators, and the
# solve takes the square of the time.
FLUID_SLOTS = 60
FLUID_SHARE = 0.5
# The exact program has a variable for every slot of every gap: with more than this it is beyond a solver's time.
EXACT_COLUMNS = 8_000
EXACT_SHARE = 0.4
# Points of the program of room that have too much by a byte, of which each excludes others.
ROOM_ROUNDS = 50
# A budget that works is found to this part of the distance between the least and the peak.
WORKS_SHARE = 2**-16
# Moves are ordered by a clock, and make another one: so often it is asked again.
CLOCKS = 4


def plan_placement(
    problem: PlacementProblem,
    options: PlanOptions,
    *,
    on_progress: Callable[[PlanProgress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> PlacementPlan:
    """Plan one ``placement`` problem: ``auto`` all of the above, ``greedy`` what links have time for, without a solver.
    Raises LimitReachedError if the tiers may have room for a plan, but none was found; CancelledError if cancelled
    before any."""
    return _Run(problem, Effort(options, on_progress, cancelled)).plan()


class _Run:
    def __init__(self, problem: PlacementProblem, effort: Effort) -> None:
        self.problem, self.budget_bytes, self.effort = problem, effort.budget_bytes, effort
        self.accesses = Accesses(problem)
        self.search = Search(self.accesses, self.budget_bytes, effort.options.seed)
        self.bound = problem.compute_us
        self.best: Found | None = None

    def plan(self) -> PlacementPlan:
        self.effort.expect_uncancelled()
        lacking = self._too_little()
        if lacking is not None:
            return self._infeasible(lacking)
        if int(self.accesses.live_bytes.max()) <= self.budget_bytes:
            return self._checked(Moves())
        with self.effort.keep_plan_on_crash(lambda: self.best is not None):
            self._first()
            if self.effort.options.method == "auto":
                self._relax()
                self._exact()
            with self.effort.on_clock("solve"):
                self._improve()
        return self._tight() if self.best is None else self._checked(self.best.moves)

    def _tight(self) -> PlacementPlan:
        """Find a plan that fits the tiers, however long it takes, or prove that none exists. Raises LimitReachedError
        if neither was found."""
        if self.effort.options.method == "auto" and room.size(self.accesses, self.budget_bytes) <= EXACT_COLUMNS:
            with self.effort.on_clock("build"):
                formulated = room.formulate(self.accesses, self.budget_bytes)
            for at in range(ROOM_ROUNDS):
                if self.effort.over():
                    break
                solution = self.effort.solved(formulated.program, lambda: self._say("room", "solving"), gap=0.0)
                if solution.status is SolverStatus.INFEASIBLE:
                    return self._infeasible(int(self.accesses.live_bytes.argmax()))
                if solution.values is None:
                    break
                moves = formulated.moves(solution.values)
                if check(self.problem, moves, self.budget_bytes, self.accesses).ok:
                    return self._checked(moves)
                formulated = formulated.without(solution.values, f"excluded[{at}]")
        self.effort.expect_uncancelled()
        raise LimitReachedError(
            "no plan was found whose copies fit the tiers. Give a tier more capacity_bytes, or a larger budget."
        )

    def _checked(self, moves: Moves) -> PlacementPlan:
        with self.effort.on_clock("check"):
            verdict = check(self.problem, moves, self.budget_bytes)
        self.effort.say("solved", f"{show_bytes(verdict.peak_bytes)} at the most", verdict.objective, self.bound)
        return self._plan(moves, verdict, self.effort.stopped_by(proved=self._is_proved(verdict.objective)))

    def _too_little(self) -> int | None:
        """Find an operator that plainly has too little memory: it needs more by itself, or with all tiers full."""
        least, at = least_bytes(self.problem)
        if least <= self.budget_bytes:
            at = int(self.accesses.live_bytes.argmax())
            capacities = [t.capacity_bytes for t in self.problem.tiers]
            room_bytes = self.budget_bytes + sum(c or 0 for c in capacities)
            if None in capacities or int(self.accesses.live_bytes[at]) <= room_bytes:
                return None
        return at

    def _infeasible(self, at: int) -> PlacementPlan:
        """Explain that no plan exists, with a budget that has one: the least one, if the tiers hold whatever comes."""
        where = f"operator {at} ({self.problem.operators[at].words})"
        low, works = max(least_bytes(self.problem)[0], self.budget_bytes + 1), peak_bytes(self.problem)
        if self._kept(low) is not None:
            works = low
        else:
            where += ", with all tiers full"
        near = max(1, int((works - low) * WORKS_SHARE))
        while works - low > near:
            half = (low + works) // 2
            low, works = (low, half) if self._kept(half) is not None else (half, works)
        exact = self._kept(works)
        if exact is not None and self._kept(exact) is not None:
            works = exact
        lacking = PlacementInfeasibility(works, works - self.budget_bytes, where)
        envelope, us = self.effort.envelope(self.problem, "proof"), self.problem.compute_us
        return PlacementPlan(**envelope, budget_bytes=self.budget_bytes, compute_us=us, infeasibility=lacking)

    def _kept(self, budget_bytes: int) -> int | None:
        """Bytes on the device at most after evictions that keep a budget; None where they find no room."""
        evictions = Evictions(self.accesses, budget_bytes)
        try:
            evictions.keep_the_budget(self.search.idle_links(self._plain_clock()))
        except TiersFullError:
            return None
        return max(int(evictions.resident().max()), 0)

    def _plain_clock(self) -> Clock:
        """Clock of a step without copies."""
        times = np.array(self.search.times_us)
        ends = np.cumsum(times)
        return Clock((ends - times).tolist(), self.search.times_us, float(ends[-1]))

    def _first(self) -> None:
        """Find moves without a solver: a plan to fall back on."""
        with self.effort.on_clock("solve"):
            self._take("greedy", Evictions(self.accesses, self.budget_bytes), self._plain_clock())

    def _relax(self) -> None:
        """Solve the fluid relaxation: its value is a bound, and what it has away is what should be."""
        with self.effort.on_clock("build"):
            slots = slots_of.merged(self.accesses, self.budget_bytes, FLUID_SLOTS)
            fluid = timed.formulate(self.accesses, slots, self.budget_bytes, exact=False)
        solution = self._solved("fluid relaxation", fluid, FLUID_SHARE, gap=0.0)
        if solution.status is SolverStatus.OPTIMAL and solution.values is not None:
            assert solution.bound is not None
            self.bound = max(self.bound, solution.bound)
            self._take_point("fluid relaxation", fluid, solution.values)

    def _exact(self) -> None:
        """Solve the program with integers over every operator, where it is small."""
        if self._done():
            return
        with self.effort.on_clock("build"):
            slots = slots_of.every(self.accesses, self.budget_bytes)
            # Each gap has a column for every slot and moment at least.
            rooms = sum(g.before - g.after for g in self.accesses.gaps) * len(self.problem.tiers)
            if 3 * rooms > EXACT_COLUMNS:
                return
            exact = timed.formulate(self.accesses, slots, self.budget_bytes, exact=True)
        solution = self._solved("exact program", exact, EXACT_SHARE, gap=self.effort.options.gap / 2)
        if solution.bound is not None:
            self.bound = max(self.bound, solution.bound)
        if solution.values is not None:
            self._take_point("exact program", exact, solution.values)

    def _solved(self, phase: str, what: timed.Timed, share: float, gap: float) -> Solution:
        """Solve a program of microseconds, with the bound that it proves."""
        limit_s = share * self.effort.options.time_limit_s
        program, unit_us = what.program, unit_of(self.problem.compute_us if self.best is None else self.best.step_us)
        program = replace(program, cost=program.cost / unit_us, offset=program.offset / unit_us)
        solution = self.effort.solved(program, lambda: self._say(phase, "solving"), gap=gap, limit_s=limit_s)
        return solution if solution.bound is None else replace(solution, bound=proved(solution.bound, unit_us))

    def _take_point(self, phase: str, what: timed.Timed, values: FloatArray) -> None:
        """Evict what a point of a program has away, by its times."""
        with self.effort.on_clock("solve"):
            evictions = Evictions(self.accesses, self.budget_bytes)
            evictions.add_fluid(what, values)
            self._take(phase, evictions, of_fluid(what, values, self.search.times_us))

    def _take(self, phase: str, evictions: Evictions, clock: Clock) -> None:
        """Take the moves that evictions make, by a clock and by those that they make in turn."""
        try:
            evictions.keep_the_budget(self.search.idle_links(clock))
        except TiersFullError:
            self._say(phase, "the tiers are too full")
            return
        for _ in range(CLOCKS):
            found = self.search.evaluate(evictions, clock)
            if self.best is None or found.step_us < self.best.step_us:
                self._keep(found)
            clock = self.search.clock(found)
        self._say(phase, f"{len(found.moves.absences)} blocks away")

    def _improve(self) -> None:
        if self.best is None or self._done():
            return

        def told(found: Found) -> None:
            self._keep(found)
            self._say("search", f"{len(found.moves.absences)} blocks away")

        self.search.improve(self.best, self._done, told)

    def _keep(self, found: Found) -> None:
        """Keep the best moves so far."""
        self.best = found
        self.effort.hold(lambda: self._in_hand(found.moves))

    def _done(self) -> bool:
        return self.effort.over() or (self.best is not None and self._is_proved(self.best.step_us))

    def _is_proved(self, step_us: float) -> bool:
        return self.effort.is_proved(step_us, self.bound)

    def _say(self, phase: str, message: str) -> None:
        self.effort.say(phase, message, None if self.best is None else self.best.step_us, self.bound)

    def _in_hand(self, moves: Moves) -> PlacementPlan:
        """Build a plan of the search while it goes on. Raises CheckFailedError if the checker refuses it."""
        verdict = check(self.problem, moves, self.budget_bytes)
        if not verdict.ok:
            name, first = self.problem.name, verdict.violations[0]
            raise CheckFailedError(f"a plan of {name} fails its check: {first}. Please report it.")
        return self._plan(moves, verdict, GOING_ON)

    def _plan(self, moves: Moves, verdict: PlacementCheck, stopped_by: str) -> PlacementPlan:
        return PlacementPlan(
            **self.effort.envelope(self.problem, stopped_by, verdict, self.bound),
            budget_bytes=self.budget_bytes,
            compute_us=self.problem.compute_us,
            moves=moves,
        )
