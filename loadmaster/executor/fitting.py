"""One call: a training step that keeps a byte budget.

It plans activations alone, or the whole step with parameters, gradients, optimizer state and updates. Either way the
loop is that of plain PyTorch, and means the same.
"""

from __future__ import annotations

import gc
import inspect
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
from torch import nn

from loadmaster.errors import BudgetError, InputError, LimitReachedError
from loadmaster.executor.costs import CostModel
from loadmaster.executor.memory.capture import CaptureOptions
from loadmaster.executor.memory.fit.fitted import Fitted
from loadmaster.executor.memory.fit.fitter import KNOB_TRIES, NO_PLAN, Fitter
from loadmaster.executor.memory.implementations.registry import EVERYTHING, ImplementationFilter
from loadmaster.executor.memory.run.backends import Backend, expect_backend
from loadmaster.executor.renamed import renamed_keywords
from loadmaster.executor.steps.batch import AnyBatch, batch_of
from loadmaster.executor.steps.optimizers import clip_at_step, own_optimizer
from loadmaster.executor.steps.resident import device_of, gradient_bytes, optimizer_state_bytes, own_bytes
from loadmaster.executor.steps.step import Loss
from loadmaster.executor.steps.tracing import Mode
from loadmaster.executor.training.capture import can_measure, expect_host, expect_layers, expect_recipe
from loadmaster.executor.training.step import expect_unplanned
from loadmaster.executor.training.train import PlannedTraining, fit_training
from loadmaster.models.hardware import HostLink
from loadmaster.models.kinds import limit_of
from loadmaster.models.units import bytes_of, show_bytes

logger = logging.getLogger(__name__)

# Of the budget. Where parameters, gradients and optimizer state are the larger part, moving them makes more room than
# activations could, and a link moves them while layers run.
STATE_SHARE = 0.5
_OF_ACTIVATIONS = (
    *("costs", "gradients_held", "host_link", "implementations", "time_tolerance"),
    *("knob_tries", "repeats", "mode", "tune_while_training", "verify"),
)


