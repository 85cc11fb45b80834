"""Driver of ``training``: baselines first, then the relaxed program of runs of like layers for the proof and for
counts of who does what, the one of fewest runs with whole counts for a better proof, then a search from the best of the
mixes that these make. Where layers have several groups, counts and a first search are of the problem in which each has
one (:mod:`loadmaster.planner.training.merged`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from loadmaster.errors import CheckFailedError, LimitReachedError
from loadmaster.models.training.checker import TrainingCheck, check
from loadmaster.models.training.formulation import Formulated, formulate
from loadmaster.models.training.limits import lacking_on_host, least_bytes, least_us, peak_bytes, plain_us
from loadmaster.models.training.plan import Schedule, TrainingInfeasibility, TrainingPlan
from loadmaster.models.training.problem import TrainingProblem
from loadmaster.models.training.runs import Runs, runs
from loadmaster.models.training.ways import ways
from loadmaster.models.units import show_bytes
from loadmaster.planner.effort import GOING_ON, Effort, proved
from loadmaster.planner.options import PlanOptions, PlanProgress
from loadmaster.planner.training.baselines import BASELINES, Mix, baseline
from loadmaster.planner.training.merged import merged
from loadmaster.planner.training.mixes import mixes
from loadmaster.planner.training.search import Found, Search
from loadmaster.solvers.program import FloatArray, Program
from loadmaster.solvers.solution import Solution, SolverStatus

# Layers that are alike are cut into so many runs: few prove nearly as much as many, which say better who does what.
_RUNS = (1, 4)
# Programs with more columns say who does what too slowly.
_MOST_COLUMNS = 3_000
# Of the time limit, for one program, and how near to its optimum the one with whole counts is solved.
_PROGRAM_SHARE = 0.15
_WHOLE_GAP = 1e-3
# Changes tried in a round of the search: for each layer and group, and at most. After so many rounds without a better
# plan it leaves the best one at random, and after as many more it ends.
_ROUND_EACH, _ROUND_MOST, _FRUITLESS = 12, 600, 3
# Of what is left of the time limit, for the first search where layers have several groups. (Llama of 3 B in four groups
# a block at 12 GiB: 672 ms with a quarter to a third, 683 to 723 with a half, 718 with one group a block.)
_MERGED_SHARE = 0.35
# How near to the truth, as a part of the distance between least and peak, a budget that is too small is proved.
_NEAR_SHARE = 2**-3


class _Margin(NamedTuple):
    """Factors that make a program harder, so that its counts leave room for what it does not see: moves are whole, and
    wait for each other. Moves and updates on the host take so many times as long, and so many times what the largest
    update on the device needs is not to be had, a part of the budget at most."""

    moves: float = 1.0
    updates: float = 1.0
    stays: float = 0.0

    def problem(self, problem: TrainingProblem) -> TrainingProblem:
        """Return a problem with slower moves and updates."""
        if self == _MARGINS[0]:
            return problem
        host = replace(
            problem.host, to_gbps=problem.host.to_gbps / self.moves, from_gbps=problem.host.from_gbps / self.moves
        )
        groups = tuple(
            g if g.host_update_us is None else replace(g, host_update_us=self.updates * g.host_update_us)
            for g in problem.groups
        )
        disk = problem.disk
        if disk is not None:
            disk = replace(disk, to_gbps=disk.to_gbps / self.moves, from_gbps=disk.from_gbps / self.moves)
        return replace(problem, host=host, disk=disk, groups=groups)

    def budget_bytes(self, problem: TrainingProblem, budget_bytes: int) -> int:
        """Return what is left of a budget."""
        stay = max(way.stored_bytes(group) for group in problem.groups for way in ways(group))
        return budget_bytes - int(min(self.stays * stay, _MOST_MARGIN * budget_bytes))


# Of a budget, what a margin takes at most.
_MOST_MARGIN = 0.3
_MARGINS = (_Margin(), _Margin(updates=1.3), _Margin(1.2, 1.5, 1.0), _Margin(1.2, 1.3, 2.0))


def plan_training(
    problem: TrainingProblem,
    options: PlanOptions,
    *,
    on_progress: Callable[[PlanProgress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> TrainingPlan:
    """Plan one ``training`` problem: ``auto`` all of the above, or a baseline by name
    (:mod:`loadmaster.planner.training.baselines`). Raises LimitReachedError if none was found that fits, though there
    may be one; CancelledError if cancelled before any."""
    return _Run(problem, Effort(options, on_progress, cancelled)).plan()


def plan_from(
    problem: TrainingProblem,
    options: PlanOptions,
    known: Sequence[Schedule],
    *,
    on_progress: Callable[[PlanProgress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> TrainingPlan:
    """Plan as :func:`plan_training` does, beginning with schedules of a problem that is much the same."""
    return _Run(problem, Effort(options, on_progress, cancelled), known).plan()


class _Run:
    def __init__(self, problem: TrainingProblem, effort: Effort, known: Sequence[Schedule] = ()) -> None:
        self.known = known
        self.problem, self.budget_bytes, self.effort = problem, effort.budget_bytes, effort
        self.method = effort.options.method
        self.search = Search(problem, self.budget_bytes, effort.options.seed)
        self.bound = least_us(problem)
        self.best: Found | None = None
        self.starts: list[Found] = []
        self.merged = merged(problem)
        self.together: Found | None = None  # the best in which all groups of a layer move together

    def plan(self) -> TrainingPlan:
        self.effort.expect_uncancelled()
        least, where = least_bytes(self.problem)
        if least > self.budget_bytes:
            return self._infeasible(least, where)
        with self.effort.keep_plan_on_crash(lambda: self.best is not None):
            self._take_known()
            self._baselines(BASELINES if self.method == "auto" else [self.method])
            if self.method == "auto" and not self._done():
                if not self._relax() or not self._prove_whole():
                    return self._proved_infeasible()
                self._try_every()
                self._begin_merged()
                self._improve()
                if self.together is not None:
                    self._take("search", self.together)
        if self.best is None:
            raise self._no_plan()
        best = self.search.spared(self.best) if self.method == "auto" else self.best
        return self._checked(best.schedule)

    def _no_plan(self) -> LimitReachedError:
        self.effort.expect_uncancelled()
        remedy = "a larger budget" if self.method == "auto" else "a larger budget, or the method auto"
        if self.problem.host.capacity_bytes is not None:
            remedy += ", or the host more capacity_bytes"
        budget = show_bytes(self.budget_bytes)
        return LimitReachedError(f"no plan was found that fits {budget}, though there may be one. Give {remedy}.")

    def _baselines(self, methods: Iterable[str]) -> None:
        with self.effort.on_clock("solve"):
            for method in methods:
                if self.best is not None and self.effort.over():
                    break
                mix = baseline(self.problem, method, self.search.step_us)
                self._take(method, None if mix is None else self.search.evaluate(mix))

    def _take_known(self) -> None:
        """Take the mixes of schedules that are known, with moves that suit this problem."""
        with self.effort.on_clock("solve"):
            for schedule in self.known:
                places = zip(self.search.ways, schedule.groups, strict=True)
                chosen = [n for of, group in places for n, way in enumerate(of) if way.is_of(group)]
                if len(chosen) == len(schedule.groups):  # a plan by hand may have ways that no search takes
                    self._take("known plan", self.search.evaluate(Mix(schedule.points, tuple(chosen))))

    def _take(self, phase: str, found: Found | None) -> None:
        """Keep what is better than all before."""
        if found is None:
            self._say(phase, "does not fit")
            return
        if self.best is None or found.step_us < self.best.step_us:
            self.best = found
            self.effort.hold(lambda: self._in_hand(found.schedule))
        self._say(phase, "a plan")

    def _relax(self) -> bool:
        """Solve relaxed programs for the bound, take mixes from their counts; return whether there may be a plan."""
        for most in _RUNS:
            for margin in _MARGINS if self.merged is None else _MARGINS[:1]:
                if self._done():
                    return True
                with self.effort.on_clock("build"):
                    of = runs(margin.problem(self.problem), most)
                    formulated = formulate(of.problem, margin.budget_bytes(self.problem, self.budget_bytes), of)
                if most != _RUNS[0] and formulated.program.column_count > _MOST_COLUMNS:
                    return True
                solution = self._solved(formulated.relaxed())
                if margin == _MARGINS[0] and not self._proves(formulated, solution):
                    return False
                if solution.values is not None:
                    self._take_counts(of, formulated, solution.values)
        return True

    def _prove_whole(self) -> bool:
        """Solve the smallest program with whole counts for the bound; return whether there may be a plan."""
        if self._done():
            return True
        with self.effort.on_clock("build"):
            formulated = formulate(self.problem, self.budget_bytes, runs(self.problem, _RUNS[0]))
        return self._proves(formulated, self._solved(formulated.program)) or self.best is not None

    def _proves(self, formulated: Formulated, solution: Solution) -> bool:
        """Take the bound of a program; return whether there may be a plan."""
        if solution.bound is not None:
            self.bound = max(self.bound, proved(solution.bound, formulated.unit_us))
        return solution.status is not SolverStatus.INFEASIBLE

    def _solved(self, program: Program) -> Solution:
        limit_s = _PROGRAM_SHARE * self.effort.options.time_limit_s
        say = partial(self._say, "relaxed program", "solving")
        return self.effort.solved(program, say, gap=_WHOLE_GAP, limit_s=limit_s)

    def _take_counts(self, of: Runs, formulated: Formulated, values: FloatArray) -> None:
        with self.effort.on_clock("solve"):
            for mix in mixes(of, formulated, values):
                fitted = self.search.fitted(mix)
                found = None if fitted is None else self.search.evaluate(fitted)
                self._take("relaxed program", found)
                if found is not None:
                    self.starts.append(found)

    def _begin_merged(self) -> None:
        """Take the plans of a search in which each layer has one group."""
        if self.merged is None or self._done() or self.search.every() is not None:
            return
        first = _FirstSearch(self.merged.problem, self.effort)
        for found in first.run():
            with self.effort.on_clock("solve"):
                mix = self.merged.unmerged(found.mix)
                together = self.search.timed(mix, self.merged.all_together(found.schedule))
                apart = self.search.evaluate(mix)
            if together is not None and (self.together is None or together.step_us < self.together.step_us):
                self.together = together
            self._take("search", apart)
            if apart is not None:
                self.starts.append(apart)

    def _try_every(self) -> None:
        """Try all mixes of a small problem."""
        with self.effort.on_clock("solve"):
            for mix in self.search.every() or ():
                if self._done():
                    return
                most_us = math.inf if self.best is None else self.best.step_us
                if (found := self.search.evaluate(mix, most_us)) is not None and found.step_us < most_us:
                    self._take("every mix", found)

    def _improve(self) -> None:
        """Search in rounds, from the best plan and, after a round that finds nothing, from another start; after more of
        them, from the best plan with changes at random (iterated local search)."""
        if self.best is None or self.search.every() is not None:
            return
        starts = iter(sorted(self.starts, key=lambda found: found.step_us))
        here, fruitless = self.best, 0
        tries = min(_ROUND_EACH * (len(here.mix.points) + len(here.mix.ways)), _ROUND_MOST)
        with self.effort.on_clock("solve"):
            while fruitless < 2 * _FRUITLESS and not self._done():
                before = self.best
                here = self.search.improve(here, tries, self._done, partial(self._take, "search"))
                if self.best is not before:
                    here, fruitless = self.best, 0
                    continue
                fruitless += 1
                if fruitless < _FRUITLESS:
                    here = next(starts, self.best)
                else:
                    here = self.search.kicked(self.best)

    def _done(self) -> bool:
        return self.effort.over() or (self.best is not None and self._is_proved(self.best.step_us))

    def _is_proved(self, step_us: float) -> bool:
        return self.effort.is_proved(step_us, self.bound)

    def _say(self, phase: str, message: str) -> None:
        best_us = None if self.best is None else self.best.step_us
        self.effort.say(phase, message, best_us, self.bound if best_us is None else min(self.bound, best_us))

    def _checked(self, schedule: Schedule) -> TrainingPlan:
        with self.effort.on_clock("check"):
            verdict = self._verdict(schedule)
        self._say("solved", f"{show_bytes(verdict.peak_bytes)} at the most")
        return self._plan(schedule, verdict, self.effort.stopped_by(proved=self._is_proved(verdict.objective)))

    def _in_hand(self, schedule: Schedule) -> TrainingPlan:
        """Build a plan of the search while it goes on."""
        return self._plan(schedule, self._verdict(schedule), GOING_ON)

    def _verdict(self, schedule: Schedule) -> TrainingCheck:
        """Check a plan; raise CheckFailedError if the checker refuses it."""
        verdict = check(self.problem, schedule, self.budget_bytes)
        if not verdict.ok:
            name, first = self.problem.name, verdict.violations[0]
            raise CheckFailedError(f"a plan of {name} fails its check: {first}. Please report it.")
        return verdict

    def _plan(self, schedule: Schedule, verdict: TrainingCheck, stopped_by: str) -> TrainingPlan:
        # Sums of the same times in another order differ in their last digits.
        bound = min(self.bound, verdict.objective)
        return TrainingPlan(
            **self.effort.envelope(self.problem, stopped_by, verdict, bound),
            budget_bytes=self.budget_bytes,
            plain_us=plain_us(self.problem),
            schedule=schedule,
        )

    def _proved_infeasible(self) -> TrainingPlan:
        """Explain that no plan exists though each phase fits by itself, with a budget below which none does."""
        least, where = least_bytes(self.problem)
        low, high = max(least - 1, self.budget_bytes), peak_bytes(self.problem)
        near, of = max(1, int(_NEAR_SHARE * (high - low))), runs(self.problem, _RUNS[0])
        while high - low > near and not self.effort.over():
            half = (low + high) // 2
            infeasible = self._solved(formulate(self.problem, half, of).relaxed()).status is SolverStatus.INFEASIBLE
            low, high = (half, high) if infeasible else (low, half)
        return self._infeasible(low + 1, self._lacking_on_host() or where)

    def _lacking_on_host(self) -> str | None:
        """Say that host memory is what lacks, where the budget may do with more of it."""
        said = lacking_on_host(self.problem)
        if said is None:
            return None
        roomy = replace(self.problem, host=replace(self.problem.host, capacity_bytes=None))
        program = formulate(roomy, self.budget_bytes, runs(roomy, _RUNS[0])).relaxed()
        return None if self._solved(program).status is SolverStatus.INFEASIBLE else said

    def _infeasible(self, least: int, where: str) -> TrainingPlan:
        lacking = TrainingInfeasibility(least, least - self.budget_bytes, where)
        envelope, us = self.effort.envelope(self.problem, "proof"), plain_us(self.problem)
        return TrainingPlan(**envelope, budget_bytes=self.budget_bytes, plain_us=us, infeasibility=lacking)


class _FirstSearch(_Run):
    """Search of a coarser problem, whose plans are nobody's but its own."""

    def __init__(self, problem: TrainingProblem, effort: Effort) -> None:
        super().__init__(problem, effort)
        self.until_s = effort.elapsed_s + _MERGED_SHARE * effort.left_s

    def run(self) -> list[Found]:
        """Search, and return what was found, the best first."""
        self._baselines(BASELINES)
        self._relax()
        self._improve()
        found = self.starts if self.best is None else [self.best, *self.starts]
        return sorted(found, key=lambda found: found.step_us)

    def _done(self) -> bool:
        return self.effort.elapsed_s >= self.until_s or super()._done()

    def _take(self, phase: str, found: Found | None) -> None:
        if found is not None and (self.best is None or found.step_us < self.best.step_us):
            self.best = found

    def _say(self, phase: str, message: str) -> None:
        """Say nothing."""
