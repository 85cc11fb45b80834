"""Weights of a group: the master weights that the optimizer updates, and what the model's layers read.

The model's parameters stay the same objects. What changes is the memory that they show (``.data``): the master weights,
a copy that stays on the device, or a copy that is there for a while. Where none is there, they show NaN, one element
spread over their shape, so that whoever reads them then sees it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from loadmaster.errors import InputError, LoadmasterError
from loadmaster.executor.training.copies import Move, Mover, Packing
from loadmaster.executor.training.hidden import nothing_like
from loadmaster.executor.training.layers import ModelGroup

AFTER_INTERRUPTION = "Load the last checkpoint into model and optimizer, and make the step again."


class InterruptedStepError(LoadmasterError, RuntimeError):
    """Error for a step that ended amid its updates: some weights are of the step before, others of the step."""


class DeviceWeights:
    """Master weights that stay on the device, where layers read them."""

    is_shown = True

    def __init__(self, of: ModelGroup, device: torch.device) -> None:
        self.masters = of.parameters
        self.failure = None
        for p in of.parameters:
            p.data = p.data.to(device)

    def load(self) -> None:
        """Do nothing: they are there."""

    need = drop = load

    @property
    def master_values(self) -> Sequence[Tensor]:
        """The master weights, wherever they are."""
        return [p.detach() for p in self.masters]


class _Loading:
    """Load that is queued once the host's update is over; neither ``move`` nor ``error`` then: the update failed."""

    def __init__(self, mover: Mover, target: Tensor, source: Tensor, after: Sequence[Move]) -> None:
        self._mover, self._to_queue = mover, [((target, source), after)]
        self.queued = threading.Event()
        self.move: Move | None = None
        self.error: BaseException | None = None

    def queue(self, update: Future[None] | None) -> None:
        """Queue it, unless the update failed. It holds no memory from then on: a future keeps its callbacks."""
        pair, after = self._to_queue.pop()
        try:
            if update is None or update.exception() is None:
                self.move = self._mover.load([pair], after)
        except BaseException as error:  # noqa: BLE001 (handed to the thread that needs the weights)
            self.error = error
        finally:
            del pair  # before another thread goes on, which may drop the memory
            self.queued.set()


