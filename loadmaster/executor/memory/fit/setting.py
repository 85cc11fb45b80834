"""The setting that all trials of a fit share: model, batch and loss, and how a step of them is run and measured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import nn

from loadmaster import live_line
from loadmaster.executor.memory.capture import CaptureOptions
from loadmaster.executor.memory.fit import vector_isas
from loadmaster.executor.memory.fit.ahead.ahead import Ahead
from loadmaster.executor.memory.fit.any_step import AnyStep
from loadmaster.executor.memory.fit.beside import Beside
from loadmaster.executor.memory.fit.phases import CHECKING, Phases, compiling, timing
from loadmaster.executor.memory.fit.plain_step import PlainStep
from loadmaster.executor.memory.fit.trial_run import WARM_UP, ran_out, run_trial, runner
from loadmaster.executor.memory.fit.values import Comparison
from loadmaster.executor.memory.fit.verify import Verifier
from loadmaster.executor.memory.run.apply import PlannedStep, apply
from loadmaster.executor.memory.run.knob_step import KnobStep
from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.measure import Measurement, times_us
from loadmaster.executor.steps.step import Loss
from loadmaster.executor.steps.timeline import record
from loadmaster.executor.steps.tracing import Mode
from loadmaster.executor.steps.unchanged import unchanged
from loadmaster.executor.steps.wrappers import is_among_ranks
from loadmaster.models.memory.plan import MemoryPlan

Found = TypeVar("Found")


@dataclass(frozen=True, eq=False)
class Setting:
    """A step that is fitted, with all that its trials have in common.

    Attributes:
        fragmentation_reserve_bytes: as for :func:`~loadmaster.executor.memory.fit.fit.fit`; None: reserved bytes count.
        time_tolerance: share that a planned time may be off.
        repeats: timed steps of a trial.
        mode: what the user asked for. Trials run without CUDA graphs; where these are to come, a step's time is that of
            its kernels, which a graph leaves of it.
        phases: what its time is spent on.
        beside: what goes on in the background of the trials' compilations.
        ahead: what is compiled before it is asked for.
        verifier: holds steps against plain PyTorch's; None: nothing does.
    """

    model: nn.Module
    batch: Batch
    loss: Loss | None
    options: CaptureOptions
    device: torch.device
    fragmentation_reserve_bytes: int | None
    time_tolerance: float
    repeats: int
    mode: Mode
    phases: Phases
    beside: Beside
    ahead: Ahead
    verifier: Verifier | None

    @property
    def reserve_bytes(self) -> int:
        """Bytes of the budget that are kept free."""
        return self.fragmentation_reserve_bytes or 0

    def used_bytes(self, measured: Measurement) -> int:
        """Bytes of a measurement that count against a budget."""
        if self.fragmentation_reserve_bytes is None:
            return measured.reserved_bytes
        return measured.peak_bytes + self.fragmentation_reserve_bytes

    def planned(self, plan: MemoryPlan | Sequence[MemoryPlan], mode: Mode = "default") -> PlannedStep:
        """The step under a plan."""
        options = self.options
        return apply(
            plan,
            self.model,
            self.loss,
            backend=options.backend,
            implementations=options.implementations,
            mode=mode,
        )

    def run(self, step: AnyStep, budget_bytes: int, side: str, name: str) -> Measurement:
        """Compile a step, and measure it once nothing else runs. One that takes more than the device has ran out.

        Args:
            side, name: whose phases this counts as, and what to call the step meanwhile.
        """
        measured = None
        last_time = self.phases.last_time(compiling(side))
        with (
            live_line.line(self.options.progress) as line,
            contextlib.suppress(torch.OutOfMemoryError),
            contextlib.ExitStack() as phase,
        ):
            phase.enter_context(self.phases.during(compiling(side)))
            phase.enter_context(self.ahead.compiling_here())
            vector_isas.settle()
            line.show(f"{name}: compiling{last_time}", begins=True)
            compiled = step if isinstance(step, KnobStep) else step.planned
            how = step.knob if isinstance(step, KnobStep) else step.plans[0]
            phase.callback(setattr, compiled, "before", compiled.before)
            compiled.before = lambda half: self.ahead.wait(how, half)

            def alone() -> None:
                phase.close()
                if self.beside.is_busy():
                    line.show(f"{name}: compiled, timed when planning ends", begins=True)
                    self.beside.settle()
                phase.enter_context(self.ahead.standing_still())
                phase.enter_context(self.phases.during(timing(side)))
                line.show(f"{name}: timing {self.repeats} steps", begins=True)

            measured = self._trial(
                step,
                # CUDA graphs are recorded in the second step, which is the one that allocates: it is measured.
                warm_up=WARM_UP if compiled.mode == "default" else 1,
                warmed_up=alone,
            )
            if self.counts_kernels and compiled.mode == "default":
                measured = replace(measured, step_us=self._kernels_us(step))
        return measured or ran_out(self.device, budget_bytes)

    def run_plain(self, step: PlainStep, budget_bytes: int) -> Measurement:
        """Measure plain PyTorch's step. One that takes more than the device has ran out."""
        measured = None
        with contextlib.suppress(torch.OutOfMemoryError), self.ahead.standing_still(), self.phases.during(CHECKING):
            measured = self._trial(step)
        return measured or ran_out(self.device, budget_bytes)

    def _trial(self, step: AnyStep | PlainStep, **more: Any) -> Measurement:
        """Run a step as it will be trained; ``more`` goes to :func:`run_trial`."""
        return run_trial(
            step,
            step.step,
            self.batch,
            optimizer=self.options.optimizer,
            gradients_held=self.options.gradients_held,
            repeats=self.repeats,
            **more,
        )

    def compared(self, step: AnyStep) -> Comparison:
        """Compare a step that was run before with one of plain PyTorch, if that is wanted."""
        if self.verifier is None:
            return Comparison("")
        with live_line.line(self.options.progress) as line, self.ahead.standing_still():
            line.show("comparing the step with plain PyTorch's", begins=True)
            return self.verifier.compared(step)

    @property
    def counts_kernels(self) -> bool:
        """True if launching a trial's kernels says nothing of the step that the user gets, which runs a CUDA graph."""
        return self.mode != "default" and self.device.type == "cuda"

    @property
    def may_tune_while_training(self) -> bool:
        """True if tries can wait for what helpers compile, and hold up no other rank."""
        return self.mode == "default" and self.ahead.is_at_work and not is_among_ranks()

    def _kernels_us(self, step: AnyStep) -> float:
        """Time of all kernels of a step that is compiled, copies to and from the host left out."""
        timeline = self.alone(step, lambda run: record(run, self.device))
        return timeline.products_us + timeline.moves_us

    def times_us(self, step: AnyStep) -> list[float]:
        """Times of a few runs of a compiled step."""
        return self.alone(step, lambda run: times_us(run, self.device, self.repeats))

    def alone(self, step: AnyStep | PlainStep, look: Callable[[Callable[[], None]], Found]) -> Found:
        """Warm up, then look at one forward and backward pass; the model is as it was afterwards."""
        with unchanged(step.step, self.batch):
            run = runner(step, step.step, self.batch, gradients_held=self.options.gradients_held)
            run()
            with self.ahead.standing_still():
                return look(run)