@renamed_keywords(offer="implementations", inputs="batch")
def fit(
    model: nn.Module,
    batch: AnyBatch,
    loss: Loss | None = None,
    *,
    budget_bytes: int | str,
    planner: Callable[..., Any],
    optimizer: torch.optim.Optimizer | None = None,
    device: torch.device | str | None = None,
    clip_grad_norm: float | None = None,
    clip_grad_value: float | None = None,
    accumulate: int = 1,
    blocks: Sequence[nn.Module] | None = None,
    backend: Backend = "inductor",
    host_memory_bytes: int | str | None = None,
    disk: str | PathLike[str] | None = None,
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
) -> Fitted | PlannedTraining:
    """A training step that keeps a byte budget: measured, not only planned.

    Activations alone are planned, unless there is an ``optimizer`` and a CUDA device, and parameters, gradients and
    optimizer state take more than half of the budget, or no plan of activations alone keeps it, or ``blocks`` are
    named, or the model is not on the ``device``: then the whole step is planned. (Half of the budget does not count for
    a model without a list of blocks, for losses scaled for float16, and with ``gradients_held``.)

    Train with either as with plain PyTorch: ``accumulate`` backward passes, ``optimizer.step()``,
    ``optimizer.zero_grad()``. ``clip_grad_norm``, ``clip_grad_value`` and ``accumulate`` say what the loop does, for a
    whole step updates in its last backward pass. A loop that does not call ``optimizer.step()`` after as many passes is
    refused there, and so is one that clips by itself.

    Of activations alone, the promise is the peak of forward and backward pass, everything resident included; an
    optimizer's own temporaries come after it. The step is no slower than torch.compile's own. Trial steps leave
    parameters, buffers, gradients and random state as they were. Hooks on parameters do not run in them; forward hooks
    do, as part of the model.

    A whole step is measured block by block, and then planned. The promise is its peak, updates included: the first
    steps of the training are held against it, and where one takes more, the step is planned again before the next one.

    Args:
        model, batch, loss, optimizer, name, costs, gradients_held, host_link, implementations: as for
            :func:`~loadmaster.executor.memory.capture.capture`. Give the largest batch: smaller ones run under its
            plan, larger ones without any, with a warning.
        device: to train on; None: where the model is. A model that the device has no room for may be on the CPU.
        clip_grad_norm: clip gradients to this global norm before the updates, and leave it out of the loop:
            ``optimizer.step()`` does it where activations alone are planned, else the step itself.
        clip_grad_value: clip each value of the gradients to at most this, either way, in the same places.
        accumulate: backward passes before each ``optimizer.step()``; divide each loss by it yourself.
        blocks: modules that run one after the other, for a plan of the whole step; None: the model's largest list of
            modules.
        budget_bytes: what the measured peak must not exceed: bytes, a size (``"6GiB"``), or a share (``"50%"``) of the
            peak that the captured step has with nothing planned.
        planner: plans a problem under the budget it comes with, for example ``loadmaster.plan``. It is called in a
            thread of its own while torch.compile's own partition is compiled, where there are cores to spare. A plan
            that training waits for is made within 20 s, if the planner takes ``time_limit_s``; where more time may
            gain, it is asked again while the step trains.
        backend: ``inductor`` compiles steps; with eight cores or more, part of them ahead in processes of their own.
        fragmentation_reserve_bytes: part of the budget that the step must leave free, for what CUDA's allocator
            reserves beyond what it hands out. None: count the reserved bytes themselves, as measured in the trial.
        host_memory_bytes: of the host, which a plan of the whole step may take; None: half of all that it has.
        disk: folder on a local disk, for a plan of the whole step: where host memory lacks, files there hold optimizer
            state of what the host updates. None: host memory is all that there is beside the device.
        time_tolerance: plan again when the measured step time is off by more than this share, where that may gain.
        tries: plans that are run at most, of either sort.
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

    Arguments of activations alone (``costs``, ``gradients_held``, ``host_link``, ``implementations``,
    ``time_tolerance``, ``knob_tries``, ``repeats``, ``mode``, ``tune_while_training``, ``verify``) are not used for a
    whole step. A warning names those that were given.

    Returns:
        Of activations alone, the fastest step that kept the budget, with the record of all tries: under a plan, or
            torch.compile's own partition under its knob. A step time that is still off after the last try is no error:
            the record shows it. Of a whole step, the step under its plan. ``report`` says which one it is, and why.

    Raises:
        BudgetError: nothing was found that keeps the budget; names the bytes measured and what to ask for.
        InputError: an argument is wrong; or the model cannot be captured, torch.compile's own partition does not keep
            the budget, and there is no plan of the whole step.
    """
    given = {name: value for name, value in locals().items() if name in _OF_ACTIVATIONS}
    expect_backend(backend)
    fitting = Fitting(
        *(model, batch, loss),
        budget_bytes=budget_bytes,
        planner=planner,
        optimizer=optimizer,
        device=device,
        clip_grad_norm=clip_grad_norm,
        clip_grad_value=clip_grad_value,
        accumulate=accumulate,
        blocks=blocks,
        backend=backend,
        host_memory_bytes=host_memory_bytes,
        disk=disk,
        fragmentation_reserve_bytes=fragmentation_reserve_bytes,
        tries=tries,
        name=name,
        progress=progress,
        unused=_not_the_default(given),
    )

    def fitter() -> Fitter:
        options = CaptureOptions(
            optimizer=optimizer,
            costs=costs,
            backend=backend,
            gradients_held=gradients_held or accumulate > 1,
            host_link=host_link,
            implementations=implementations,
            name=name,
            progress=progress,
        )
        return Fitter(
            *(model, batch, loss, options),
            fragmentation_reserve_bytes=fragmentation_reserve_bytes,
            time_tolerance=time_tolerance,
            repeats=repeats,
            mode=mode,
            verify=verify,
        )

    return fitting.run(fitter, knob_tries, gradients_held=gradients_held, tune_while_training=tune_while_training)[0]


