"""One call: a training step that keeps a byte budget, planned or torch.compile's own, whichever measures faster."""

from __future__ import annotations

import torch
from torch import nn

from loadmaster.executor.costs import CostModel
from loadmaster.executor.memory.capture import CaptureOptions
from loadmaster.executor.memory.fit.fitted import Fitted
from loadmaster.executor.memory.fit.fitter import KNOB_TRIES, Fitter
from loadmaster.executor.memory.fit.planned import Planner
from loadmaster.executor.memory.implementations.registry import EVERYTHING, ImplementationFilter
from loadmaster.executor.memory.run.backends import Backend
from loadmaster.executor.renamed import renamed_keywords
from loadmaster.executor.steps.batch import AnyBatch
from loadmaster.executor.steps.step import Loss
from loadmaster.executor.steps.tracing import Mode
from loadmaster.models.hardware import HostLink
from loadmaster.models.kinds import limit_of


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
    knob_tries: int = KNOB_TRIES,
    repeats: int = 5,
    mode: Mode = "default",
    tune_while_training: bool = True,
    verify: bool = True,
    progress: bool | None = None,
) -> Fitted:
    """A training step that keeps a byte budget: measured, not only planned, and no slower than torch.compile's own.

    The promise is the peak of forward and backward pass, everything resident included; an optimizer's own temporaries
    come after it. Trial steps leave parameters, buffers, gradients and random state as they were. Hooks on parameters
    do not run in them; forward hooks do, as part of the model.

    Args:
        model, batch, loss, optimizer, name, costs, gradients_held, host_link, implementations: as for
            :func:`~loadmaster.executor.memory.capture.capture`. Give the largest batch: smaller ones run under its
            plan, larger ones without any, with a warning.
        budget_bytes: what the measured peak must not exceed: bytes, a size (``"6GiB"``), or a share (``"50%"``) of the
            peak that the captured step has with nothing planned.
        planner: plans a problem under the budget it comes with, for example ``loadmaster.plan``. It is called in a
            thread of its own while torch.compile's own partition is compiled, where there are cores to spare. A plan
            that training waits for is made within 20 s, if the planner takes ``time_limit_s``; where more time may
            gain, it is asked again while the step trains.
        backend: ``inductor`` compiles steps; with eight cores or more, part of them ahead in processes of their own.
        fragmentation_reserve_bytes: part of the budget that the step must leave free, for what CUDA's allocator
            reserves beyond what it hands out. None: count the reserved bytes themselves, as measured in the trial.
        time_tolerance: plan again when the measured step time is off by more than this share, where that may gain.
        tries: plans that are run at most.
        knob_tries: values of torch.compile's own knob, ``activation_memory_budget``, that are run at most; each is a
            compilation. 0: plans alone. With ``backend="eager"`` there are plans alone.
        repeats: timed steps of each.
        mode: as for :func:`~loadmaster.executor.memory.run.apply.apply`. Plans and knobs are tried without CUDA graphs,
            and a step's time is that of its kernels; graphs of the fastest are made and measured at the end, and taken
            where they keep the budget, too.
        tune_while_training: return as soon as a step keeps the budget, and try the others while it trains: with eight
            cores or more, helpers compile them ahead, and ``fitted.step`` becomes the faster one between two of its
            calls. Each try holds up one call for seconds, and its trial steps may take more than the budget, as all do.
            :meth:`~loadmaster.executor.memory.fit.fitted.Fitted.finish` tries what is left at once. False: all tries
            are over when this returns; so it is with a mode, among ranks, and on fewer cores.
        verify: hold the step that is handed out against one step of plain PyTorch: loss, every gradient, every buffer.
            One that differs by more than its precision explains is not handed out: another one that keeps the budget
            is, or plain PyTorch's own, whatever it takes. ``report`` names the value and the time of the comparison.
            While it lasts, the device may hold more than the budget.
        progress: whether to say what goes on, in a line on standard error. None: in a terminal or a notebook.

    Returns:
        The fastest step that kept the budget, with the record of all tries: under a plan, or torch.compile's own
            partition under its knob, which ``report`` says. A step time that is still off after the last try is no
            error: the record shows it.

    Raises:
        BudgetError: nothing was found that keeps the budget; names the bytes measured and what to ask for.
        InputError: an argument is wrong; or the model cannot be captured, and torch.compile's own partition does not
            keep the budget.
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
    limit_of("memory").read(budget_bytes, "budget_bytes")  # before minutes of capturing
    fitter = Fitter(
        model,
        batch,
        loss,
        options,
        fragmentation_reserve_bytes=fragmentation_reserve_bytes,
        time_tolerance=time_tolerance,
        repeats=repeats,
        mode=mode,
        verify=verify,
    )
    return fitter.fit(planner, budget_bytes, tries, knob_tries, tune_while_training=tune_while_training)
