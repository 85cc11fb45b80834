"""What is resident before a step, in the allocator's own bytes."""

from __future__ import annotations

import pytest
import torch

from loadmaster.executor.steps.resident import allocated_bytes

MIB = 1 << 20


def test_what_shares_a_storage_counts_once() -> None:
    whole = torch.zeros(1000)
    assert allocated_bytes([whole, whole[:10], torch.zeros(10)]) == 4000 + 40


@pytest.mark.gpu
def test_a_block_counts_as_large_as_it_is() -> None:
    """A freed block is handed out whole where less than a MiB of it would be left."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    larger = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    del larger
    smaller = torch.empty(30 * MIB - MIB // 2, dtype=torch.uint8, device="cuda")
    rest = torch.empty(300, device="cuda")
    assert allocated_bytes([smaller]) == 30 * MIB
    assert allocated_bytes([smaller, smaller[1:], rest]) == torch.cuda.memory_allocated() - before
