"""The pager that users enter: one line around a training loop, and a byte limit.

    with Pager(model, optimizer, budget_bytes="6GiB", planner=loadmaster.plan) as pager:
        for batch in loader:
            optimizer.zero_grad()
            loss(model(batch)).backward()
            optimizer.step()
    print(pager.stats[-1])

Parameters, gradients, optimizer state and activations are all paged: each storage is on the device when an operator
needs it. The first step is paged by demand, and the least recently used leaves. The next ones bring what came next in
those before; then a plan of the recorded step says what moves when. Numbers are those of the same operators without a
pager. A step ends with the optimizer's. What is replayed without PyTorch's dispatcher (CUDA graphs, kernels launched
with raw addresses) cannot be paged: an address that is asked for keeps its storage on the device.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from loadmaster.errors import InputError
from loadmaster.executor.placement.operands import NUMBER_BYTES
from loadmaster.executor.placement.pager.copies import copies_of
from loadmaster.executor.placement.pager.memory import PagedMemory
from loadmaster.executor.placement.pager.mode import PagerMode
from loadmaster.executor.placement.pager.prefetch import Prefetcher
from loadmaster.executor.placement.pager.raw_access import guarded
from loadmaster.executor.placement.pager.steps import Planner, Steps, StepStats
from loadmaster.executor.placement.recorder import one_by_one
from loadmaster.executor.placement.trace import SMALL_BYTES
from loadmaster.executor.renamed import warn_renamed
from loadmaster.executor.steps.host_link import host_link as measured_link
from loadmaster.executor.steps.wrappers import ddp_of
from loadmaster.executor.torch_private.operators import without_dispatch_modes
from loadmaster.models.hardware import HostLink
from loadmaster.models.placement.plan import PlacementPlan
from loadmaster.models.placement.problem import PlacementProblem, Tier
from loadmaster.models.units import bytes_of, show_bytes

logger = logging.getLogger(__name__)


class Pager:
    """Trains a model under a limit of device memory.

    Args:
        model: on the device that it trains on.
        optimizer: None: call :meth:`end_step` after each step.
        budget_bytes: of all storages on the device together, a number or as in ``"6GiB"``.
        planner: plans a problem under the budget it comes with: ``loadmaster.plan``. None: without a plan.
        prefetch: what moves pages where no plan is followed. ``"correlation"``: what came next the last time comes
            next. None: demand alone.
        host_link: the link to host memory, where pages go, for the planner; None: it is measured.
        small_bytes: smaller storages stay on the device.
        debug: refuse access to memory that goes past PyTorch's dispatcher.
        tier: the old name of ``host_link``, whose figures it gives. Pages go to host memory whatever its name.

    Raises:
        InputError: the model is wrapped, the limit is not a size, or the way to prefetch is not known.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        budget_bytes: int | str,
        planner: Planner | None = None,
        prefetch: Literal["correlation"] | None = "correlation",
        host_link: HostLink | None = None,
        small_bytes: int = SMALL_BYTES,
        debug: bool = False,
        tier: Tier | None = None,
    ) -> None:
        if ddp_of(model) is not None:
            remedy = "Page the model that DistributedDataParallel wraps, one process to a device."
            raise InputError("model", type(model).__name__, "keeps addresses of its gradients", remedy)
        if prefetch not in (None, "correlation"):
            raise InputError("prefetch", prefetch, "is no way to prefetch", "Give 'correlation' or None.")
        if tier is not None:
            warn_renamed("Pager(tier=...)", "Pager(host_link=...)")
        self.model, self.optimizer, self.debug = model, optimizer, debug
        self.budget_bytes = bytes_of(budget_bytes, "budget_bytes")
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._memory = PagedMemory(self.budget_bytes, copies_of(self.device), small_bytes)
        prefetcher = None if prefetch is None else Prefetcher(self._memory)
        self._steps = Steps(
            model, optimizer, self.device, self._memory, planner, lambda: tier or self._host(host_link), prefetcher
        )
        self._mode = PagerMode(self.device, self._memory, self._steps)
        self._entered = contextlib.ExitStack()

    @property
    def stats(self) -> list[StepStats]:
        """Figures of every step so far."""
        return self._steps.stats

    @property
    def used_bytes(self) -> int:
        """Bytes that are on the device at present."""
        return self._memory.used_bytes

    @property
    def problem(self) -> PlacementProblem | None:
        """The recorded step as a placement problem; None before a plan is asked for."""
        return self._steps.problem

    @property
    def plan(self) -> PlacementPlan | None:
        """The latest plan; None before the first one."""
        return self._steps.plan

    @property
    def refused(self) -> str | None:
        """Reason why no plan is followed, though a planner was given."""
        return self._steps.refused

    def end_step(self) -> None:
        """Say that a step is over; with an optimizer its own step says so."""
        with without_dispatch_modes():
            self._steps.end_step()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Keep everything on the device, whatever the limit, within the block: for checkpoints and raw addresses."""
        with without_dispatch_modes():
            self._memory.restore_all()
            self._memory.paused = True
            try:
                yield
            finally:
                self._memory.paused = False
                for page in self._memory.pages():
                    self._memory.will_be_written(page)
                self._memory.make_room(0)

    def __enter__(self) -> Self:
        """Start to page the model, its gradients and the optimizer's state."""
        entered = self._entered
        try:
            entered.callback(self._leave)
            if self.optimizer is not None:
                entered.enter_context(one_by_one(self.optimizer))
                before = self.optimizer.register_step_pre_hook(lambda *_: self._steps.gradients_are_there())
                after = self.optimizer.register_step_post_hook(lambda *_: self.end_step())
                entered.callback(before.remove)
                entered.callback(after.remove)
            with without_dispatch_modes():
                for tensor in self._present():
                    self._mode.page(tensor)
                self._memory.make_room(0)
                self._memory.counts.peak_bytes = self._memory.used_bytes
            entered.enter_context(guarded(self._memory, debug=self.debug))
            entered.enter_context(self._mode)
        except BaseException:
            entered.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Bring everything back; what the device has no room for becomes a tensor in host memory, and is logged."""
        self._entered.close()

    def _leave(self) -> None:
        self._steps.close()
        try:
            self._memory.restore_all()
        except torch.OutOfMemoryError:
            self._leave_in_host()
        self._memory.forget()

    def _leave_in_host(self) -> None:
        left_bytes = 0
        for tensor in self._present():
            page = self._memory.page(tensor.untyped_storage())
            if page is not None and not page.resident and page.host is not None:
                kept = torch.empty(0, dtype=tensor.dtype)
                kept.set_(page.host.clone().untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
                tensor.data = kept
                left_bytes += page.size_bytes
        logger.warning("%s did not fit on the device and are in host memory now", show_bytes(left_bytes))

    def _present(self) -> Iterator[Tensor]:
        """Tensors that are there before the first step: parameters, buffers, gradients and optimizer state."""
        held: list[Any] = [*self.model.parameters(), *self.model.buffers(), *(p.grad for p in self.model.parameters())]
        if self.optimizer is not None:
            held += [value for state in self.optimizer.state.values() for value in state.values()]
        for tensor in held:
            if isinstance(tensor, Tensor) and tensor.device == self.device and tensor.numel() * 8 > NUMBER_BYTES:
                yield tensor

    def _host(self, given: HostLink | None) -> Tier:
        link = given or measured_link(self.device, None if self.device.type == "cuda" else "cpu")
        return Tier("host", link.to_host_gbps, link.from_host_gbps, capacity_bytes=link.capacity_bytes)
