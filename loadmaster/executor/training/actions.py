"""Actions of a step on its groups of parameters: moves and updates, each once, and what became of them.

An update that has begun cannot be taken back. So a step that broke amid its updates is told to whoever uses the model
next, and its updates that wait for what will not come fail.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from loadmaster.errors import InputError
from loadmaster.executor.training.clipping import Clipping
from loadmaster.executor.training.copies import Mover
from loadmaster.executor.training.device_update import DeviceUpdate
from loadmaster.executor.training.evaluation import as_in_training
from loadmaster.executor.training.filed_state import FiledState, StateLayout
from loadmaster.executor.training.hidden import HiddenWeights
from loadmaster.executor.training.layers import ModelLayers
from loadmaster.executor.training.state_files import StateFiles, expect_folder
from loadmaster.executor.training.timetable import OF_UPDATE, Action, Do
from loadmaster.executor.training.updates import GroupOptimizer, HostThread, HostUpdate
from loadmaster.executor.training.weights import (
    AFTER_INTERRUPTION,
    DeviceWeights,
    HostWeights,
    InterruptedStepError,
    Places,
)
from loadmaster.models.training.plan import GroupPlan, Schedule

# Actions with which the update of a group begins.
_BEGINS = (Do.UPDATE, Do.SEND_GRADIENTS)


class Actions:
    """Groups of parameters of a model under a schedule, and what is done with them.

    Attributes:
        step: number of the step that runs.
        weights, streamed: of all groups, and those that are on the device for a while.
        trained: parameters that updates change.
        is_between: whether no step runs, and parameters show master weights or NaN.

    Args:
        in_files: groups whose optimizer state is in files, in the order of their updates.
        disk: folder for these files.
    """

    def __init__(
        self,
        layers: ModelLayers,
        schedule: Schedule,
        mover: Mover,
        clipping: Clipping,
        threads: int,
        in_files: Sequence[int] = (),
        disk: str | PathLike[str] | None = None,
    ) -> None:
        self.step = 0
        self._in_files, self._disk_buffers, self._disk = in_files, schedule.disk_buffers, disk
        self._files: StateFiles | None = None
        self._layouts: dict[int, StateLayout] = {}
        self._layers, self._plans, self._mover, self._clipping = layers, schedule.groups, mover, clipping
        self._host = HostThread(threads)
        self._begun = 0
        self._broken: tuple[int, BaseException] | None = None
        self._done: dict[tuple[Do, int], int] = {}
        self._spent: list[nn.Parameter] = []
        self.weights: list[DeviceWeights | HostWeights] = []
        self._updates: list[DeviceUpdate | HostUpdate | None] = []
        self.streamed: list[HostWeights] = []
        self.places: Places = {}
        self.trained: list[nn.Parameter] = []
        self._hidden, self.is_between = HiddenWeights(), False

    def take_over(self, optimizer: torch.optim.Optimizer, device: torch.device, copy_dtype: torch.dtype | None) -> None:
        """Move weights and state to where the schedule has them."""
        for of, plan in zip(self._layers.groups, self._plans, strict=True):
            on_device = plan.weights == "device"
            places: Places = self.places if plan.weights == "streamed" else {}
            self.weights.append(
                DeviceWeights(of, device) if on_device else HostWeights(of, self._mover, copy_dtype, places)
            )
        if self._in_files:
            self._layouts = {g: StateLayout(optimizer, self._layers.groups[g]) for g in self._in_files}
            sizes = {g: layout.size_bytes for g, layout in self._layouts.items()}
            self._files = StateFiles(expect_folder(self._disk), sizes, self._disk_buffers)
        for g, (weights, plan) in enumerate(zip(self.weights, self._plans, strict=True)):
            self._updates.append(self._update_of(g, plan, weights, optimizer))
            if plan.update != "none":
                self.trained += self._layers.groups[g].parameters
            if plan.weights == "copy":
                weights.need()
            elif isinstance(weights, HostWeights):
                self.streamed.append(weights)
        self.hide()

    def _update_of(
        self, g: int, plan: GroupPlan, weights: DeviceWeights | HostWeights, optimizer: torch.optim.Optimizer
    ) -> DeviceUpdate | HostUpdate | None:
        of = self._layers.groups[g]
        if plan.update == "none":
            return None
        if plan.update == "host":
            assert isinstance(weights, HostWeights)
            filed = None if self._files is None or plan.state != "disk" else partial(self._filed, self._files, g)
            return HostUpdate(weights, of, optimizer, self._mover, self._host, filed)
        on_host, streamed = plan.state == "host", plan.weights == "streamed"
        return DeviceUpdate(weights, of, optimizer, self._mover, is_state_on_host=on_host, is_streamed=streamed)

    def _filed(self, files: StateFiles, g: int, optimizer: GroupOptimizer) -> FiledState:
        return FiledState(files, g, self._layouts[g], optimizer)

    def shut_down(self) -> None:
        """End the host's thread, and that of files, after what they have to do."""
        self._host.shut_down()
        if self._files is not None:
            self._files.close()

    # --- what parameters show

    def hide(self) -> None:
        """Let parameters show NaN, but for those that show master weights which no update is still to change."""
        self.is_between = True
        with as_in_training():
            for of, weights, update in zip(self._layers.groups, self.weights, self._updates, strict=True):
                if isinstance(weights, HostWeights) or (isinstance(update, DeviceUpdate) and update.is_taken):
                    self._hidden.hide(of.name, of.parameters)

    def show(self) -> None:
        """Let parameters show what layers read. InputError: one that showed NaN was written."""
        self.is_between = False
        with as_in_training():
            self._hidden.show()

    # --- one after the other

    def run(self, action: Action, of_step: int) -> None:
        """Launch an action, or do nothing where it belongs to an update that has done it."""
        do, g = action.do, action.group
        if do is Do.LOAD_WEIGHTS:
            self.weights[g].load()
        elif do is Do.NEED_WEIGHTS:
            self.weights[g].need()
        elif do is Do.DROP_WEIGHTS:
            self.weights[g].drop()
        elif of_step > self._done.get((do, g), -1):
            try:
                self._done[do, g] = of_step
                self._update(do, g, of_step)
            except BaseException as error:
                if do in _BEGINS:
                    self.break_off(error, of_step)
                else:
                    del self._done[do, g]  # no value has changed: it can be done again
                raise

    def _update(self, do: Do, g: int, of_step: int) -> None:
        assert do in OF_UPDATE
        update = self._updates[g]
        if do in _BEGINS and of_step == self.step:
            self._begun += 1
            self._spend(g)
        if isinstance(update, HostUpdate):
            if do is Do.SEND_GRADIENTS:
                self._clipping.note(self._gradients(g))
                update.send(self._clipping.on_host)
            else:
                update.free()
        elif isinstance(update, DeviceUpdate):
            if do is Do.UPDATE:
                update.run(self._clipping.on_device)
            elif do is Do.LOAD_STATE:
                update.load()
            else:
                update.free()

    def _spend(self, g: int) -> None:
        self._spent += [p for p in self._layers.groups[g].parameters if p.grad is not None]

    def know_norm(self) -> None:
        """Complete the norm of all gradients."""
        gradients = [each for g in range(len(self.weights)) for each in self._gradients(g)]
        self._clipping.end_step(gradients, self._mover)

    def _gradients(self, g: int) -> list[tuple[Tensor, torch.dtype]]:
        """List a group's gradients, each with the format of its master weights."""
        each = zip(self._layers.groups[g].parameters, self.weights[g].masters, strict=True)
        return [(p.grad, master.dtype) for p, master in each if p.grad is not None]

    def end_step(self) -> list[nn.Parameter]:
        """Keep the gradients of updates that run in the next step, and count the step. Returns the parameters that had
        a gradient. Raises InputError for a gradient that came after its update."""
        for g, update in enumerate(self._updates):
            if isinstance(update, DeviceUpdate) and self._done.get((Do.UPDATE, g), -1) < self.step:
                self._spend(g)
                update.take()
        late = [p for p in self.trained if p.grad is not None]
        if late:
            problem = "get gradients after their update: they are used outside their block, or it runs again later"
            remedy = "Name other blocks, so that each use is within one: fit(..., blocks=[...])."
            named = next(of.name for of in self._layers.groups if any(p is late[0] for p in of.parameters))
            raise InputError("blocks", named, problem, remedy)
        spent, self._spent, self._begun, self.step = self._spent, [], 0, self.step + 1
        self.hide()
        return spent

    def flush(self) -> None:
        """Run updates that would run in the next step, and let parameters show what layers read. Raises
        InterruptedStepError if a step broke amid its updates."""
        self.show()
        self.expect_unbroken()
        with as_in_training():
            for g, update in enumerate(self._updates):
                if isinstance(update, DeviceUpdate) and self._done.get((Do.UPDATE, g), -1) < self.step - 1:
                    for do in (Do.LOAD_STATE, Do.UPDATE):
                        self.run(Action(do, 0, g, 0), self.step - 1)

    # --- what became of them

    def break_off(self, error: BaseException, of_step: int | None = None) -> None:
        """Note that a step (None: the one that runs) broke amid its updates."""
        self._broken = self._broken or (self.step if of_step is None else of_step, error)

    def expect_whole(self) -> None:
        """Raise InterruptedStepError if a step broke amid its updates, or files have failed after them."""
        self.expect_unbroken()
        if self._files is not None and self._files.failure is not None:
            self.finish()  # updates may still be under way, and fail for want of their state
            self.expect_unbroken()
            raise InterruptedStepError(
                f"files for optimizer states have failed ({self._files.failure}). The last step is whole: "
                "step.release() gives model and optimizer back as it left them, as far as files can be read. Then call "
                "fit again, with another folder (disk=...)."
            ) from self._files.failure

    def expect_unbroken(self) -> None:
        """Raise InterruptedStepError if a step broke amid its updates."""
        for weights in self.weights:
            if weights.failure is not None:
                self.break_off(weights.failure)
        if self._broken is None and not self._begun:
            return
        of_step, cause = self._broken or (self.step, None)
        begun = sum(
            max(self._done.get((do, g), -1) for do in _BEGINS) >= of_step for g in range(len(self._layers.groups))
        )
        trained = sum(update is not None for update in self._updates)
        said = "" if cause is None else f" ({type(cause).__name__}: {cause})"
        error = InterruptedStepError(
            f"step {of_step + 1} of this plan did not come to its end{said}: {begun} of {trained} groups of parameters "
            f"have begun their update, the others are those of the step before. {AFTER_INTERRUPTION}"
        )
        self._clipping.abandon(error)
        raise error from cause

    def finish(self) -> None:
        """Wait until all updates are over and all values where they belong, however that ended."""
        for update in self._updates:
            if update is not None:
                update.finish()
        if self._files is not None:
            self._files.finish()

    def settle(self) -> None:
        """Run all updates, and wait until all values are where they belong. Raises InterruptedStepError as flush."""
        is_between = self.is_between
        self.flush()
        self.finish()
        self.expect_whole()
        if is_between:
            self.hide()

    def master_values(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Every parameter with its master weights, wherever they are."""
        return [
            (p, value)
            for of, weights in zip(self._layers.groups, self.weights, strict=False)  # fewer while they are taken over
            for p, value in zip(of.parameters, weights.master_values, strict=True)
        ]

    def state_values(self) -> list[tuple[nn.Parameter, dict[str, Any]]]:
        """Every trained parameter with its optimizer state, wherever it is."""
        return [
            (p, state)
            for of, update in zip(self._layers.groups, self._updates, strict=True)
            if update is not None
            for p, state in zip(of.parameters, update.state_values, strict=True)
        ]

    def readable_states(self) -> list[tuple[nn.Parameter, dict[str, Any]]]:
        """Every trained parameter with its state; none, with a warning, where files cannot be read any more."""
        try:
            return self.state_values()
        except InputError as error:
            said = f"the optimizer is released without its state, which cannot be read back: {error}"
            warnings.warn(said, RuntimeWarning, stacklevel=3)
            return [(p, {}) for p in self.trained]

    def first_states(self) -> list[tuple[nn.Parameter, dict[str, Any]]]:
        """Every trained parameter with the state that a first step without gradients makes, on the host."""
        return [
            (p, state)
            for of, update in zip(self._layers.groups, self._updates, strict=True)
            if update is not None
            for p, state in zip(of.parameters, update.optimizer.first_states(), strict=True)
        ]
