"""Fitting a step to a byte budget: planned, run, measured, and planned again until the measured peak keeps it.

A plan is as good as the problem it is made from. A trial of the planned step says how good that is: what the measured
peak has beyond the planned one counts as resident from then on, what it leaves of it is given back where the plan pays
for memory in time, and where the step time is off by more than a tolerance, the times of library kernels and of all
others are scaled to what was profiled. The planner gets the corrected problem; the budget stays the user's.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

from loadmaster import live_line
from loadmaster.errors import CheckFailedError, InputError, LimitReachedError
from loadmaster.executor.costs import CostModel
from loadmaster.executor.costs.corrected import Corrected
from loadmaster.executor.memory.capture import capture_step
from loadmaster.executor.memory.fit.fallback import fallback
from loadmaster.executor.memory.fit.reserve import allocator_reserve_bytes, has_left_overs
from loadmaster.executor.memory.fit.state import Candidate, Fitted, Proposal, State
from loadmaster.executor.memory.fit.trial_run import ran_out, run_trial, runner, unchanged
from loadmaster.executor.memory.fit.trials import (
    Correction,
    Trial,
    broken,
    describe,
    factors,
    infeasible,
    launches_bind,
)
from loadmaster.executor.memory.operators.implementation_filter import EVERYTHING, ImplementationFilter
from loadmaster.executor.memory.options import CaptureOptions
from loadmaster.executor.memory.run.apply import PlannedStep, apply
from loadmaster.executor.memory.run.backends import Backend
from loadmaster.executor.renamed import renamed_keywords
from loadmaster.executor.steps.batch import AnyBatch, batch_of
from loadmaster.executor.steps.measure import Measurement
from loadmaster.executor.steps.resident import device_of, gradient_bytes
from loadmaster.executor.steps.step import Loss
from loadmaster.executor.steps.timeline import Timeline, record
from loadmaster.executor.steps.wrappers import ddp_of
from loadmaster.models.hardware import HostLink
from loadmaster.models.kinds import limit_of
from loadmaster.models.memory.checker import Check, check, check_plan
from loadmaster.models.memory.corrected import least_resident_bytes, with_resident
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.units import bytes_of

Planner = Callable[[MemoryProblem], MemoryPlan]
Found = TypeVar("Found")

logger = logging.getLogger(__name__)

_UNLIMITED_BYTES = 1 << 62
_IDLE_SHARE = 0.02  # of the budget: less than this left of a planned peak is not worth another plan


class Fitter:
    """A captured step that is fitted to one budget after another. What trials say of it is kept between them.

    Args:
        options: as for :func:`~loadmaster.executor.memory.capture.capture`.
        on_try: called with each trial once it is measured; the others as for :func:`fit`.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: AnyBatch,
        loss: Loss | None = None,
        options: CaptureOptions = CaptureOptions(),  # noqa: B008
        *,
        fragmentation_reserve_bytes: int | str | None = 0,
        time_tolerance: float = 0.05,
        repeats: int = 5,
        on_try: Callable[[Trial], None] | None = None,
    ) -> None:
        _expect_one_process(model)
        if repeats < 1:
            raise InputError("repeats", repeats, "leaves nothing to time", "Time at least one step.")
        if fragmentation_reserve_bytes is not None:
            fragmentation_reserve_bytes = bytes_of(fragmentation_reserve_bytes, "fragmentation_reserve_bytes")
        self.model, self.batch, self.loss, self.options = model, batch_of(batch), loss, options
        self.fragmentation_reserve_bytes = fragmentation_reserve_bytes
        self._reserve_bytes = fragmentation_reserve_bytes or 0
        self._problems: dict[tuple[float, float], MemoryProblem] = {}
        self.time_tolerance, self.repeats = time_tolerance, repeats
        self.on_try = on_try
        self.device = device_of(model, self.batch)
        self.captured = capture_step(model, self.batch, loss, options)
        self.learned = Correction()
        """Of the latest trials: the factors, and what was held beside what was captured, the reserve left out."""

    def fit(self, planner: Planner, budget_bytes: int | str, tries: int = 3) -> Fitted:
        """Propose, measure and correct until the step keeps the budget and its time is what was planned.

        A trial for which the device has too little memory is one that did not keep the budget.

        Raises:
            BudgetError: no plan was found that keeps the budget.
            CheckFailedError: the planner gave a plan that breaks its own problem.
            InputError: the planner gave no plan, or one for another problem or budget.
            LimitReachedError: the planner's limit came before any plan that keeps the budget was found.
        """
        if tries < 1:
            raise InputError("tries", tries, "leaves nothing to run", "Allow at least one try.")
        problem = self._costed(1.0, 1.0)
        size_bytes = limit_of(problem.kind).value(budget_bytes, problem, "budget_bytes")
        if size_bytes < 1:
            raise InputError("budget_bytes", budget_bytes, "is no positive number of bytes", "Give one: 8 << 30.")
        state = State(size_bytes, self._first(size_bytes))
        while len(state.trials) < tries:
            state, proposal = self._proposed(state, planner)
            if proposal is None:
                break
            is_new = all(c.plan.schedule != proposal.plan.schedule for c in state.candidates)
            state = self._measured(state, proposal)
            latest = state.trials[-1]
            if latest.kept and not (is_new and (self._is_off(latest) or _is_idle(latest, proposal.verdict))):
                break
            state = self._corrected(state, proposal.verdict)
        kept = [i for i, t in enumerate(state.trials) if t.kept]
        if not kept:
            raise broken(state.trials)
        chosen = min(kept, key=lambda i: (state.trials[i].measured.step_us, -i))
        best = state.candidates[chosen]
        return Fitted(best.step, best.plan, best.problem, state.trials, chosen)

    def _proposed(self, state: State, planner: Planner) -> tuple[State, Proposal | None]:
        """A plan for the problem as corrected so far, less is resident where there is none; None: keep what there is.

        Raises:
            BudgetError, CheckFailedError, InputError, LimitReachedError: as :meth:`fit`.
        """
        while True:
            problem = self._problem(state.correction).with_budget(state.budget_bytes)
            try:
                plan = _expect_plan(planner(problem), state.budget_bytes)
            except LimitReachedError as error:
                if state.kept:
                    logger.info("no better plan: %s", error)
                    return state, None
                if state.refused is None:
                    raise
                raise infeasible(*state.refused, state.trials) from error
            if plan.schedule is not None:
                return state, Proposal(problem, plan, _expect_valid(problem, plan))
            if state.margin_bytes:
                state = replace(state, correction=state.correction.plus(-state.margin_bytes), margin_bytes=0)
                continue
            refused = plan, state.correction.resident_bytes
            looser = fallback(state.correction, plan, state.trials, self._reserve_bytes)
            if looser is None:
                if state.kept:
                    return state, None
                raise infeasible(*refused, state.trials)
            state = replace(state, refused=refused, correction=looser)

    def _measured(self, state: State, proposal: Proposal) -> State:
        """With one more trial: that of the plan, or the one that there was, of a plan with the same schedule."""
        problem, plan = proposal.problem, proposal.plan
        known = next((c for c in state.candidates if c.plan.schedule == plan.schedule), None)
        candidate = self._run(problem, plan) if known is None else replace(known, problem=problem, plan=plan)
        latest = self._trial(state, proposal.verdict, candidate.measured)
        self.learned = replace(self.learned, resident_bytes=latest.beside_bytes - self._reserve_bytes)
        logger.info("%s", describe(latest))
        if self.on_try is not None:
            self.on_try(latest)
        return replace(state, trials=(*state.trials, latest), candidates=(*state.candidates, candidate))

    def _corrected(self, state: State, verdict: Check) -> State:
        """What the next problem is corrected by, after the latest trial."""
        latest, candidate = state.trials[-1], state.candidates[-1]
        correction = latest.correction
        if not latest.kept or _is_idle(latest, verdict):
            least_bytes = -least_resident_bytes(self._costed(1.0, 1.0))
            correction = replace(correction, resident_bytes=max(latest.beside_bytes, least_bytes))
        if self._is_off(latest):
            products, moves = self._factors(candidate, verdict)
            correction = replace(correction, products=products, moves=moves)
            self.learned = replace(self.learned, products=products, moves=moves)
        # A plan that broke the budget again had other left-overs than those it was corrected by; so may the next.
        again = not latest.kept and sum(not t.kept for t in state.trials) > 1
        margin_bytes = latest.used_bytes - state.budget_bytes if again else 0
        return replace(state, correction=correction.plus(margin_bytes), margin_bytes=margin_bytes)

    def profiled(self, step: PlannedStep) -> Timeline:
        """The timeline of one more step."""
        return self.alone(step, lambda run: record(run, self.device, self.captured.resident_bytes))

    def alone(self, step: PlannedStep, look: Callable[[Callable[[], None]], Found]) -> Found:
        """Warm up, then look at one forward and backward pass; the model is as it was afterwards."""
        with unchanged(step.step, self.batch):
            run = runner(step, step.step, self.batch, gradients_held=self.options.gradients_held)
            run()
            return look(run)

    def _first(self, budget_bytes: int) -> Correction:
        """The correction before this budget's first trial.

        Another budget's plan took so much more than planned; this one's may take less, so that no more of it is set
        aside than may stay unused.
        """
        guessed = min(max(self.learned.resident_bytes, 0), int(_IDLE_SHARE * budget_bytes))
        if has_left_overs(self.device):
            guessed = max(guessed, allocator_reserve_bytes(self._costed(1.0, 1.0), budget_bytes))
        return replace(self.learned, resident_bytes=guessed + self._reserve_bytes)

    def _problem(self, correction: Correction) -> MemoryProblem:
        """The captured problem, corrected."""
        return with_resident(self._costed(correction.products, correction.moves), correction.resident_bytes)

    def _costed(self, products: float, moves: float) -> MemoryProblem:
        """The captured problem with corrected times: made once, for it takes a second on large models."""
        if (products, moves) not in self._problems:
            corrected = Corrected(self.captured.costs, products, moves)
            self._problems[products, moves] = self.captured.problem(corrected)
        return self._problems[products, moves]

    def _run(self, problem: MemoryProblem, plan: MemoryPlan) -> Candidate:
        step = apply(
            plan,
            self.model,
            self.loss,
            backend=self.options.backend,
            implementations=self.options.implementations,
        )
        measured = None
        with live_line.line(self.options.progress) as line, contextlib.suppress(torch.OutOfMemoryError):
            line.show(f"{problem.name}: running the plan, {self.repeats} steps timed", begins=True)
            measured = run_trial(
                step,
                step.step,
                self.batch,
                optimizer=self.options.optimizer,
                gradients_held=self.options.gradients_held,
                repeats=self.repeats,
            )
        return Candidate(step, plan, problem, measured or ran_out(self.device, plan.budget_bytes))

    def _trial(self, state: State, verdict: Check, measured: Measurement) -> Trial:
        reserve = self.fragmentation_reserve_bytes
        used = measured.reserved_bytes if reserve is None else measured.peak_bytes + reserve
        return Trial(state.budget_bytes, state.correction, verdict.peak_bytes, verdict.time_us, used, measured)

    def _is_off(self, latest: Trial) -> bool:
        return abs(latest.time_error) > self.time_tolerance

    def _factors(self, candidate: Candidate, verdict: Check) -> tuple[float, float]:
        """Factors that make the captured costs of the plan those that were measured.

        Waiting for copies and cutting the graph are no operator's time. The time between kernels is spread over both
        sorts, so that a step that is planned again with these factors is planned to take what it took.
        """
        assert candidate.plan.schedule is not None
        sorts = [Corrected(self.captured.costs, products=1.0, moves=0.0), Corrected(self.captured.costs, 0.0, 1.0)]
        replays = [check(self.captured.problem(c), candidate.plan.schedule, _UNLIMITED_BYTES) for c in sorts]
        planned = [r.forward_us + r.recompute_us + r.backward_us for r in replays]
        busy_us = max(candidate.measured.step_us - verdict.stall_us - verdict.cut_us, 0.0)
        measured = planned
        if self.device.type == "cuda":
            timeline = self.profiled(candidate.step)
            measured = [timeline.products_us, timeline.moves_us]
            if (warning := launches_bind(busy_us, sum(measured))) is not None:
                logger.warning("%s", warning)
        return factors(busy_us, measured, planned)


