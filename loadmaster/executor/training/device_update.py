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
        self._loaded: Move | None = None
        self._stored: Move | None = None
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
        pairs = list(zip([*self._there, *self._masters], [*state, *masters], strict=True))
        if pairs:
            after = [self._mover.mark(), *([] if self._stored is None else [self._stored])]
            self._loaded = self._mover.load(pairs, after)

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
        if self._loaded is None:
            self.load()
        if self._loaded is not None:  # there is something to load
            self._loaded.wait()
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
            gradients[n] = None  # its memory is free once it is cast
            if clip is not None and master.grad is not None:
                clip(master.grad)
        del gradient
        self.optimizer.step(settings)
        self._keys = self._moved()
        self._store()

    def _store(self) -> None:
        states = self.optimizer.states
        self._there = [states[n][name] for n, name in self._keys]
        pairs = [(self._host_state[key], source) for key, source in zip(self._keys, self._there, strict=True)]
        if isinstance(self._weights, HostWeights):
            pairs += zip(self._weights.views, self._masters, strict=True)
            if self._is_streamed:
                dtypes = self._weights.copy_packing.dtypes
                self._copies = [master.to(dtype) for master, dtype in zip(self._masters, dtypes, strict=True)]
                pairs += zip(self._weights.copy_views, self._copies, strict=True)
            else:
                self._weights.overwrite(self._masters)
        self._stored = self._mover.store(pairs, [self._mover.mark()]) if pairs else None
        if isinstance(self._weights, HostWeights) and self._is_streamed:
            self._weights.stored, self._weights.is_current = self._stored, False

    def free(self) -> None:
        """Free the device memory of what is on the host again."""
        if self._stored is not None:
            self._stored.wait()
        self._forget_state()
        if isinstance(self._weights, HostWeights):
            for master, view in zip(self._weights.masters, self._weights.views, strict=True):
                master.data = view
        self._there, self._masters, self._copies = [], [], []
        self._loaded = None

    def _forget_state(self) -> None:
        states = self.optimizer.states
        for n, name in self._keys:
            states[n][name] = torch.empty(0, device=self._mover.device)

    def finish(self) -> None:
        """Wait until everything of the update has arrived on the host."""
        if self._stored is not None:
            self._stored.finish()

    @property
    def state_values(self) -> list[dict[str, Any]]:
        """The optimizer's state of each parameter, wherever it is."""
        found = [dict(state) for state in self.optimizer.states]
        for n, name in self._keys:
            found[n][name] = self._host_state[n, name]
        return found