class HostWeights:
    """Master weights on the host, and a copy for layers to read.

    Attributes:
        host, host_copy: host memory of both; ``views`` of them, one for each parameter.
        updated: the host's latest update, which a load waits for.
        stored: the way to the host of a copy that the device made, which a load waits for.
        is_current: whether the copy on the device is that of the latest weights, or will be once it has arrived.

    Args:
        places: where the copy notes its address while it is on the device.
    """

    def __init__(self, of: ModelGroup, mover: Mover, copy_dtype: torch.dtype | None, places: Places) -> None:
        self._of, self._mover, self._places = of, mover, places
        self.packing = Packing(of.parameters, [p.dtype for p in of.parameters])
        self.copy_packing = Packing(of.parameters, of.copy_dtypes(copy_dtype))
        self.host, self.host_copy = (mover.host_buffer(p.size_bytes) for p in (self.packing, self.copy_packing))
        self.views, self.copy_views = self.packing.views(self.host), self.copy_packing.views(self.host_copy)
        self.updated: Future[None] | None = None
        self.stored: Move | None = None
        self._memory: Tensor | None = None
        self._loading: _Loading | None = None
        self.is_current = self._is_shown = False
        # Made once: it waits for the device.
        each = zip(of.parameters, self.copy_packing.dtypes, strict=True)
        self._nothing = [nothing_like(p.shape, dtype, mover.device) for p, dtype in each]
        for view, copied, p in zip(self.views, self.copy_views, of.parameters, strict=True):
            view.copy_(p.detach())
            copied.copy_(view)
        self.masters = tuple(
            nn.Parameter(v, requires_grad=p.requires_grad) for v, p in zip(self.views, of.parameters, strict=True)
        )
        self._show(None)

    def load(self) -> None:
        """Queue the copy's way to the device, unless it is there. Whatever interrupts it, it can be called again."""
        if self.is_current:
            return
        if self._memory is None:
            size_bytes = self.copy_packing.size_bytes
            self._memory = torch.empty(size_bytes, dtype=torch.uint8, device=self._mover.device)
            self._places[self._memory.data_ptr()] = self
        after = [self._mover.mark(), *([] if self.stored is None else [self.stored])]
        loading = self._loading = _Loading(self._mover, self._memory, self.host_copy, after)
        if self.updated is None:
            loading.queue(None)
        else:
            self.updated.add_done_callback(loading.queue)
        self.is_current = True

    def need(self) -> None:
        """Let the compute stream wait for the copy, and show it to the model."""
        self.load()
        if self._loading is not None:
            self._loading.queued.wait()
            if self._loading.error is not None:
                error, self._loading, self.is_current = self._loading.error, None, False
                raise error
            if self._loading.move is None:
                self.finish_update()
            else:
                self._loading.move.wait()
        if not self._is_shown:
            self._show(self._memory)
        self._loading = None

    def drop(self) -> None:
        """Free the copy's memory on the device."""
        if self._loading is not None:
            self.need()
        self.is_current = False
        self._show(None)
        if self._memory is not None:
            del self._places[self._memory.data_ptr()]
        self._memory = None

    def overwrite(self, memory: Tensor | None) -> None:
        """Make the copy of updated master weights on the device, in this memory; None: where layers read it."""
        memory = self._memory if memory is None else memory
        assert memory is not None, "the copy stays on the device"
        for view, master in zip(self.copy_packing.views(memory), self.masters, strict=True):
            view.copy_(master)

    @property
    def master_values(self) -> Sequence[Tensor]:
        """The master weights as the latest update that is over left them."""
        return self.views

    def finish_update(self) -> None:
        """Wait for the host's latest update; raise InterruptedStepError if it failed."""
        error = None if self.updated is None else self.updated.exception()
        if error is not None:
            raise InterruptedStepError(
                f"the update of {self._of.name} on the host failed ({type(error).__name__}: {error}), and other groups "
                f"of parameters may have been updated. {AFTER_INTERRUPTION}"
            ) from error

    @property
    def failure(self) -> BaseException | None:
        """Error of the host's latest update, as far as is known without waiting for it."""
        return self.updated.exception() if self.updated is not None and self.updated.done() else None

    @property
    def cast_to(self) -> dict[nn.Parameter, torch.dtype]:
        """Parameters whose copy has another format than their master weights, and which."""
        each = zip(self._of.parameters, self.copy_packing.dtypes, self.packing.dtypes, strict=True)
        return {p: copied for p, copied, own in each if copied != own}

    @property
    def is_shown(self) -> bool:
        """True where the model's parameters show the copy."""
        return self._is_shown

    @property
    def is_present(self) -> bool:
        """True where the copy has memory on the device."""
        return self._memory is not None

    @property
    def present_bytes(self) -> int:
        """Bytes of the copy on the device."""
        return 0 if self._memory is None else self._memory.numel()

    def saved(self, dtype: torch.dtype, offset: int, size: torch.Size, stride: tuple[int, ...]) -> Tensor:
        """The tensor at a place in the copy's memory, as it is on the device now."""
        self.need()
        assert self._memory is not None
        return self._memory.view(dtype).as_strided(size, stride, offset)

    def _show(self, memory: Tensor | None) -> None:
        self._is_shown = False
        views = self._nothing if memory is None else self.copy_packing.views(memory)
        for p, view in zip(self._of.parameters, views, strict=True):
            p.data = view
        self._is_shown = memory is not None


AnyWeights = Sequence[DeviceWeights | HostWeights]
# Addresses of copies that are on the device now.
Places = dict[int, HostWeights]


def expect_casts(model: nn.Module, of_groups: AnyWeights) -> list[Any]:
    """Have modules whose weights are copied in autocast's format refuse, by an InputError, to run where autocast does
    not cast to it: plain PyTorch would read the master weights there. Returns the handles of their hooks."""
    away = [weights for weights in of_groups if isinstance(weights, HostWeights)]
    cast_to = {p: dtype for weights in away for p, dtype in weights.cast_to.items()}
    handles = []
    for module in model.modules():
        for p in module.parameters(recurse=False):
            if p in cast_to:
                # Nothing in the hook is of this module: torch.compile would compile each block by itself.
                handles.append(module.register_forward_pre_hook(partial(_expect_cast, p.device.type, cast_to[p])))
                break
    return handles


def _expect_cast(device: str, dtype: torch.dtype, module: nn.Module, _: Any) -> None:
    if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == dtype:
        return
    problem = f"runs outside of torch.autocast to {dtype}, in which its weights are on the device"
    remedy = (
        "Make steps and evaluations under the autocast that fit was called under, or call fit outside of it, "
        "where the model itself turns it off."
    )
    raise InputError("model", str(module), problem, remedy)


def saved_by_place(streamed: Places) -> torch.autograd.graph.saved_tensors_hooks:
    """Make a context in which streamed weights that are saved for the backward pass are kept by their place alone: they
    come again for that."""

    def pack(saved: Tensor) -> Any:
        weights = streamed.get(saved.untyped_storage().data_ptr())
        if weights is None:
            return saved
        return weights, saved.dtype, saved.storage_offset(), saved.size(), saved.stride()

    def unpack(packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        weights, dtype, offset, size, stride = packed
        return cast(Tensor, weights.saved(dtype, offset, size, stride))

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
