"""Fitting a step to a byte budget: the fastest step that keeps it by measurement, planned or torch.compile's own.

:meth:`Fitter.fit` goes on in this order, as far as it has to:

1. The knob that won the last time, which is kept on disk, is measured again
   (:mod:`~loadmaster.executor.memory.fit.disk_record`).
2. The step is captured (:meth:`Fitter.capture`).
3. Plans are run, measured and corrected (:mod:`~loadmaster.executor.memory.fit.planned`). They are compared with what a
   user has without them, torch.compile's own partition under its knob (:mod:`~loadmaster.executor.memory.fit.knob`):
   whichever promises more is tried first (:mod:`~loadmaster.executor.memory.fit.contest`).
4. The faster one is the outcome (:mod:`~loadmaster.executor.memory.fit.fitted`), torch.compile's where it is the only
   one to keep the budget, or where the model has no plan; what is left to try goes on while it trains.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from torch import fx, nn

from loadmaster.errors import InputError
from loadmaster.executor.memory.capture import CaptureOptions, capture_step
from loadmaster.executor.memory.fit import disk_record
from loadmaster.executor.memory.fit.ahead import vector_isas
from loadmaster.executor.memory.fit.ahead.ahead import Ahead
from loadmaster.executor.memory.fit.ahead.background import Background
from loadmaster.executor.memory.fit.contest import Side, best_of, time_in_turns
from loadmaster.executor.memory.fit.correction import StepProblems
from loadmaster.executor.memory.fit.fitted import Fitted, TunedStep, Tuning, running
from loadmaster.executor.memory.fit.knob import KnobSide, KnobTrial
from loadmaster.executor.memory.fit.phases import CAPTURING, COSTING, PLANS, Phases
from loadmaster.executor.memory.fit.planned import PlannedSide, Planner
from loadmaster.executor.memory.fit.report import MORE, plain_report, refusal, report
from loadmaster.executor.memory.fit.trial_runs import TrialRuns
from loadmaster.executor.memory.fit.trials import AnyStep, Candidate, Correction, PlainStep, PlainTrial, Trial
from loadmaster.executor.memory.fit.verify import Verifier
from loadmaster.executor.memory.run.apply import PlannedStep
from loadmaster.executor.memory.run.backends import expect_backend
from loadmaster.executor.steps.batch import AnyBatch, batch_of
from loadmaster.executor.steps.drawn_once import warn_of_users_budget
from loadmaster.executor.steps.one_graph.graph_breaks import UntraceableError
from loadmaster.executor.steps.resident import device_of, gradient_bytes, own_bytes
from loadmaster.executor.steps.step import Loss, Step
from loadmaster.executor.steps.timeline import Timeline, record
from loadmaster.executor.steps.tracing import Mode, expect_mode
from loadmaster.executor.steps.wrappers import ddp_of, own_module
from loadmaster.models.kinds import limit_of
from loadmaster.models.memory.measurement import MemoryMeasurement, measured
from loadmaster.models.memory.plain import peak_bytes
from loadmaster.models.units import bytes_of

Found = TypeVar("Found")

logger = logging.getLogger(__name__)

KNOB_TRIES = 4
# The step is not a graph that can be planned, or one that nobody foresaw: what torch.compile makes of it may still run.
NO_PLAN = (UntraceableError, RuntimeError, AssertionError, LookupError)
_SLOWER_THAN_BEFORE = 1.1  # what was taken the last time is looked into again where it takes so much longer now


class Fitter:
    """A step that is fitted to one budget after another. What trials say of it is kept between them. ``on_try`` and
    ``on_knob`` are called with each measured trial of a plan and of torch.compile's knob; ``options`` are as for
    :func:`~loadmaster.executor.memory.capture.capture`, the other arguments as for
    :func:`~loadmaster.executor.fitting.fit`."""

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
        mode: Mode = "default",
        verify: bool = True,
        on_try: Callable[[Trial], None] | None = None,
        on_knob: Callable[[KnobTrial], None] | None = None,
    ) -> None:
        _expect_one_process(model)
        if repeats < 1:
            raise InputError("repeats", repeats, "leaves nothing to time", "Time at least one step.")
        if fragmentation_reserve_bytes is not None:
            fragmentation_reserve_bytes = bytes_of(fragmentation_reserve_bytes, "fragmentation_reserve_bytes")
        expect_backend(options.backend)
        warn_of_users_budget()
        expect_mode(mode)
        if mode != "default" and options.gradients_held:
            remedy = "Drop gradients after each step, or take the default mode."
            raise InputError("mode", mode, "overwrites the gradients of the step before", remedy)
        step = Step(own_module(model), loss)
        step.expect_call(step.batch(batch_of(batch)))
        self.on_try, self.on_knob = on_try, on_knob
        given, phases = batch_of(batch), Phases()
        self.runs = TrialRuns(
            model,
            given,
            loss,
            options,
            device_of(model, given),
            fragmentation_reserve_bytes,
            time_tolerance,
            repeats,
            mode,
            phases,
            Background(),
            Ahead(wanted=options.backend == "inductor"),
            Verifier(model, given, loss, phases) if verify else None,
        )
        self._problems: StepProblems | None = None
        self._tuning: Tuning | None = None
        self._path = disk_record.path_of(self.runs)
        self._kept = disk_record.read(self._path)
        phases.before.update(self._kept.seconds)

    def capture(self) -> StepProblems:
        """Capture the step unless that is done, and measure its operators where capturing does not; returns its
        problems, with what trials taught of them: the latest here, else what the last run left on disk. InputError: as
        for :func:`~loadmaster.executor.memory.capture.capture`."""
        runs, problems = self.runs, self._problems
        if problems is None:
            with runs.phases.during(CAPTURING):
                runs.ahead.get_ready()
                captured = capture_step(runs.model, runs.batch, runs.loss, runs.options, noted=self._noted)
            learned = self._kept.correction if self._is_measured else None
            problems = StepProblems(captured, learned or Correction())
        with runs.phases.during(COSTING), runs.ahead.standing_still():
            _ = problems.plain
        self._problems = problems
        return problems

    def _noted(self, module: fx.GraphModule) -> None:
        """Take Dynamo's graph of the step, and begin what it needs that takes a while."""
        if self.runs.options.backend == "inductor":
            vector_isas.ask_ahead(module)
        self.runs.ahead.take(module)

    def fit(
        self,
        planner: Planner,
        budget_bytes: int | str,
        tries: int = 3,
        knob_tries: int = KNOB_TRIES,
        *,
        tune_while_training: bool = False,
    ) -> Fitted:
        """The fastest step that keeps the budget, of plans and of torch.compile's own partition.

        The arguments are those of :func:`~loadmaster.executor.fitting.fit`. A trial for which the device has too
        little memory is one that did not keep the budget. What is still tried while the step of another budget trains
        is given up.

        Raises:
            BudgetError: nothing was found that keeps the budget.
            CheckFailedError: the planner gave a plan that breaks its own problem.
            InputError: the planner gave no plan, or one for another problem or budget; the step has no plan, and
                torch.compile's own partition does not keep the budget.
            LimitReachedError: the planner's limit came before any plan that keeps the budget was found.
        """
        if tries < 1:
            raise InputError("tries", tries, "leaves nothing to run", "Allow at least one try.")
        if knob_tries < 0:
            raise InputError("knob_tries", knob_tries, "is no number of tries", "Give 0 for plans alone.")
        if self.runs.options.backend != "inductor":
            knob_tries = 0
        self.runs.phases.begin()
        if self._tuning is not None:
            self._tuning.end("another budget is fitted")
        with contextlib.ExitStack() as work:
            work.enter_context(self.runs.ahead.during_fit())
            work.callback(self.runs.background.end)
            return self._fit(planner, budget_bytes, tries, knob_tries, work, tune_while_training=tune_while_training)

    def _fit(
        self,
        planner: Planner,
        budget_bytes: int | str,
        tries: int,
        knob_tries: int,
        work: contextlib.ExitStack,
        *,
        tune_while_training: bool,
    ) -> Fitted:
        knob = self._taken_before(budget_bytes, knob_tries)
        if knob is not None and self._is_as_before(knob):
            return self._fitted(None, knob, f"{report(None, knob)} It won the last time, too.")

        limit, problems, why_no_plan = limit_of("memory"), None, None
        try:
            problems = self.capture()
            size_bytes = limit.value(budget_bytes, problems.plain, "budget_bytes")
        except NO_PLAN as error:
            given = limit.read(budget_bytes, "budget_bytes")
            if isinstance(given, float) or not knob_tries:
                raise
            size_bytes, why_no_plan = given, error
        if size_bytes < 1:
            raise InputError("budget_bytes", budget_bytes, "is no positive number of bytes", "Give one: 8 << 30.")

        if knob is None or knob.budget_bytes != size_bytes:
            knob = self._knob_side(size_bytes, knob_tries)
        later = bool(tune_while_training and knob_tries and self.runs.may_tune_while_training)
        sides: list[Side] = [knob]
        planned = None
        if problems is not None:
            planned = PlannedSide(
                self.runs, problems, planner, size_bytes, tries, soon=later, alone=not knob.most, on_try=self.on_try
            )
            knob.is_hopeless = planned.is_far
            sides = [planned, knob]
        knob.only_hope = planned is None

        def conclude(*, is_final: bool) -> Fitted:
            if is_final and not self.runs.counts_kernels:
                time_in_turns(self.runs, sides)
            winner = best_of(sides)
            self._keep(budget_bytes, knob, taken=is_final and winner is knob)
            if self.runs.verifier is not None:
                self.runs.verifier.forget()  # parameters may move on
            if winner is None and (knob.differs or (planned is not None and planned.differs)):
                return self._plain_fitted(planned, knob)
            if winner is None:
                raise refusal(why_no_plan if planned is None else planned.error(), knob)
            said = report(planned, knob, why_no_plan)
            if is_final and winner is knob and (planned is None or planned.failed is not None):
                logger.warning("%s", said)
            return self._fitted(planned, knob, said if is_final else f"{said} {MORE}", is_final=is_final)

        self._tuning = Tuning(self.runs, sides, work, conclude)
        return self._tuning.begin() if later else self._tuning.finish()

    def profiled(self, step: AnyStep | PlainStep | TunedStep) -> Timeline:
        """The timeline of one more step."""
        runs, step = self.runs, running(step)
        held_bytes = own_bytes(runs.model, runs.batch)
        if isinstance(step, PlannedStep) and self._problems is not None:
            held_bytes = self._problems.captured.resident_bytes
        return self.alone(step, lambda run: record(run, runs.device, held_bytes))

    def alone(self, step: AnyStep | PlainStep | TunedStep, look: Callable[[Callable[[], None]], Found]) -> Found:
        """Warm up, then look at one forward and backward pass; the model is as it was afterwards."""
        return self.runs.alone(running(step), look)

    @property
    def _is_measured(self) -> bool:
        """True if costs are measured on this device: corrections that trials teach are for such costs."""
        return self.runs.options.costs is None and self.runs.options.hardware is None

    def _taken_before(self, budget_bytes: int | str, knob_tries: int) -> KnobSide | None:
        """The knob that won this budget the last time, measured again; None where none did."""
        if not knob_tries or str(budget_bytes) not in self._kept.knobs:
            return None
        size_bytes, value = self._kept.knobs[str(budget_bytes)]
        knob = self._knob_side(size_bytes, knob_tries)
        knob.measure(value)
        return knob

    def _is_as_before(self, knob: KnobSide) -> bool:
        """Return whether the one try kept the budget, and took about as long as it is known to take."""
        if knob.best_us is None:
            return False
        before_us = [p.step_us for p in knob.known if p.knob == knob.tries[0].knob]
        return bool(before_us) and knob.best_us <= _SLOWER_THAN_BEFORE * before_us[0]

    def _knob_side(self, budget_bytes: int, most: int) -> KnobSide:
        self.runs.ahead.leave_room(self.runs.device, budget_bytes)
        share = self._share(budget_bytes) if most else 1.0
        return KnobSide(self.runs, budget_bytes, self._kept.probes, most, self.on_knob, share)

    def _share(self, budget_bytes: int) -> float:
        """Place of a budget between resident bytes (0) and the captured step's peak (1); 1 if nothing is captured."""
        if self._problems is None:
            return 1.0
        resident_bytes, plain_bytes = self._problems.captured.resident_bytes, peak_bytes(self._problems.plain)
        return (budget_bytes - resident_bytes) / max(1, plain_bytes - resident_bytes)

    def _keep(self, budget: int | str, knob: KnobSide, *, taken: bool) -> None:
        """Leave what was found for the next call, here and in the next run."""
        kept = self._kept.with_probes([t.probe for t in knob.tries])
        value = knob.tries[knob.chosen].knob if taken and knob.chosen is not None else None
        kept = kept.with_taken(budget, knob.budget_bytes, value)
        if self._is_measured and self._problems is not None:
            kept = replace(kept, correction=self._problems.learned)
        self._kept = replace(kept, seconds=self.runs.phases.each_s)
        disk_record.write(self._path, self._kept)

    def _fitted(self, planned: PlannedSide | None, knob: KnobSide, said: str, *, is_final: bool = True) -> Fitted:
        if best_of([knob] if planned is None else [planned, knob]) is knob:
            assert knob.step is not None, "it kept the budget"
            step, more = self.runs.in_mode(knob.step, knob.budget_bytes)
            fitted = Fitted(step, chosen_knob=knob.chosen)
        else:
            assert planned is not None and planned.chosen is not None, "it kept the budget"
            best = planned.state.candidates[planned.chosen]
            found = self._measurement(best) if is_final else None
            step, more = self.runs.in_mode(best.step, knob.budget_bytes)
            assert isinstance(step, PlannedStep), "as the candidate is"
            step.unplanned = "run"  # as torch.compile's own does
            fitted = Fitted(step, best.plan, best.problem, chosen=planned.chosen, measurement=found)
        return self._with_record(fitted, planned, knob, said, more)

    def _plain_fitted(self, planned: PlannedSide | None, knob: KnobSide) -> Fitted:
        """Plain PyTorch's step, since whatever was compiled differs from it."""
        runs = self.runs
        step = PlainStep(runs.model, runs.loss)
        measured = runs.run_plain(step, knob.budget_bytes)
        plain = PlainTrial(knob.budget_bytes, runs.used_bytes(measured), measured)
        said = plain_report(planned, knob, plain)
        logger.warning("%s", said)
        return self._with_record(Fitted(step, plain=plain), planned, knob, said)

    def _with_record(self, fitted: Fitted, planned: PlannedSide | None, knob: KnobSide, *said: str) -> Fitted:
        phases = self.runs.phases
        fitted.tries = () if planned is None else planned.state.trials
        fitted.knob_tries = tuple(knob.tries)
        fitted.report = " ".join(filter(None, (*said, phases.words())))
        fitted.seconds = dict(phases.seconds)
        return fitted

    def _measurement(self, best: Candidate) -> MemoryMeasurement | None:
        """Measurement of the plan, with the curve of one more step; None where the profiler broke: the log has why, and
        the measured step is not taken away by it."""
        try:
            with self.runs.phases.during(PLANS):
                timeline = self.profiled(best.step)
        except Exception as error:  # noqa: BLE001 - of a profiler, a driver, or the device's memory
            logger.warning("no curve of the step's memory: %s: %s", type(error).__name__, error)
            return None
        found = best.measured
        return measured(best.plan, timeline.device, found.peak_bytes, found.step_us, timeline.levels)


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