@dataclass(frozen=True, eq=False)
class Fitting:
    """One call of :func:`fit`, of Python or of the command line: it plans activations alone, or the whole step. Fields
    are arguments of :func:`fit` that both ways have; ``unused``: names of those given that a whole step does not use.

    Raises:
        InputError: an argument is wrong.
    """

    model: nn.Module
    batch: AnyBatch
    loss: Loss | None
    budget_bytes: int | str
    planner: Callable[..., Any]
    optimizer: torch.optim.Optimizer | None = None
    device: torch.device | str | None = None
    clip_grad_norm: float | None = None
    clip_grad_value: float | None = None
    accumulate: int = 1
    blocks: Sequence[nn.Module] | None = None
    backend: Backend = "inductor"
    host_memory_bytes: int | str | None = None
    disk: str | PathLike[str] | None = None
    fragmentation_reserve_bytes: int | str | None = 0
    tries: int = 3
    name: str | None = None
    progress: bool | None = None
    unused: Sequence[str] = ()

    def __post_init__(self) -> None:
        expect_unplanned(self.model)
        expect_recipe(self.clip_grad_norm, self.clip_grad_value, self.accumulate)
        expect_host(self.host_memory_bytes, self.disk)
        limits = ("clip_grad_norm", self.clip_grad_norm), ("clip_grad_value", self.clip_grad_value)
        for field, limit_of_gradients in limits:
            if self.optimizer is None and limit_of_gradients is not None:
                raise InputError(field, limit_of_gradients, "needs the optimizer", "Give optimizer=, which clips.")

    def run(
        self,
        make_fitter: Callable[[], Fitter],
        knob_tries: int = KNOB_TRIES,
        *,
        gradients_held: bool = False,
        tune_while_training: bool = False,
    ) -> tuple[Fitted | PlannedTraining, Fitter | None]:
        """Fit the step; returns it, and the fitter of activations alone where it plans those. ``make_fitter`` is called
        where activations alone may do; the other arguments are those of :func:`fit`. Raises as :func:`fit`."""
        limit = limit_of("memory")
        size = limit.read(self.budget_bytes, "budget_bytes")  # before minutes of capturing
        own = None if self.optimizer is None else own_optimizer(self.optimizer)
        place = _place(self.model, self.batch, own, self.device, self.blocks)
        why = place.why_whole
        # Gradients that are held, nobody knows of how many passes, are not for updates in the backward pass.
        may_be_asked = own if place.may_be_whole and not gradients_held else None
        if why is None and may_be_asked is not None and isinstance(size, int):
            why = _why_whole(self.model, self.batch, may_be_asked, place.device, size)
        if why is not None:
            assert own is not None
            return self._whole(why, own, place.device, size), None
        fitter = make_fitter()
        failed: Exception | None = None
        try:
            if may_be_asked is not None and isinstance(size, float):
                size = limit.value(self.budget_bytes, fitter.capture().plain, "budget_bytes")
                why = _why_whole(self.model, self.batch, may_be_asked, place.device, size)
            if why is None:
                fitted = fitter.fit(
                    *(self.planner, self.budget_bytes, self.tries, knob_tries),
                    tune_while_training=tune_while_training,
                )
        except (BudgetError, LimitReachedError, *NO_PLAN) as error:
            if not place.may_be_whole:
                raise
            failed = error
            keeps = "keeps the budget" if isinstance(error, BudgetError) else "is found"
            why = f"no plan of activations alone {keeps}"
        if why is None:
            if own is not None:
                clip_at_step(own, self.clip_grad_norm, self.clip_grad_value)
            for field in ("host_memory_bytes", "disk"):
                if getattr(self, field) is not None:
                    logger.warning("%s: not used, for activations alone are planned", field)
            return fitted, fitter
        assert own is not None
        del fitter
        _free(failed)
        try:
            return self._whole(why, own, place.device, size), None
        except InputError as error:
            if failed is None:
                raise
            failed.add_note(f"There is no plan of the whole step either. {error}")
            raise failed from None
        except BudgetError as error:
            raise error from failed

    def _whole(
        self, why: str, optimizer: torch.optim.Optimizer, device: torch.device, size: int | float
    ) -> PlannedTraining:
        fitted = fit_training(
            *(self.model, self.batch, self.loss),
            optimizer=optimizer,
            budget_bytes=self.budget_bytes if isinstance(size, float) else size,
            planner=self.planner,
            device=device,
            clip_grad_norm=self.clip_grad_norm,
            clip_grad_value=self.clip_grad_value,
            accumulate=self.accumulate,
            blocks=self.blocks,
            compiled=self.backend == "inductor",
            host_memory_bytes=self.host_memory_bytes,
            disk=self.disk,
            tries=self.tries,
            fragmentation_reserve_bytes=_reserve_bytes(self.fragmentation_reserve_bytes),
            name=self.name,
            progress=self.progress,
            why=f"The whole step is planned, since {why}.",
        )
        clip_at_step(optimizer, None)  # as a fit before may have said: the whole step clips
        if self.unused:
            logger.warning("%s: not used, for the whole step is planned", ", ".join(self.unused))
        return fitted


