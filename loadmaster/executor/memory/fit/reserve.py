"""Room that a budget leaves for PyTorch's caching allocator, before anything has been measured.

The allocator rounds requests up to 512 bytes, which sizes of captured tensors include. Requests above 1 MiB come from
a pool whose blocks it splits only where more than 1 MiB would be left over, so that a block can be up to 1 MiB larger
than asked, and ``max_memory_allocated`` counts the whole block. Smaller requests, and all requests under
``expandable_segments``, come from blocks that are split to the size. Source: ``should_split`` in PyTorch's
c10/cuda/CUDACachingAllocator.cpp.

Which block a request finds depends on all requests before it. Left-overs between 0 and 1 MiB are equally likely, so
half a mebibyte is set aside for every large result that can be on the device at once. It is a first guess that spares
a trial; what a trial then measures takes its place.
"""

from __future__ import annotations

import os

import torch

from loadmaster.models.memory.problem import MemoryProblem

LARGE_BYTES = 1 << 20


def allocator_reserve_bytes(problem: MemoryProblem, budget_bytes: int) -> int:
    """Half a mebibyte for each of the large forward results that fit the budget together, smallest first."""
    room = budget_bytes - min(f.fixed_bytes for f in problem.forward)
    count = 0
    for size in sorted(f.output_bytes for f in problem.forward if f.output_bytes > LARGE_BYTES):
        room -= size
        if room < 0:
            break
        count += 1
    return count * LARGE_BYTES // 2


def has_left_overs(device: torch.device) -> bool:
    """Return whether the allocator hands out larger blocks than asked: PyTorch's on CUDA, unless segments expand."""
    if device.type != "cuda" or torch.cuda.get_allocator_backend() != "native":
        return False
    settings = (os.environ.get(name, "") for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))
    return not any("expandable_segments:True" in s.replace(" ", "") for s in settings)