def _is_idle(latest: Trial, verdict: Check) -> bool:
    """Whether the step spends time to save memory, and then leaves a good part of what it was planned to take."""
    spends = verdict.recompute_us + verdict.stall_us + verdict.cut_us > 0
    return latest.kept and spends and -latest.excess_bytes > _IDLE_SHARE * latest.budget_bytes


def _expect_one_process(model: nn.Module) -> None:
    """Refuse a wrapper whose trial steps would wait for other ranks: each may measure, correct and try differently."""
    ddp = ddp_of(model)
    if ddp is not None:
        buckets = gradient_bytes(ddp.module)
        raise InputError(
            "model",
            "DistributedDataParallel",
            "needs every rank in every trial step, and ranks measure differently",
            f"Fit ddp.module on one rank, under a budget less the {buckets} bytes of DDP's buckets, and give every "
            "rank that plan: apply(plan, ddp, loss).",
        )


def _expect_plan(plan: object, budget_bytes: int) -> MemoryPlan:
    if not isinstance(plan, MemoryPlan):
        raise InputError("planner", plan, "gave no memory plan", "Return what loadmaster.plan(problem) returns.")
    if plan.budget_bytes != budget_bytes:
        remedy = "Plan the problem that is given, which has it: loadmaster.plan(problem)."
        raise InputError("plan.budget_bytes", plan.budget_bytes, f"is not the budget of {budget_bytes} bytes", remedy)
    return plan


