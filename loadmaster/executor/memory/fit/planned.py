"""Plans under a budget, as a side of the contest: proposed, run, measured, corrected and proposed again.

A plan is as good as the problem it is made from. A trial of the planned step says how good that is: what the measured
peak has beyond the planned one counts as resident from then on, what it leaves of it is given back where the plan pays
for memory in time, and where the step time is off by more than a tolerance, the times of library kernels and of all
others are scaled to what was profiled. The planner gets the corrected problem; the budget stays the user's.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import traceback
from collections.abc import Callable
from dataclasses import replace

from loadmaster.errors import BudgetError, CheckFailedError, InputError, LimitReachedError
from loadmaster.executor.memory.fit.ahead.background import Work
from loadmaster.executor.memory.fit.contest import WORTH_A_TRY, Offer
from loadmaster.executor.memory.fit.correction import (
    IDLE_SHARE,
    StepProblems,
    allocator_reserve_bytes,
    factors,
    fallback,
    has_left_overs,
    is_idle,
    launches_bind,
    may_gain,
)
from loadmaster.executor.memory.fit.phases import PLANNING, PLANS
from loadmaster.executor.memory.fit.trial_runs import TrialRuns
from loadmaster.executor.memory.fit.trials import (
    Candidate,
    Correction,
    Proposal,
    State,
    Trial,
    broken,
    infeasible,
)
from loadmaster.executor.memory.fit.values import Comparison, Difference
from loadmaster.executor.memory.run.apply import PlannedStep
from loadmaster.executor.steps.timeline import record
from loadmaster.models.fit_record import describe
from loadmaster.models.kinds import check_plan
from loadmaster.models.memory.checker import MemoryCheck
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.problem import MemoryProblem

Planner = Callable[..., MemoryPlan]
"""``planner(problem)``, or ``planner(problem, time_limit_s=...)`` where it takes that, as ``loadmaster.plan`` does."""

logger = logging.getLogger(__name__)

# No first plan of those recorded under benchmarks/results took less than 0.89 of the time it was planned to take,
# except one of RoBERTa's, which took 0.82.
PESSIMISM = 0.15
# A plan that training waits for. What a planner finds later is tried while the step trains.
SOON_S = 20.0
FAR = 2.0  # of a budget: so much more is needed than where torch.compile may still keep it, and plans do not


class PlannedSide:
    """Plans under one budget, of which ``most`` are run at most, as a side of the contest.

    With ``soon`` training begins with the first plan: it is made in :data:`SOON_S`, if the planner takes a limit, and
    again within the planner's own limit where that may gain. With ``alone`` nothing else keeps the budget: what a
    plan's step raises is raised.
    """

    def __init__(
        self,
        runs: TrialRuns,
        problems: StepProblems,
        planner: Planner,
        budget_bytes: int,
        most: int,
        *,
        soon: bool,
        alone: bool,
        on_try: Callable[[Trial], None] | None,
    ) -> None:
        self.runs, self.problems, self.planner, self.most = runs, problems, planner, most
        self.soon = soon and _takes_limit(planner)
        self.alone, self.on_try = alone, on_try
        self.state = State(budget_bytes, self._first(budget_bytes))
        self.failed: Exception | None = None
        """Error because of which no plan could be run, or no other one."""
        self.compared = Comparison("")
        """Comparison of the chosen plan's step with plain PyTorch's."""
        self.differs: Difference | None = None
        """Difference from plain PyTorch's step: a plan that kept the budget is not taken, and no other one is tried."""
        self._refused: set[int] = set()
        self.final_us: float | None = None
        """The time of the plan that is chosen, if it was timed again."""
        self._next: Proposal | None = None
        self._done = False
        self._asked: tuple[MemoryProblem, Work[MemoryPlan]] | None = None
        """Problem that the planner works on, and the work itself, until its plan is looked at."""

    @property
    def chosen(self) -> int | None:
        """Index of the fastest trial that kept the budget; the later of two that are equally fast."""
        kept = [i for i, t in enumerate(self.state.trials) if t.kept and i not in self._refused]
        return min(kept, key=lambda i: (self.state.trials[i].measured.step_us, -i), default=None)

    @property
    def best_step(self) -> PlannedStep | None:
        """Step of the chosen plan; None where no plan kept the budget."""
        return None if self.chosen is None else self.state.candidates[self.chosen].step

    @property
    def best_us(self) -> float | None:
        """Step time of the chosen plan; None where no plan kept the budget."""
        if self.chosen is None:
            return None
        return self.final_us or self.state.trials[self.chosen].measured.step_us

    @property
    def waiting_us(self) -> float | None:
        """Planned time of the plan that is proposed and not run; None if there is none."""
        return None if self._next is None else self._next.verdict.time_us

    def begin(self) -> None:
        """Have the next plan made, while other sides try theirs."""
        if self._lacks_a_plan and self._asked is None and not self.alone:
            problem = self._problem(self.state)
            self._asked = problem, self.runs.background.begin(lambda: self._plan(problem))

    def is_at_work(self) -> bool:
        """Return whether the planner still works on the next plan."""
        return self._asked is not None and self._asked[1].is_pending()

    def offer(self) -> Offer | None:
        """The next plan, as the planner proposes it for the problem as corrected so far. CheckFailedError: the planner
        gave a plan that breaks its own problem. InputError: the planner gave no plan, or one for another problem or
        budget."""
        while self._lacks_a_plan:
            try:
                self.state, self._next = self._proposed(self.state)
            except (BudgetError, LimitReachedError) as error:
                self.failed = error
            self._done = self._next is None
            if self._next is not None and not self._is_new(self._next):
                self._try()  # no compilation: what it measured is known
        if self._next is None:
            return None
        planned_us = self._next.verdict.time_us * self._measured_share
        plan = self._next.plan
        return Offer((1.0 - self._most_off) * planned_us, planned_us, self._try, lambda: self._is_ready(plan))

    def is_far(self) -> bool:
        """Return whether plans are proved to need much more than the budget: no partition of the graph will do."""
        needed_bytes = self.failed.needed_bytes if isinstance(self.failed, BudgetError) else 0
        return needed_bytes > FAR * self.state.budget_bytes

    def error(self) -> Exception:
        """Error that says why no plan keeps the budget."""
        return self.failed or broken(self.state.trials)

    def _is_ready(self, plan: MemoryPlan) -> bool:
        self.runs.ahead.plan(plan, self.runs.options.implementations)
        return not self.runs.ahead.is_pending(plan)

    def _is_new(self, proposal: Proposal) -> bool:
        return all(c.plan.schedule != proposal.plan.schedule for c in self.state.candidates)

    def _try(self) -> None:
        proposal, self._next = self._next, None
        assert proposal is not None
        is_new = self._is_new(proposal)
        try:
            self.state = self._measured(self.state, proposal)
        except Exception as error:  # of what a compiler wrote, too: assertions
            if self.alone:
                raise
            _let_go(error)
            self.failed, self._done = error, True
            return
        if is_new and self.chosen == len(self.state.trials) - 1:
            compared = self.runs.compared(self.state.candidates[-1].step)
            if compared.differs is not None:
                self.differs, self._done = compared.differs, True
                self._refused.add(len(self.state.trials) - 1)
                return
            self.compared = compared
        latest, corrected = self.state.trials[-1], self._corrected(self.state, proposal.verdict)
        is_worth_another = (
            may_gain(proposal.problem, proposal.verdict, latest.correction, corrected.correction)
            or is_idle(latest, proposal.verdict)
            or (self.soon and len(self.state.trials) == 1 and _ran_out_of_time(proposal.plan))
        )
        self._done = latest.kept and not (is_new and is_worth_another)
        if not self._done:
            self.state = corrected

    def _proposed(self, state: State) -> tuple[State, Proposal | None]:
        """A plan for the problem as corrected so far, with less resident where none exists; None: keep what there is.
        Raises as :meth:`offer`, and a BudgetError or LimitReachedError where no plan was found that keeps the
        budget."""
        while True:
            problem, work = self._asked or (self._problem(state), None)
            self._asked = None
            try:
                plan = self._plan(problem) if work is None else work.result()
            except LimitReachedError as error:
                if state.kept:
                    logger.info("no better plan: %s", error)
                    return state, None
                if state.refused is None:
                    raise
                raise infeasible(*state.refused, state.trials) from error
            finally:
                self.runs.phases.beside_s += 0.0 if work is None else work.beside_s
            if plan.schedule is not None:
                return state, Proposal(problem, plan, _expect_valid(problem, plan))
            if state.margin_bytes:
                state = replace(state, correction=state.correction.plus(-state.margin_bytes), margin_bytes=0)
                continue
            refused = plan, state.correction.resident_bytes
            looser = fallback(state.correction, plan, state.trials, self.runs.reserve_bytes)
            if looser is None:
                if state.kept:
                    return state, None
                raise infeasible(*refused, state.trials)
            state = replace(state, refused=refused, correction=looser)

    def _problem(self, state: State) -> MemoryProblem:
        return self.problems.problem(state.correction).with_budget(state.budget_bytes)

    def _plan(self, problem: MemoryProblem) -> MemoryPlan:
        with self.runs.phases.during(PLANNING):
            plan = _expect_plan(self._made(problem), self.state.budget_bytes)
        if plan.schedule is not None and self._lacks_a_plan:
            self.runs.ahead.plan(plan, self.runs.options.implementations)
        return plan

    def _made(self, problem: MemoryProblem) -> MemoryPlan:
        if self.soon and not self.state.trials:
            with contextlib.suppress(LimitReachedError):
                return self.planner(problem, time_limit_s=SOON_S)
        return self.planner(problem)

    def _measured(self, state: State, proposal: Proposal) -> State:
        """The state with one more trial: that of the plan, or the known one of a plan with the same schedule."""
        problem, plan = proposal.problem, proposal.plan
        known = next((c for c in state.candidates if c.plan.schedule == plan.schedule), None)
        if known is None:
            step = self.runs.planned(plan)
            measured = self.runs.run(step, plan.budget_bytes, PLANS, f"{problem.name}, the plan")
            candidate = Candidate(step, plan, problem, measured)
        else:
            candidate = replace(known, problem=problem, plan=plan)
        measured, verdict = candidate.measured, proposal.verdict
        used_bytes = self.runs.used_bytes(measured)
        latest = Trial(state.budget_bytes, used_bytes, measured, state.correction, verdict.peak_bytes, verdict.time_us)
        resident_bytes = latest.beside_bytes - self.runs.reserve_bytes
        self.problems.learned = replace(self.problems.learned, resident_bytes=resident_bytes)
        logger.info("%s", describe(latest.record))
        if self.on_try is not None:
            self.on_try(latest)
        return replace(state, trials=(*state.trials, latest), candidates=(*state.candidates, candidate))

    def _corrected(self, state: State, verdict: MemoryCheck) -> State:
        """The state with the correction of the next problem, after the latest trial."""
        latest, candidate = state.trials[-1], state.candidates[-1]
        correction = latest.correction
        if not latest.kept or is_idle(latest, verdict):
            correction = replace(correction, resident_bytes=max(latest.beside_bytes, self.problems.least_bytes))
        if abs(latest.time_error) > self.runs.time_tolerance:
            products, moves = self._factors(candidate, verdict)
            correction = replace(correction, products=products, moves=moves)
            self.problems.learned = replace(self.problems.learned, products=products, moves=moves)
        # A plan that broke the budget again had other left-overs than those it was corrected by; so may the next.
        again = not latest.kept and sum(not t.kept for t in state.trials) > 1
        margin_bytes = latest.used_bytes - state.budget_bytes if again else 0
        return replace(state, correction=correction.plus(margin_bytes), margin_bytes=margin_bytes)

    def _first(self, budget_bytes: int) -> Correction:
        """The correction before this budget's first trial. Another budget's plan took so much more than planned; this
        one's may take less, so that no more of it is set aside than may stay unused."""
        learned = self.problems.learned
        guessed = min(max(learned.resident_bytes, 0), int(IDLE_SHARE * budget_bytes))
        if has_left_overs(self.runs.device):
            guessed = max(guessed, allocator_reserve_bytes(self.problems.plain, budget_bytes))
        return replace(learned, resident_bytes=guessed + self.runs.reserve_bytes)

    @property
    def _lacks_a_plan(self) -> bool:
        return self._next is None and not self._done and len(self.state.trials) < self.most

    @property
    def _measured_share(self) -> float:
        """Measured over planned time of the best plan, if the next plan's times are corrected the same; else 1."""
        if self.chosen is None:
            return 1.0
        best, now = self.state.trials[self.chosen], self.state.correction
        is_alike = (best.correction.products, best.correction.moves) == (now.products, now.moves)
        return 1.0 + best.time_error if is_alike else 1.0

    @property
    def _most_off(self) -> float:
        """Share by which a plan may take less than expected. It is 0 once one kept the budget: times are as that one
        measured, and another one is no better if it is not expected to be faster."""
        if self.state.trials:
            return 0.0 if self.state.kept else self.runs.time_tolerance
        options = self.runs.options
        was_profiled = self.runs.device.type == "cuda" and options.costs is None and options.hardware is None
        return PESSIMISM if was_profiled else 1.0  # other times bound nothing

    def _factors(self, candidate: Candidate, verdict: MemoryCheck) -> tuple[float, float]:
        """Factors that make the captured costs of the plan those that were measured. Waits for copies and cuts of the
        graph are not an operator's time. The time between kernels is spread over both sorts, so that a step that is
        planned again with these factors is planned to take what it took."""
        assert candidate.plan.schedule is not None
        planned = self.problems.shares_us(candidate.plan.schedule)
        busy_us = max(candidate.measured.step_us - verdict.stall_us - verdict.cut_us, 0.0)
        measured = planned
        if self.runs.device.type == "cuda":
            resident_bytes = self.problems.captured.resident_bytes
            timeline = self.runs.alone(candidate.step, lambda run: record(run, self.runs.device, resident_bytes))
            measured = [timeline.products_us, timeline.moves_us]
            if (warning := launches_bind(busy_us, sum(measured))) is not None:
                logger.warning("%s", warning)
        return factors(busy_us, measured, planned)


