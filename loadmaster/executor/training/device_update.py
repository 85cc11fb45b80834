"""Update of one group of parameters on the device; state and master weights come from the host where they are there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from loadmaster.executor.training.clipping import Clip
from loadmaster.executor.training.copies import Move, Mover, Packing
from loadmaster.executor.training.layers import ModelGroup
from loadmaster.executor.training.updates import GroupOptimizer, moving, states_like
from loadmaster.executor.training.weights import DeviceWeights, HostWeights


class DeviceUpdate:
    """Update on the device. What it needs from the host (state, master weights) comes for it and goes back."""

    def __init__(
        self,
        weights: DeviceWeights | HostWeights,
        of: ModelGroup,
        optimizer: torch.optim.Optimizer,
        mover: Mover,
        *,
        is_state_on_host: bool,
        is_streamed: bool,
    ) -> None:
        assert of.updated_by is not None
        self._of, self._weights, self._mover, self._is_streamed = of, weights, mover, is_streamed
        self.optimizer = GroupOptimizer(optimizer, of.updated_by, weights.masters, mover.device)
        self._host_state: dict[tuple[int, str], Tensor] = {}
        if is_state_on_host:
            like = states_like(optimizer, of.updated_by, weights.masters)
            keys = moving(like)
            tensors = [like[n][name] for n, name in keys]
            packing = Packing(tensors, [t.dtype for t in tensors])
            self._host_state = dict(zip(keys, packing.views(mover.host_buffer(packing.size_bytes)), strict=True))
        self._taken: tuple[list[Tensor | None], dict[str, Any]] | None = None
        self._loads: list[Move] | None = None
        self._stores: list[Move] = []
        self._there: list[Tensor] = []  # memory of state on the device
        self._masters: list[Tensor] = []
        self._copies: list[Tensor] = []
        self.optimizer.take_states([optimizer.state.get(p, {}) for p in of.parameters], mover.device)
        self._keys = self._moved()
        for n, name in self._keys:
            self._host_state[n, name].copy_(self.optimizer.states[n][name])
        self._forget_state()

    def _moved(self) -> list[tuple[int, str]]:
        """State that is on the host between updates: parameters that had no gradient yet have none."""
        return [key for key in moving(self.optimizer.states) if key in self._host_state]

    def load(self) -> None:
        """Queue the way to the device of state and master weights that are on the host."""
        state = [self._host_state[key] for key in self._keys]
        masters = self._weights.views if isinstance(self._weights, HostWeights) else []
        self._there, self._masters = (
            [torch.empty_like(t, device=self._mover.device) for t in sources] for sources in (state, masters)
        )
        after = [self._mover.mark(), *self._stores]
        pairs = zip([*self._there, *self._masters], [*state, *masters], strict=True)
        self._loads = [self._mover.load(target, source, after) for target, source in pairs]

    @property
    def is_taken(self) -> bool:
        """True where the update of a step that is over is still to run."""
        return self._taken is not None

    def take(self) -> None:
        """Take gradients and the user's settings for an update that runs in the next step: until then the user drops
        gradients, and a scheduler may change the settings."""
        self._taken = [p.grad for p in self._of.parameters], self.optimizer.settings()
        for p in self._of.parameters:
            p.grad = None

    @torch.no_grad()
    def run(self, clip: Clip | None) -> None:
        """Update the weights, and queue the way back of what belongs on the host."""
        if self._loads is None:
            self.load()
        assert self._loads is not None
        for move in self._loads:
            move.wait()
        states = self.optimizer.states
        for (n, name), view in zip(self._keys, self._there, strict=True):
            states[n][name] = view
        for master, memory in zip(self._weights.masters, self._masters, strict=bool(self._masters)):
            master.data = memory
        if self._taken is None:
            self.take()
        assert self._taken is not None
        gradients, settings = self._taken
        self._taken = None
        for n, (gradient, master) in enumerate(zip(gradients, self._weights.masters, strict=True)):
            master.grad = None if gradient is None else gradient.to(master.dtype)
            if clip is not None and master.grad is not None:
                clip(master.grad)
            if gradient is not None and gradient.dtype != master.dtype:
                # One at a time: the cast gradients of a whole group would be as large as its weights.
                self.optimizer.step(settings)
                gradients[n] = None
        self.optimizer.step(settings)
        self._keys = self._moved()
        self._store(self._mover.mark())

    def _store(self, after: Move) -> None:
        self._stores = []
        states = self.optimizer.states
        self._there = [states[n][name] for n, name in self._keys]
        for source, key in zip(self._there, self._keys, strict=True):
            self._stores.append(self._mover.store(self._host_state[key], source, [after]))
        if not isinstance(self._weights, HostWeights):
            return
        for source, target in zip(self._masters, self._weights.views, strict=True):
            self._stores.append(self._mover.store(target, source, [after]))
        if not self._is_streamed:
            self._weights.overwrite(self._masters)
            return
        self._copies = [m.to(d) for m, d in zip(self._masters, self._weights.copy_packing.dtypes, strict=True)]
        after = self._mover.mark()
        for source, target in zip(self._copies, self._weights.copy_views, strict=True):
            self._weights.stored = self._mover.store(target, source, [after])
        self._weights.is_current = False

    def free(self) -> None:
        """Free the device memory of what is on the host again."""
        if isinstance(self._weights, HostWeights) and self._weights.stored is not None:
            self._weights.stored.wait()
        for move in self._stores:
            move.wait()
        self._forget_state()
        if isinstance(self._weights, HostWeights):
            for master, view in zip(self._weights.masters, self._weights.views, strict=True):
                master.data = view
        self._there, self._masters, self._copies, self._loads = [], [], [], None

    def _forget_state(self) -> None:
        states = self.optimizer.states
        for n, name in self._keys:
            states[n][name] = torch.empty(0, device=self._mover.device)

    def finish(self) -> None:
        """Wait until everything of the update has arrived on the host."""
        for move in self._stores:
            move.finish()

    @property
    def state_values(self) -> list[dict[str, Any]]:
        """The optimizer's state of each parameter, wherever it is."""
        found = [dict(state) for state in self.optimizer.states]
        for n, name in self._keys:
            found[n][name] = self._host_state[n, name]
        return found