@dataclass(frozen=True)
class _Place:
    """Device to train on, whether the whole step may be planned there, and the reason why it must be."""

    device: torch.device
    may_be_whole: bool
    why_whole: str | None = None


def _place(
    model: nn.Module,
    batch: AnyBatch,
    optimizer: torch.optim.Optimizer | None,
    device: torch.device | str | None,
    blocks: Sequence[nn.Module] | None,
) -> _Place:
    here = device_of(model, batch_of(batch))
    devices = {p.device for p in model.parameters()} or {here}
    # A step that was released leaves on the host what was there.
    place = next(filter(can_measure, devices), here) if device is None else torch.device(device)
    is_here = all(place.type == one.type and place.index in (None, one.index) for one in devices)
    where = " and ".join(sorted(map(str, devices)))
    may_be_whole = optimizer is not None and can_measure(place)
    if device is not None and not may_be_whole and not is_here:
        remedy = "Move the model there, or give optimizer= and a CUDA device, for a plan of the whole step."
        raise InputError("device", str(place), f"is not where the model is, on {where}", remedy)
    if not may_be_whole and blocks is not None:
        remedy = "Give optimizer= and a CUDA device, or leave blocks out."
        raise InputError("blocks", len(blocks), "are for a plan of the whole step", remedy)
    why = "blocks are named" if blocks is not None else None if is_here else f"the model is on {where}"
    return _Place(here if is_here else place, may_be_whole, why)  # ``cuda`` is the one that the model is on


def _why_whole(
    model: nn.Module, batch: AnyBatch, optimizer: torch.optim.Optimizer, device: torch.device, budget_bytes: int
) -> str | None:
    """Reason to plan the whole step under a budget; None where activations alone may do, or the whole step may not."""
    state_bytes = own_bytes(model, batch_of(batch)) + gradient_bytes(model) + optimizer_state_bytes(optimizer)
    if state_bytes <= STATE_SHARE * budget_bytes:
        return None
    if torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) == torch.float16:
        return None  # such losses are scaled, and what updates in the backward pass needs gradients as they are
    try:
        expect_layers(model, optimizer, None)
    except InputError as error:
        logger.info("the whole step is not planned: %s", error)
        return None
    took = f"parameters, gradients and optimizer state take {show_bytes(state_bytes)}"
    return f"{took} of a budget of {show_bytes(budget_bytes)}"


def _reserve_bytes(given: int | str | None) -> int | None:
    return None if given is None else bytes_of(given, "fragmentation_reserve_bytes")


def _not_the_default(given: Mapping[str, Any]) -> list[str]:
    """List the arguments that differ from what :func:`fit` takes without them."""
    parameters = inspect.signature(fit).parameters
    return [name for name, value in given.items() if value != parameters[name].default]


def _free(failed: Exception | None) -> None:
    """Free what tries held on the device; the frames of the error that ended them hold it, too."""
    each: BaseException | None = failed
    while each is not None:
        traceback.clear_frames(each.__traceback__)
        each = each.__cause__ or each.__context__
    gc.collect()
    torch.cuda.empty_cache()
