"""CUDA streams, kernels and the allocator's record, and devices as the profiler names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from loadmaster.executor.torch_private import needed

with needed():
    # Kind of device of a profiler's event, which it has in public: its class it has not.
    from torch._C._autograd import DeviceType as DeviceType

    # Kernel that keeps the GPU busy for some cycles, so that launches queue up behind it.
    sleep_on_gpu: Callable[[int], None] = torch.cuda._sleep

    # Record of every allocation with its stack, and its pickled form. The documentation gives these names.
    record_memory_history: Callable[..., None] = torch.cuda.memory._record_memory_history
    memory_snapshot: Callable[..., dict[str, Any]] = torch.cuda.memory._snapshot


def raw_stream(device_index: int) -> int:
    """Address of the stream that PyTorch launches on now. ``torch.cuda.current_stream`` takes ten times as long. CPU
    builds of PyTorch do not have it."""
    stream: int = torch._C._cuda_getCurrentRawStream(device_index)
    return stream
