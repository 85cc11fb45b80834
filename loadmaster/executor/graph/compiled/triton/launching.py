"""Launches of compiled kernels, as light as Triton allows.

The first launch goes through Triton, which compiles. Those after it call the compiled kernel's own launcher with
addresses: nothing about the arguments can change but where tensors lie, and all lie on multiples of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class BoundLaunch:
    """One launch on one graph.

    Args:
        kernel: of ``triton.jit``.
        grid: programs in three dimensions.
        arguments: in the kernel's order; None where a tensor of the call goes.
        places: (argument, tensor of the call) of these.
        options: what Triton compiles with.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        arguments: Sequence[Tensor | int | None],
        places: Sequence[tuple[int, int]],
        options: dict[str, Any],
    ) -> None:
        self._kernel, self._grid, self._options = kernel, grid, options
        self._arguments, self._places = list(arguments), tuple(places)
        self._compiled: Any = None
        self._addresses = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]

    def first(self, tensors: Sequence[Tensor]) -> None:
        """Launches through Triton."""
        arguments = self._arguments.copy()
        for at, which in self._places:
            arguments[at] = tensors[which]
        self._compiled = self._kernel[self._grid](*arguments, **self._options)

    @property
    def is_compiled(self) -> bool:
        """Whether :meth:`again` can be called. Triton's interpreter compiles nothing."""
        return self._compiled is not None

    def again(self, stream: int, addresses: Sequence[int]) -> None:
        """Launches what :meth:`first` compiled, on tensors of the same types at these addresses."""
        arguments = self._addresses.copy()
        for at, which in self._places:
            arguments[at] = addresses[which]
        compiled = self._compiled
        compiled.run(*self._grid, stream, compiled.function, compiled.packed_metadata, None, None, None, *arguments)


def launch_all(launches: Sequence[BoundLaunch], tensors: Sequence[Tensor], device: torch.device) -> None:
    """Launches on tensors of one device, on its current stream, in order.

    Args:
        tensors: 16-byte aligned.
    """
    if all(launch.is_compiled for launch in launches) and torch.cuda.current_device() == device.index:
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        addresses = [tensor.data_ptr() for tensor in tensors]
        for launch in launches:
            launch.again(stream, addresses)
        return
    if device.type == "cuda":
        with torch.cuda.device(device):
            for launch in launches:
                launch.first(tensors)
    else:
        for launch in launches:
            launch.first(tensors)
