"""Trial steps of a fit: they are run and measured, and the user's model is left exactly as it was."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import nn

from loadmaster import live_line
from loadmaster.executor.memory.capture import CaptureOptions
from loadmaster.executor.memory.fit.ahead import vector_isas
from loadmaster.executor.memory.fit.ahead.ahead import Ahead
from loadmaster.executor.memory.fit.ahead.background import Background
from loadmaster.executor.memory.fit.phases import CHECKING, KNOB, PLANS, Phases, compiling, timing
from loadmaster.executor.memory.fit.trials import AnyStep, PlainStep
from loadmaster.executor.memory.fit.values import Comparison
from loadmaster.executor.memory.fit.verify import Verifier
from loadmaster.executor.memory.run.apply import PlannedStep, apply
from loadmaster.executor.memory.run.knob_step import KnobStep
from loadmaster.executor.steps.batch import AnyBatch, Batch, batch_of
from loadmaster.executor.steps.measure import Measurement, measure, times_us
from loadmaster.executor.steps.resident import allocated_bytes, device_of, one_of_each_storage, optimizer_state_bytes
from loadmaster.executor.steps.step import Loss, Step
from loadmaster.executor.steps.step_graph import tensors
from loadmaster.executor.steps.timeline import record
from loadmaster.executor.steps.tracing import Mode
from loadmaster.executor.steps.unchanged import unchanged
from loadmaster.executor.steps.wrappers import is_among_ranks
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.units import show_bytes, show_cost

MISSING_SHARE = 0.02  # of the budget: counted beyond what there is where a step runs out of memory; nobody knows
WARM_UP = 2  # the first step compiles, the second makes what libraries make lazily

Call = Callable[..., torch.Tensor]
Found = TypeVar("Found")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class TrialRuns:
    """Runs of a step that is fitted, with all that its trials have in common: model, batch, loss and measuring.

    Attributes:
        fragmentation_reserve_bytes: as for :func:`~loadmaster.executor.fitting.fit`; None: reserved bytes count.
        time_tolerance: share that a planned time may be off.
        mode: what the user asked for. Trials run without CUDA graphs; where these are to come, a step's time is that of
            its kernels, which a graph leaves of it.
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
    background: Background
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
            plan, self.model, self.loss, backend=options.backend, implementations=options.implementations, mode=mode
        )

    def run(self, step: AnyStep, budget_bytes: int, side: str, name: str) -> Measurement:
        """Compile a step, and measure it once nothing else runs. One that takes more than the device has ran out.
        ``side`` is whose phases this counts as, ``name`` what to call the step meanwhile."""
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
                if self.background.is_busy():
                    line.show(f"{name}: compiled, timed when planning ends", begins=True)
                    self.background.settle()
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
                timeline = self.alone(step, lambda run: record(run, self.device))
                measured = replace(measured, step_us=timeline.products_us + timeline.moves_us)
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

    def in_mode(self, step: AnyStep, budget_bytes: int) -> tuple[AnyStep, str]:
        """The step in the user's mode, or as it is where the mode does not keep the budget; and its trial in words.
        CUDA graphs are made of the winner alone: what one holds is allocated when it is recorded, and stays as long as
        its step, so that one trial's memory would count as the next one's."""
        mode = self.mode
        if mode == "default":
            return step, ""
        again: AnyStep
        if isinstance(step, KnobStep):
            again, side = KnobStep(self.model, self.loss, knob=step.knob, mode=mode), KNOB
        else:
            again, side = self.planned(step.plans, mode), PLANS
        try:
            measured = self.run(again, budget_bytes, side, f"mode {mode}")
        except Exception as error:  # noqa: BLE001 - of a driver, or of what was recorded
            logger.warning("mode %s is left: %s: %s", mode, type(error).__name__, error)
            return step, f"In mode {mode} it could not be run, and runs without."
        used_bytes = self.used_bytes(measured)
        if used_bytes > budget_bytes:
            return step, f"In mode {mode} it took {show_bytes(used_bytes)}, and runs without."
        if (differs := self.compared(again).differs) is not None:
            return step, f"In mode {mode} {differs}, and it runs without."
        of = "These times are of kernels alone. " if self.counts_kernels else ""
        at = f"{show_bytes(used_bytes)}, {show_bytes(measured.reserved_bytes)} reserved"
        return again, f"{of}In mode {mode} it measured {show_cost(measured.step_us, 'us')} at {at}."


def runner(call: Call, step: Step, batch: AnyBatch, *, gradients_held: bool) -> Callable[[], None]:
    """Make a call of one forward and backward pass; gradients stay and are added to, or are dropped at its end."""
    given = batch_of(batch)
    leaves = [t for t in (*step.parameters(), *tensors(batch)) if t.is_leaf and t.requires_grad]

    @torch.enable_grad()
    def run() -> None:
        loss = call(*given.args, **given.kwargs)
        # In training autocast ends here, and with it go its copies of the weights; around a trial it goes on.
        torch.clear_autocast_cache()
        loss.backward()  # type: ignore[no-untyped-call]
        if not gradients_held:
            for tensor in leaves:
                tensor.grad = None

    return run


def run_trial(
    call: Call,
    step: Step,
    batch: AnyBatch,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    gradients_held: bool = False,
    repeats: int = 5,
    warm_up: int = WARM_UP,
    warmed_up: Callable[[], None] = lambda: None,
) -> Measurement:
    """Measure a step, model and loss, inside :func:`unchanged`; ``call`` takes the batch and returns the loss.

    Peaks count what training will hold: gradients set aside are left out, and optimizer state that the first step of
    the optimizer makes is added. On CUDA the allocator gives back what warming up has left in its cache, so that the
    reserved bytes are those of the steps themselves. ``warmed_up`` is called after ``warm_up`` steps, before anything
    is measured.
    """
    device = device_of(step, batch)
    state = [] if optimizer is None else [t for s in optimizer.state.values() for t in tensors(list(s.values()))]
    coming_bytes = 0 if optimizer is None or state else optimizer_state_bytes(optimizer)
    with unchanged(step, batch) as set_aside:
        run = runner(call, step, batch, gradients_held=gradients_held)
        for _ in range(warm_up):
            run()
        warmed_up()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        gradients = [p.grad for p in step.parameters() if p.grad is not None]
        resident = (*step.parameters(), *step.buffers(), *tensors(batch), *state, *gradients)
        found = measure(run, resident=resident, device=device, warmup=0, repeats=repeats)
    # What is resident on the CPU was listed; CUDA's allocator counts everything there is.
    counted = one_of_each_storage(t for t in set_aside if t.is_cuda)
    difference = coming_bytes - allocated_bytes(counted)
    return Measurement(
        found.peak_bytes + difference,
        found.resident_bytes + difference,
        found.step_us,
        found.requested_bytes + coming_bytes - sum(t.untyped_storage().nbytes() for t in counted),
        found.reserved_bytes + difference,
    )


def ran_out(device: torch.device, budget_bytes: int) -> Measurement:
    """Stand-in for the measurement of a step that needs more than the budget and than this process can have. Call it
    when the exception is gone: its frames hold what the step had."""
    gc.collect()
    present_bytes = available_bytes = 0
    if device.type == "cuda":
        torch.cuda.empty_cache()
        present_bytes = torch.cuda.memory_allocated(device)
        available_bytes = torch.cuda.memory_reserved(device) + torch.cuda.mem_get_info(device)[0]
    needed_bytes = max(budget_bytes, available_bytes) + int(MISSING_SHARE * budget_bytes)
    return Measurement(needed_bytes, present_bytes, 0.0, needed_bytes, needed_bytes, ran_out=True)