def _expect_valid(problem: MemoryProblem, plan: MemoryPlan) -> Check:
    verdict = check_plan(problem, plan)
    if not verdict.ok:
        raise CheckFailedError(f"the planner's plan breaks its problem: {verdict.violations[0]}")
    return verdict


@renamed_keywords(offer="implementations", inputs="batch")
def fit(
    model: nn.Module,
    batch: AnyBatch,
    loss: Loss | None = None,
    *,
    budget_bytes: int | str,
    planner: Planner,
    optimizer: torch.optim.Optimizer | None = None,
    backend: Backend = "inductor",
    name: str | None = None,
    costs: CostModel | None = None,
    gradients_held: bool = False,
    host_link: HostLink | bool = False,
    implementations: ImplementationFilter = EVERYTHING,
    fragmentation_reserve_bytes: int | str | None = 0,
    time_tolerance: float = 0.05,
    tries: int = 3,
    repeats: int = 5,
    progress: bool | None = None,
) -> Fitted:
    """A training step that keeps a byte budget: measured, not only planned.

    The promise is the peak of forward and backward pass, everything resident included; an optimizer's own temporaries
    come after it. Trial steps leave parameters, buffers, gradients and random state as they were. Hooks on parameters
    do not run in them; forward hooks do, as part of the model.

    Args:
        model, batch, loss, optimizer, backend, name, costs, gradients_held, host_link, implementations: as for
            :func:`~loadmaster.executor.memory.capture.capture`.
        budget_bytes: what the measured peak must not exceed: bytes, a size (``"6GiB"``), or a share (``"50%"``) of the
            peak that the captured step has with nothing planned.
        planner: plans a problem under the budget it comes with, for example
            ``lambda p: loadmaster.plan(p, time_limit_s=60)``.
        fragmentation_reserve_bytes: part of the budget that the step must leave free, for what CUDA's allocator
            reserves beyond what it hands out. None: count the reserved bytes themselves, as measured in the trial.
        time_tolerance: plan again when the measured step time is off by more than this share.
        tries: plans that are run at most.
        repeats: timed steps of each.
        progress: whether to say what goes on, in a line on standard error. None: in a terminal or a notebook. A planner
            has a line of its own.

    Returns:
        The fastest step that kept the budget, with the record of all tries. A step time that is still off after the
        last try is no error: the record shows it.

    Raises:
        BudgetError: no plan was found that keeps the budget; names the bytes measured and what to ask for.
        InputError: the model cannot be captured, or an argument is wrong.
    """
    options = CaptureOptions(
        optimizer=optimizer,
        costs=costs,
        backend=backend,
        gradients_held=gradients_held,
        host_link=host_link,
        implementations=implementations,
        name=name,
        progress=progress,
    )
    limit_of("memory").read(budget_bytes, "budget_bytes")  # a slip is no reason to capture for minutes first
    fitter = Fitter(
        model,
        batch,
        loss,
        options,
        fragmentation_reserve_bytes=fragmentation_reserve_bytes,
        time_tolerance=time_tolerance,
        repeats=repeats,
    )
    return fitter.fit(planner, budget_bytes, tries)
