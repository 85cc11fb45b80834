"""Launches of compiled kernels, as light as Triton allows.

The first launch goes through Triton, which compiles. Those after it, on any graph with arguments of the same types,
call the compiled kernel's own launcher with addresses: nothing else about the arguments can change, and all tensors of
calls are aligned to 16 bytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from loadmaster.executor.torch_private.devices import raw_stream

# What Triton made of one kernel on one device, by the types of what it is bound to.
Compiled = dict[Hashable, Any]
_NARROW = 1 << 31


class BoundLaunch:
    """One launch on one graph, on a ``grid`` of programs in three dimensions.

    Args:
        arguments: in the kernel's order; None where a tensor of the call goes.
        places: (argument, tensor of the call) of these.
        compiled: shared, and added to, by this kernel's launches on a device whose call tensors have the same types.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        arguments: Sequence[Tensor | int | None],
        places: Sequence[tuple[int, int]],
        options: dict[str, Any],
        compiled: Compiled,
    ) -> None:
        self._kernel, self._grid, self._options = kernel, grid, options
        self._arguments, self._places = list(arguments), tuple(places)
        self._addresses = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
        self._known, self._key = compiled, tuple(map(_kind, arguments))
        self._compiled: Any = None

    def first(self, tensors: Sequence[Tensor]) -> None:
        """Launch through Triton, which compiles the kernel if it must."""
        arguments = self._arguments.copy()
        for at, which in self._places:
            arguments[at] = tensors[which]
        self._compiled = self._kernel[self._grid](*arguments, **self._options)
        if self._compiled is not None:
            self._known[self._key] = self._compiled

    @property
    def is_compiled(self) -> bool:
        """True if :meth:`again` can be called. Triton's interpreter compiles nothing."""
        if self._compiled is None:
            self._compiled = self._known.get(self._key)
        return self._compiled is not None

    def again(self, stream: int, addresses: Sequence[int]) -> None:
        """Launches what was compiled, on tensors of the same types at these addresses."""
        arguments = self._addresses.copy()
        for at, which in self._places:
            arguments[at] = addresses[which]
        compiled = self._compiled
        compiled.run(*self._grid, stream, compiled.function, compiled.packed_metadata, None, None, None, *arguments)


def launch_all(launches: Sequence[BoundLaunch], tensors: Sequence[Tensor], device: torch.device) -> None:
    """Launch in order on 16-byte aligned tensors of one device, on its current stream."""
    if device.type != "cuda":
        for launch in launches:
            launch.first(tensors)
        return
    if torch.cuda.current_device() != device.index:
        with torch.cuda.device(device):
            return launch_all(launches, tensors, device)
    stream = raw_stream(device.index)
    addresses = [tensor.data_ptr() for tensor in tensors]
    for launch in launches:
        if launch.is_compiled:
            launch.again(stream, addresses)
        else:
            launch.first(tensors)


def _kind(argument: Tensor | int | None) -> Hashable:
    """Key of an argument, for each of which Triton compiles: its type, and whether it is aligned to 16 bytes."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    return argument is None or argument < _NARROW