def _takes_limit(planner: Planner) -> bool:
    """Return whether the planner can be given a time limit, and has none from who made it."""
    if isinstance(planner, functools.partial) and not planner.keywords.keys().isdisjoint(("options", "time_limit_s")):
        return False
    try:
        inspect.signature(planner).bind(None, time_limit_s=SOON_S)
    except (TypeError, ValueError):
        return False
    return True


def _ran_out_of_time(plan: MemoryPlan) -> bool:
    """Return whether more planning time may make another plan faster by what is worth a compilation."""
    return plan.stopped_by == "time" and plan.gap is not None and plan.gap > 1.0 - WORTH_A_TRY


def _let_go(error: BaseException | None) -> None:
    """Free what the frames of an error hold, such as a step's tensors: what is tried next is measured without them."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _expect_plan(plan: object, budget_bytes: int) -> MemoryPlan:
    if not isinstance(plan, MemoryPlan):
        raise InputError("planner", plan, "gave no memory plan", "Return what loadmaster.plan(problem) returns.")
    if plan.budget_bytes != budget_bytes:
        remedy = "Plan the problem that is given, which has it: loadmaster.plan(problem)."
        raise InputError("plan.budget_bytes", plan.budget_bytes, f"is not the budget of {budget_bytes} bytes", remedy)
    return plan


def _expect_valid(problem: MemoryProblem, plan: MemoryPlan) -> MemoryCheck:
    verdict = check_plan(problem, plan)
    if not verdict.ok:
        raise CheckFailedError(f"the planner's plan breaks its problem: {verdict.violations[0]}")
    assert isinstance(verdict, MemoryCheck), "there is a schedule"
    return verdict
