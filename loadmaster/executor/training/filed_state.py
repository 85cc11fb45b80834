"""Optimizer state of one group in files: it is in host memory for its update alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from loadmaster.executor.training.copies import Packing
from loadmaster.executor.training.layers import ModelGroup
from loadmaster.executor.training.state_files import StateFiles
from loadmaster.executor.training.updates import GroupOptimizer, moving, states_like


class StateLayout:
    """Layout of a group's state in a buffer: tensors by ``keys``, (number of the parameter, name). Small ones are not
    there, but stay in host memory."""

    def __init__(self, optimizer: torch.optim.Optimizer, of: ModelGroup) -> None:
        assert of.updated_by is not None
        like = states_like(optimizer, of.updated_by, of.parameters)
        self.keys = moving(like)
        tensors = [like[n][name] for n, name in self.keys]
        self._packing = Packing(tensors, [t.dtype for t in tensors])

    @property
    def size_bytes(self) -> int:
        """Bytes of the state."""
        return self._packing.size_bytes

    def views(self, buffer: Tensor) -> dict[tuple[int, str], Tensor]:
        """Tensors of the state in a buffer, by number of the parameter and name."""
        return dict(zip(self.keys, self._packing.views(buffer[: self.size_bytes]), strict=True))


class FiledState:
    """State of a group's optimizer in files. What the optimizer has of it is written at once.

    Args:
        number: of the group, by which files know it.
    """

    def __init__(self, files: StateFiles, number: int, layout: StateLayout, optimizer: GroupOptimizer) -> None:
        self._files, self._number, self._layout, self._optimizer = files, number, layout, optimizer
        self._keys: list[tuple[int, str]] = []
        if self._moved():
            self._put_away(self._layout.views(files.take(number)))

    def _moved(self) -> list[tuple[int, str]]:
        """State that is in files between updates: parameters that had no gradient yet have none."""
        return [key for key in moving(self._optimizer.states) if key in self._layout.keys]

    @contextmanager
    def here(self) -> Iterator[None]:
        """Bring the state to host memory, for an update in the context, and have it written after that. InputError: it
        could not be read."""
        views, states = self._layout.views(self._files.take(self._number)), self._optimizer.states
        for n, name in self._keys:
            states[n][name] = views[n, name]
        yield
        self._put_away(views)

    def _put_away(self, views: dict[tuple[int, str], Tensor]) -> None:
        states = self._optimizer.states
        self._keys = self._moved()
        for n, name in self._keys:
            value, view = states[n][name], views[n, name]
            if value.data_ptr() != view.data_ptr():
                view.copy_(value)
            states[n][name] = torch.empty(0)
        self._files.give_back(self._number)

    @property
    def values(self) -> Sequence[dict[str, Any]]:
        """The optimizer's state of each parameter, copied from files."""
        found = [dict(state) for state in self._optimizer.states]
        if self._keys:
            views = self._layout.views(self._files.copied(self._number))
            for n, name in self._keys:
                found[n][name] = views[n, name]
        return found
