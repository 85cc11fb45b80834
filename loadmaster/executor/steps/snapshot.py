"""PyTorch memory snapshot of one measured step, for https://pytorch.org/memory_viz.

``loadmaster show --snapshot`` writes the planned memory in the same form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from loadmaster.errors import InputError
from loadmaster.executor.torch_private.devices import memory_snapshot, record_memory_history

MAX_ENTRIES = 100_000  # events; a step has a few thousand


def record_snapshot(step: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Record every allocation and release of one step, with the Python lines they come from.

    PyTorch's memory history is on during the step and off afterwards.

    Returns:
        The result of ``torch.cuda.memory._snapshot()``; pickle it.

    Raises:
        InputError: the device is not a CUDA device.
    """
    expect_history(device)
    torch.cuda.synchronize(device)
    record_memory_history("all", context="alloc", stacks="python", max_entries=MAX_ENTRIES)
    try:
        step()
        torch.cuda.synchronize(device)
        snapshot: dict[str, Any] = memory_snapshot(device)
    finally:
        record_memory_history(None)
    return snapshot


def expect_history(device: torch.device) -> None:
    """Refuse devices whose allocator keeps no history.

    Raises:
        InputError: the device is not a CUDA device.
    """
    if device.type != "cuda":
        raise InputError(
            "device",
            str(device),
            "keeps no history of its memory",
            "Record on CUDA, or look at the planned memory: loadmaster show --snapshot.",
        )
