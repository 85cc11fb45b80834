"""Fitting a step to a byte budget: the fastest step that keeps it by measurement, planned or torch.compile's own.

Plans are run, measured and corrected (:mod:`loadmaster.executor.memory.fit.planned`). They are compared with what a
user has without them, torch.compile's own partition under its knob (:mod:`loadmaster.executor.memory.fit.knob`): where
that is faster, or the only one to keep the budget, or where the model has no plan, it is what the user gets. The result
is kept on disk, so that the next call of the same step goes there at once.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

from torch import fx, nn

from loadmaster.errors import InputError
from loadmaster.executor.memory.capture import CapturedStep, CaptureOptions, capture_step
from loadmaster.executor.memory.fit import kept as on_disk
from loadmaster.executor.memory.fit import vector_isas
from loadmaster.executor.memory.fit.ahead.ahead import Ahead
from loadmaster.executor.memory.fit.any_step import AnyStep
from loadmaster.executor.memory.fit.beside import Beside
from loadmaster.executor.memory.fit.contest import Side, best_of
from loadmaster.executor.memory.fit.costed import Costed
from loadmaster.executor.memory.fit.final import time_in_turns
from loadmaster.executor.memory.fit.in_mode import in_mode
from loadmaster.executor.memory.fit.knob import KnobSide, KnobTrial
from loadmaster.executor.memory.fit.phases import CAPTURING, COSTING, PLANS, Phases
from loadmaster.executor.memory.fit.plain_step import PlainStep, PlainTrial
from loadmaster.executor.memory.fit.planned import PlannedSide, Planner
from loadmaster.executor.memory.fit.setting import Setting
from loadmaster.executor.memory.fit.state import Candidate, Fitted
from loadmaster.executor.memory.fit.trials import Correction, Trial
from loadmaster.executor.memory.fit.tuned_step import TunedStep, running
from loadmaster.executor.memory.fit.tuning import Tuning
from loadmaster.executor.memory.fit.verify import Verifier
from loadmaster.executor.memory.fit.words import MORE, plain_report, refusal, report
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
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.units import bytes_of

Found = TypeVar("Found")

logger = logging.getLogger(__name__)

KNOB_TRIES = 4
# The step is not a graph that can be planned, or one that nobody foresaw: what torch.compile makes of it may still run.
_NO_PLAN = (UntraceableError, RuntimeError, AssertionError, LookupError)
_SLOWER_THAN_BEFORE = 1.1  # what was taken the last time is looked into again where it takes so much longer now


class Fitter:
    """A step that is fitted to one budget after another. What trials say of it is kept between them.

    Args:
        options: as for :func:`~loadmaster.executor.memory.capture.capture`.
        on_try, on_knob: called with each trial of a plan and of torch.compile's knob, once it is measured.
        The others as for :func:`fit`.
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
        phases = Phases()
        self.setting = Setting(
            model,
            batch_of(batch),
            loss,
            options,
            device_of(model, batch_of(batch)),
            fragmentation_reserve_bytes,
            time_tolerance,
            repeats,
            mode,
            phases,
            Beside(),
            Ahead(wanted=options.backend == "inductor"),
            Verifier(model, batch_of(batch), loss, phases) if verify else None,
        )
        self._tuning: Tuning | None = None
        self._path = on_disk.path_of(self.setting)
        self._kept = on_disk.read(self._path)
        self.setting.phases.before.update(self._kept.seconds)

    @cached_property
    def captured(self) -> CapturedStep:
        """The traced step and its costs.

        Raises:
            InputError: as for :func:`~loadmaster.executor.memory.capture.capture`.
        """
        setting = self.setting
        with setting.phases.during(CAPTURING):
            setting.ahead.get_ready()
            return capture_step(setting.model, setting.batch, setting.loss, setting.options, noted=self._noted)

    def _noted(self, module: fx.GraphModule) -> None:
        """Take Dynamo's graph of the step, and begin what it needs that takes a while."""
        if self.setting.options.backend == "inductor":
            vector_isas.ask_ahead(module)
        self.setting.ahead.take(module)

    @cached_property
    def costed(self) -> Costed:
        """The step's problems, and what trials taught of them: the latest here, else what the last run left on disk."""
        known = self._kept.correction if self._is_measured else None
        return Costed(self.captured, known or Correction())

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

        A trial for which the device has too little memory is one that did not keep the budget. What is still tried
        while the step of another budget trains is given up.

        Args:
            planner, budget_bytes, tries, knob_tries, tune_while_training: as for
                :func:`~loadmaster.executor.memory.fit.fit.fit`.

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
        if self.setting.options.backend != "inductor":
            knob_tries = 0
        self.setting.phases.begin()
        if self._tuning is not None:
            self._tuning.end("another budget is fitted")
        with contextlib.ExitStack() as work:
            work.enter_context(self.setting.ahead.during_fit())
            work.callback(self.setting.beside.end)
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
        limit = limit_of("memory")
        knob = self._taken_before(budget_bytes, knob_tries)
        if knob is not None and self._is_as_before(knob):
            return self._fitted(None, knob, f"{report(None, knob)} It won the last time, too.")
        why_no_plan: Exception | None = None
        try:
            size_bytes = limit.value(budget_bytes, self._plain, "budget_bytes")
        except _NO_PLAN as error:
            given = limit.read(budget_bytes, "budget_bytes")
            if isinstance(given, float) or not knob_tries:
                raise
            size_bytes, why_no_plan = given, error
        if size_bytes < 1:
            raise InputError("budget_bytes", budget_bytes, "is no positive number of bytes", "Give one: 8 << 30.")
        if knob is None or knob.budget_bytes != size_bytes:
            knob = self._knob_side(size_bytes, knob_tries)
        goes_on_later = bool(tune_while_training and knob_tries and self.setting.may_tune_while_training)
        planned = None
        if why_no_plan is None:
            planned = self._planned_side(planner, size_bytes, tries, knob, soon=goes_on_later)
        knob.only_hope = planned is None
        if planned is not None:
            knob.is_hopeless = planned.is_far
        sides: list[Side] = [knob] if planned is None else [planned, knob]

        def conclude(*, is_final: bool) -> Fitted:
            if is_final and planned is not None and not self.setting.counts_kernels:
                time_in_turns(self.setting, planned, knob)
            winner = best_of(sides)
            self._keep(budget_bytes, knob, taken=is_final and winner is knob)
            if self.setting.verifier is not None:
                self.setting.verifier.forget()  # parameters may move on
            if winner is None and (knob.differs or (planned is not None and planned.differs)):
                return self._plain_fitted(planned, knob)
            if winner is None:
                raise refusal(why_no_plan if planned is None else planned.error(), knob)
            said = report(planned, knob, why_no_plan)
            if is_final and winner is knob and (planned is None or planned.failed is not None):
                logger.warning("%s", said)
            return self._fitted(planned, knob, said if is_final else f"{said} {MORE}", is_final=is_final)

        self._tuning = Tuning(self.setting, sides, work, conclude)
        return self._tuning.begin() if goes_on_later else self._tuning.finish()

    def profiled(self, step: AnyStep | PlainStep | TunedStep) -> Timeline:
        """The timeline of one more step."""
        setting, step = self.setting, running(step)
        is_planned = isinstance(step, PlannedStep)
        held_bytes = self.captured.resident_bytes if is_planned else own_bytes(setting.model, setting.batch)
        return self.alone(step, lambda run: record(run, setting.device, held_bytes))

    def alone(self, step: AnyStep | PlainStep | TunedStep, look: Callable[[Callable[[], None]], Found]) -> Found:
        """Warm up, then look at one forward and backward pass; the model is as it was afterwards."""
        return self.setting.alone(running(step), look)

    @property
    def _plain(self) -> MemoryProblem:
        """The problem as captured. Operators are measured here, where capturing has not measured them."""
        costed, setting = self.costed, self.setting
        with setting.phases.during(COSTING), setting.ahead.standing_still():
            return costed.plain

    @property
    def _is_measured(self) -> bool:
        """True if costs are measured on this device: corrections that trials teach are for such costs."""
        return self.setting.options.costs is None and self.setting.options.hardware is None

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
        self.setting.ahead.leave_room(self.setting.device, budget_bytes)
        return KnobSide(
            self.setting,
            budget_bytes,
            self._kept.probes,
            most,
            self.on_knob,
            self._share(budget_bytes) if most else 1.0,
        )

    def _share(self, budget_bytes: int) -> float:
        """Place of a budget between resident bytes (0) and the captured step's peak (1); 1 if nothing is captured."""
        if "costed" not in vars(self):
            return 1.0
        resident_bytes, plain_bytes = self.captured.resident_bytes, peak_bytes(self.costed.plain)
        return (budget_bytes - resident_bytes) / max(1, plain_bytes - resident_bytes)

    def _planned_side(
        self, planner: Planner, budget_bytes: int, tries: int, knob: KnobSide, *, soon: bool
    ) -> PlannedSide:
        setting, costed, alone = self.setting, self.costed, not knob.most
        return PlannedSide(setting, costed, planner, budget_bytes, tries, soon=soon, alone=alone, on_try=self.on_try)

    def _keep(self, budget: int | str, knob: KnobSide, *, taken: bool) -> None:
        """Leave what was found for the next call, here and in the next run."""
        kept = self._kept.with_probes([t.probe for t in knob.tries])
        value = knob.tries[knob.chosen].knob if taken and knob.chosen is not None else None
        kept = kept.with_taken(budget, knob.budget_bytes, value)
        if self._is_measured and "costed" in vars(self):
            kept = replace(kept, correction=self.costed.learned)
        self._kept = replace(kept, seconds=self.setting.phases.each_s)
        on_disk.write(self._path, self._kept)

    def _fitted(self, planned: PlannedSide | None, knob: KnobSide, said: str, *, is_final: bool = True) -> Fitted:
        """The faster of the two sides' steps."""
        trials = () if planned is None else planned.state.trials
        phases, knobs = self.setting.phases, tuple(knob.tries)
        if best_of([knob] if planned is None else [planned, knob]) is knob:
            assert knob.step is not None, "it kept the budget"
            step, more = in_mode(self.setting, knob.step, knob.budget_bytes)
            said = " ".join(filter(None, (said, more, phases.words())))
            return Fitted(step, None, None, trials, None, knobs, knob.chosen, said, dict(phases.seconds))
        assert planned is not None and planned.chosen is not None, "it kept the budget"
        best = planned.state.candidates[planned.chosen]
        found = self._measurement(best) if is_final else None
        step, more = in_mode(self.setting, best.step, knob.budget_bytes)
        assert isinstance(step, PlannedStep), "as the candidate is"
        step.unplanned = "run"  # as torch.compile's own does
        said = " ".join(filter(None, (said, more, phases.words())))
        chosen, seconds = planned.chosen, dict(phases.seconds)
        return Fitted(step, best.plan, best.problem, trials, chosen, knobs, None, said, seconds, found)

    def _plain_fitted(self, planned: PlannedSide | None, knob: KnobSide) -> Fitted:
        """Plain PyTorch's step, since whatever was compiled differs from it."""
        setting, trials = self.setting, () if planned is None else planned.state.trials
        step = PlainStep(setting.model, setting.loss)
        measured = setting.run_plain(step, knob.budget_bytes)
        plain = PlainTrial(knob.budget_bytes, setting.used_bytes(measured), measured)
        said = plain_report(planned, knob, plain)
        logger.warning("%s", said)
        said, seconds = f"{said} {setting.phases.words()}", dict(setting.phases.seconds)
        return Fitted(step, None, None, trials, None, tuple(knob.tries), None, said, seconds, plain=plain)

    def _measurement(self, best: Candidate) -> MemoryMeasurement | None:
        """Measurement of the plan, with the curve of one more step; None where the profiler broke: the log has why.

        The step is measured and there: nothing that happens here takes it away.
        """
        try:
            with self.setting.phases.during(PLANS):
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
