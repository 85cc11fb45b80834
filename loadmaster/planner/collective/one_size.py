"""The best algorithm of one size: candidates are forms, chunk counts and sketches; each move makes the best of them.

The first schedule is a classic algorithm (:mod:`baseline`), so one is in hand at once. Each candidate is scheduled
once, in turn, unless its bound is no better than a schedule in hand. The most promising, and then others, get restarts
of list scheduling, CP-SAT where they are small, and contiguity, until a gap is proved or the time of this size is up.
Every schedule is checked on the problem's own topology before it counts; bounds are of that topology too, so that no
sketch of ours makes them stronger than they are. The final proof is of every form and number of chunks that the problem
allows (:mod:`loadmaster.models.collective.proof`); a candidate's own bound only says whether it can still become the
best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from loadmaster.errors import CheckFailedError
from loadmaster.models.collective.bounds import Bound
from loadmaster.models.collective.checker import check
from loadmaster.models.collective.collectives import forms_of
from loadmaster.models.collective.plan import Algorithm, Form, Send, Unreachable
from loadmaster.models.collective.problem import CollectiveProblem
from loadmaster.models.collective.proof import NOTHING_YET, ROUTING, Proof, prove
from loadmaster.models.collective.reach import unreachable
from loadmaster.models.collective.routing_bound import formulate
from loadmaster.planner.collective.baseline import Baseline
from loadmaster.planner.collective.candidates import BOUND_SHARE, SYMMETRY_SHARE, Candidate, Candidates, Whole
from loadmaster.planner.collective.classics import MOST_TARGETS, classics, schedule
from loadmaster.planner.collective.greedy import searcher
from loadmaster.planner.collective.pipeline import pipeline, polish
from loadmaster.planner.collective.prune import finish_ns
from loadmaster.planner.collective.queueing import queued
from loadmaster.planner.collective.solves import LEAST_SECONDS, columns_of, improve, in_steps, solved
from loadmaster.planner.collective.trees import Messages, TreeClassic
from loadmaster.planner.effort import Effort
from loadmaster.solvers.solution import SolverStatus

# Of the time of a size: for scheduling every candidate once, and for restarts before CP-SAT has its turn.
FIRST_SHARE, RESTART_SHARE = 0.3, 0.4
# For the first candidate, where there is a schedule already.
FIRST_TURN = 0.5
# For the classic algorithms whose chunks travel together, as far as instances have more targets than are soon followed;
# and for those whose chunks follow one another.
CLASSICS_SHARE, SMALL_TARGETS = 0.1, 1 << 10
TREES_SHARE = 0.2
# The routing relaxation is solved, for that part of the time left, where there are at most so many ways of a chunk over
# a link: beyond it takes longer than it is worth.
PROOF_SHARE, MOST_WAYS = 0.2, 50_000
# Of the time of a size, for schedules in few steps; a program that is not solved in a third of that is not worth more.
STEPS_SHARE, STEPS_TURNS, MORE_STEPS = 0.2, 3, 1
# Where the time is short, programs get seconds enough to start a solver that then ends at once, if they are small.
SMALL_S = 1.0
# Restarts that every candidate gets at first, and candidates that get more.
FIRST_RUNS, FINALISTS = 3, 3
# What is further than this from the best after that does not catch up.
NEAR = 1.2
# A search that ends within that part of its time has no more to try.
GIVES_UP = 0.9
# Once time is up a schedule is still made tight and checked, and the plan is: no longer than so many checks.
CHECKS = 4
# CP-SAT and contiguity do not go through schedules of more messages than that.
MOST_EXACT = 1 << 13


class OneSize:
    """The search for one size, until ``until_s`` on the effort's clock; ``told`` is called when there is a better
    algorithm. ``check_s`` is the longest that a check took so far."""

    def __init__(
        self,
        problem: CollectiveProblem,
        size_bytes: int,
        effort: Effort,
        until_s: float,
        told: Callable[[], None] = lambda: None,
    ) -> None:
        self.problem = problem
        self.size_bytes = size_bytes
        self.effort = effort
        self.until_s = until_s
        self.told = told
        self.began_s = effort.elapsed_s
        self.candidates: list[Candidate] = []
        self.best: Candidate | None = None
        self.check_s = 0.0
        self.infeasible: Unreachable | None = None
        self._all = Candidates(problem, size_bytes, effort, self._clock, lambda form: self.proof.of(form).bound)
        self._proof: Proof | None = None

    @property
    def proof(self) -> Proof:
        """Proof for every form and number of chunks; made when it is first asked for."""
        if self._proof is None:
            with self.effort.on_clock("build"):
                self._proof = prove(self.problem, self.size_bytes, self._clock(BOUND_SHARE))
        return self._proof

    def run(self) -> Algorithm | None:
        """Search for the best algorithm; None if none was found, or none exists (``infeasible`` says why)."""
        method = self.effort.options.method
        form = forms_of(self.problem)[0]
        self.infeasible = self._all.whole(form, self._all.fewest(form)).cut
        if self.infeasible is not None:
            return None
        instance = lambda form, count: self._all.whole(form, count).instance  # noqa: E731
        baseline = Baseline(self.problem, self.size_bytes, instance, self._clock(SYMMETRY_SHARE))
        if method == "auto":
            baseline.first(self._trees)
        for place, candidate in enumerate(self._all):
            if self.effort.cancelled() or (self.best is not None and self.over(FIRST_SHARE)):
                break
            self._first(candidate, method, FIRST_TURN if place == 0 else FIRST_SHARE)
            if place == 0 and method == "auto" and not self._is_proved():
                self._classics()
                self._baseline(baseline, TREES_SHARE)
        with self.effort.keep_plan_on_crash(lambda: self.best is not None):
            if method == "auto":
                self._prove()
                self._in_steps()
            if method in ("auto", "greedy"):
                self._restart(RESTART_SHARE if method == "auto" else 1.0)
            if method in ("auto", "cpsat"):
                self._exact()
            if method == "auto":
                self._baseline(baseline, TREES_SHARE)
                self._restart(1.0)
                self._baseline(baseline, 1.0)
        return None if self.best is None else self._algorithm(self.best, self.proof)

    @property
    def algorithm(self) -> Algorithm | None:
        """Best algorithm so far, with the bound proved so far."""
        return None if self.best is None else self._algorithm(self.best, self._proof)

    # -- moves -------------------------------------------------------------------------------------------------------

    def _baseline(self, baseline: Baseline, share: float) -> None:
        """Try classic algorithms whose chunks follow one another, for a share of the time; go on where they stopped."""
        is_up = self._clock(share)
        best_ns = None if self.best is None else self.best.time_ns
        baseline.search(self._trees, best_ns, lambda: is_up() or self.over(1.0))

    def _trees(self, classic: TreeClassic, form: Form, chunk_count: int, made: Messages) -> int | None:
        """Schedule a classic algorithm of trees, take it if it is better, and return its time."""
        if self.effort.cancelled():
            return None
        candidate = self._all.classic(form, chunk_count)
        with self.effort.on_clock("solve"):
            # The first is needed, however long it takes.
            over = (lambda: self.over(1.0)) if self.best is not None else self.effort.cancelled
            sends = queued(candidate.instance, made.sends, made.turns, over, made.images)
        if sends is None:
            return None
        time_ns = finish_ns(candidate.instance, sends)
        if self.best is None or time_ns < self.best.time_ns:
            self._offer(candidate, sends if made.images is None else made.images.all_of(sends), classic.name)
        return time_ns

    def _classics(self) -> None:
        until_s = self.effort.elapsed_s + CLASSICS_SHARE * (self.until_s - self.began_s)
        wholes: dict[Form, Whole] = {}
        for form in forms_of(self.problem):
            wholes[form] = self._all.whole(form, self._all.fewest(form))
        for classic, (form, whole) in product(classics(self.problem.topology), wholes.items()):
            targets = sum(len(chunk.targets) for chunk in whole.instance.chunks)
            # Those of one dimension take no time worth counting on small instances.
            in_time = self.effort.elapsed_s < until_s or (len(classic.phases) == 1 and targets <= SMALL_TARGETS)
            if self.effort.cancelled() or targets > MOST_TARGETS or not in_time:
                return
            if self.best is not None and self.proof.of(form).bound.ns >= self.best.time_ns:
                continue
            candidate = self._all.classic(form, self._all.fewest(form))
            with self.effort.on_clock("solve"):
                sends = schedule(candidate.instance, classic)
            if sends is not None and (self.best is None or finish_ns(candidate.instance, sends) < self.best.time_ns):
                self._offer(candidate, sends, classic.name)

    def _first(self, candidate: Candidate, method: str, share: float) -> None:
        """Find a first schedule of a candidate; where another schedule is in hand, until a share of the time is up."""
        if candidate.instance is not candidate.whole.instance and unreachable(candidate.instance) is not None:
            return
        if self.best is not None and candidate.bound.ns >= self.best.time_ns:
            return
        self.candidates.append(candidate)
        if method == "pipeline":
            self._offer(candidate, pipeline(candidate.instance, self.effort, self.left_s), "pipeline")
            return
        seconds = self.left_s
        if self.best is not None:
            seconds = min(seconds, self.began_s + share * (self.until_s - self.began_s) - self.effort.elapsed_s)
        self._greedy(candidate, seconds, FIRST_RUNS)

    def _prove(self) -> None:
        """Raise the bound of the form with the weakest one, by the routing relaxation."""
        best, weakest = self.best, self.proof.weakest
        if best is None or weakest.instance.combines or sum(map(len, weakest.instance.usable_links)) > MOST_WAYS:
            return
        if self.over(FIRST_SHARE) or self.left_s < LEAST_SECONDS:
            return
        known = weakest.bound
        with self.effort.on_clock("build"):
            relaxation = formulate(weakest.instance, known.ns, best.time_ns, divisible=weakest.divisible)
        limit_s = min(max(PROOF_SHARE * self.left_s, SMALL_S), self.left_s)
        solution = solved(
            relaxation.program,
            self.effort,
            limit_s,
            phase="routing bound",
            best_ns=best.time_ns,
            bound_ns=known.ns,
        )
        if solution.bound is None or solution.status is SolverStatus.INFEASIBLE:
            return
        proved = Bound(relaxation.proved_ns(solution.bound), ROUTING)
        if proved.ns > known.ns:
            self._proof = self.proof.with_bound(weakest.form, proved)

    def _restart(self, share: float) -> None:
        """Go on with list scheduling of the most promising, for a share of the time left; then of the others."""
        until_s = self.effort.elapsed_s + share * self.left_s
        while not self.over(1.0) and self.effort.elapsed_s < until_s and (finalists := self._finalists()):
            seconds = (until_s - self.effort.elapsed_s) / len(finalists)
            for candidate in finalists:
                if self.over(1.0):
                    return
                began_s = self.effort.elapsed_s
                self._greedy(candidate, seconds, None)
                candidate.is_exhausted = self.effort.elapsed_s - began_s < GIVES_UP * seconds

    def _in_steps(self) -> None:
        """Look for schedules in few steps of long messages: small programs first, and the fewest steps before more."""
        is_up, share_s = self._clock(STEPS_SHARE), STEPS_SHARE / STEPS_TURNS * (self.until_s - self.began_s)
        limit_s = max(share_s, SMALL_S)
        sized = [(columns, place) for place, c in enumerate(self.candidates) if (columns := columns_of(c.instance))]
        for more, (_, place) in product(range(MORE_STEPS + 1), sorted(sized)):
            candidate = self.candidates[place]
            if self.over(1.0) or is_up():
                self.effort.cut_short = True
                return
            if candidate.sends is not None and (self.best is None or candidate.bound.ns < self.best.time_ns):
                in_hand, bound_ns, seconds = candidate.sends, candidate.bound.ns, min(limit_s, self.left_s)
                sends = in_steps(candidate.instance, in_hand, bound_ns, seconds, self.effort, more)
                self._offer(candidate, sends, "steps")

    def _exact(self) -> None:
        """Improve the best schedules: by CP-SAT, then by merging their messages again."""
        best = self.best
        if self.over(1.0):
            return
        for candidate in [*self._finalists(), *([best] if best is not None and best not in self.candidates else [])]:
            if self.over(1.0) or candidate.sends is None:
                return
            if len(candidate.sends) > MOST_EXACT:
                continue
            self._say("exact", candidate, candidate.time_ns)
            for move, name in ((improve, "cpsat"), (polish, "contiguity")):
                sends = move(candidate.instance, candidate.sends, candidate.bound.ns, self.left_s / 3, self.effort)
                self._offer(candidate, sends, name)

    def _greedy(self, candidate: Candidate, seconds: float, runs: int | None) -> None:
        def better(_: tuple[Send, ...], time_ns: int) -> None:
            self._say("list scheduling", candidate, time_ns)

        options = self.effort.options
        with self.effort.on_clock("solve"):
            if candidate.searcher is None:
                candidate.searcher = searcher(
                    candidate.instance,
                    options.seed,
                    cancelled=self.effort.cancelled,
                    on_better=better,
                    needed=self.best is None,
                )
            # Good enough is what ends the search for this size; a candidate's own bound ends that of the candidate.
            bound_ns, gap = self.proof.bound.ns, options.gap
            if candidate.bound.ns * (1.0 - gap) > bound_ns:
                bound_ns, gap = candidate.bound.ns, 0.0
            sends = candidate.searcher.search(bound_ns=bound_ns, seconds=max(0.0, seconds), gap=gap, runs=runs)
        self._offer(candidate, sends, "greedy")

    # -- where we stand ----------------------------------------------------------------------------------------------

    @property
    def left_s(self) -> float:
        """Wall seconds left for this size, to look for schedules."""
        return min(self.until_s - self.effort.elapsed_s, self.effort.left_s) - CHECKS * self.check_s

    def over(self, share: float) -> bool:
        """Return whether to stop: time share up, gap proved, or cancelled. Ask it only where there is more to try."""
        spent = self.effort.elapsed_s - self.began_s >= share * (self.until_s - self.began_s)
        if spent or self.left_s <= 0:
            self.effort.cut_short = True
            return True
        return self.effort.over() or self._is_proved()

    def _clock(self, share: float) -> Callable[[], bool]:
        """Start a clock: it says whether a share of this size's time has passed since, or the caller cancelled."""
        until_s = self.effort.elapsed_s + share * (self.until_s - self.began_s)
        return lambda: self.effort.elapsed_s >= until_s or self.effort.cancelled()

    def _is_proved(self) -> bool:
        best = self.best
        return best is not None and best.time_ns - self.proof.bound.ns <= self.effort.options.gap * best.time_ns

    def _finalists(self) -> list[Candidate]:
        """Pick the most promising candidates, those whose bound leaves something to gain."""
        hopeful = [c for c in self.candidates if not c.is_exhausted]
        if self.best is None:
            return hopeful[:FINALISTS]
        best_ns = self.best.time_ns
        hopeful = sorted((c for c in hopeful if c.sends and c.bound.ns < best_ns), key=lambda c: c.time_ns)
        return hopeful[:1] + [c for c in hopeful[1:FINALISTS] if c.time_ns <= NEAR * best_ns]

    def _offer(self, candidate: Candidate, sends: Sequence[Send] | None, method: str) -> None:
        """Check a schedule and take it if it is better."""
        if sends is None:
            return
        began_s = self.effort.elapsed_s
        with self.effort.on_clock("check"):
            verdict = check(candidate.whole.instance, sends)
        self.check_s = max(self.check_s, self.effort.elapsed_s - began_s)
        if not verdict.ok:
            raise CheckFailedError(
                f"a {method} schedule of {self.problem.name} fails its check: {verdict.violations[0]}: please report it"
            )
        if candidate.sends is not None and verdict.time_ns >= candidate.time_ns:
            return
        is_best = self.best is None or verdict.time_ns < self.best.time_ns
        candidate.sends, candidate.time_ns, candidate.method = tuple(sends), verdict.time_ns, method
        if is_best:
            self.best = candidate
            self.told()
            self._say(method, candidate, verdict.time_ns)

    def _say(self, phase: str, candidate: Candidate, time_ns: int) -> None:
        bound_us = None if self._proof is None else self._proof.bound.ns / 1e3
        self.effort.say(phase, self._named(candidate), time_ns / 1e3, bound_us)

    def _named(self, candidate: Candidate) -> str:
        form = "" if candidate.form == "direct" else f", {candidate.form}"
        return f"{self.size_bytes} bytes, {candidate.sketch.name}, {candidate.chunk_count} chunks{form}"

    def _algorithm(self, candidate: Candidate, proof: Proof | None) -> Algorithm:
        assert candidate.sends is not None
        return Algorithm(
            size_bytes=self.size_bytes,
            chunk_count=candidate.chunk_count,
            form=candidate.form,
            sends=candidate.sends,
            time_ns=candidate.time_ns,
            bound_ns=0 if proof is None else proof.bound.ns,
            bound_by=NOTHING_YET if proof is None else proof.bound.by,
            throughput_bound_ns=0 if proof is None else proof.throughput_ns,
            method=candidate.method,
            seconds=round(self.effort.elapsed_s - self.began_s, 3),
        )
