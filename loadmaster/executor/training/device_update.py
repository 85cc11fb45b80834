"""Update of one group of parameters on the device; state and master weights come from the host where they are there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from loadmaster.executor.training.clipping import Clip
from loadmaster.executor.training.copies import Move, Mover, Packing, Pair
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
        like = states_like(optimizer, of.updated_by, weights.masters) if is_state_on_host else []
        tensors = {key: like[key[0]][key[1]] for key in moving(like)}
        self._packing = Packing(list(tensors.values()), [t.dtype for t in tensors.values()])
        self._host = mover.host_buffer(self._packing.size_bytes)
        self._host_state = dict(zip(tensors, self._packing.views(self._host), strict=True))
        self._taken: tuple[list[Tensor | None], dict[str, Any]] | None = None
        self._loaded: Move | None = None
        self._stored: Move | None = None
        # Memory on the device, while it is there, of state, and of weights that are on the host; the copy on its way.
        self._state: Tensor | None = None
        self._masters: Tensor | None = None
        self._copy: Tensor | None = None
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
        pairs = []
        if self._keys:
            self._state = self._room(self._packing)
            pairs.append((self._state, self._host))
        if isinstance(self._weights, HostWeights):
            self._masters = self._room(self._weights.packing)
            pairs.append((self._masters, self._weights.host))
        if pairs:
            after = [self._mover.mark(), *([] if self._stored is None else [self._stored])]
            self._loaded = self._mover.load(pairs, after)

    def _room(self, packing: Packing) -> Tensor:
        return torch.empty(packing.size_bytes, dtype=torch.uint8, device=self._mover.device)

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
        states, there = self.optimizer.states, self._there()
        for n, name in self._keys:
            states[n][name] = there[n, name]
        if self._masters is not None:
            assert isinstance(self._weights, HostWeights)
            for master, view in zip(self._weights.masters, self._weights.packing.views(self._masters), strict=True):
                master.data = view
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
        self._store(there)

    def _there(self) -> dict[tuple[int, str], Tensor]:
        """State in its memory on the device."""
        if self._state is None:
            return {}
        return dict(zip(self._host_state, self._packing.views(self._state), strict=True))

    def _store(self, there: dict[tuple[int, str], Tensor]) -> None:
        """Queue the way back; ``there``: state that had come."""
        states, pairs = self.optimizer.states, []
        if self._state is not None:
            pairs.append((self._host, self._state))
        for n, name in self._keys:
            if states[n][name] is not there.get((n, name)):  # made in this update
                pairs.append((self._host_state[n, name], states[n][name]))
        if self._masters is not None:
            pairs += self._stored_weights(self._masters)
        self._stored = self._mover.store(pairs, [self._mover.mark()]) if pairs else None
        if isinstance(self._weights, HostWeights) and self._is_streamed:
            self._weights.stored, self._weights.is_current = self._stored, False

    def _stored_weights(self, memory: Tensor) -> list[Pair]:
        """Make the copy of updated master weights; pairs of all that is to be stored."""
        weights = self._weights
        assert isinstance(weights, HostWeights)
        pairs = [(weights.host, memory)]
        if self._is_streamed:
            self._copy = self._room(weights.copy_packing)
            pairs.append((weights.host_copy, self._copy))
        weights.overwrite(self._copy)
        return pairs

    def free(self) -> None:
        """Free the device memory of what is on the host again."""
        if self._stored is not None:
            self._stored.wait()
        self._forget_state()
        if isinstance(self._weights, HostWeights):
            for master, view in zip(self._weights.masters, self._weights.views, strict=True):
                master.data = view
        self._state = self._masters = self._copy = self._loaded = None

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
