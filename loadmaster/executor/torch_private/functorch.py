"""Settings of AOTAutograd: the budget of its partition, and when it compiles the backward pass."""

from __future__ import annotations

from loadmaster.executor.torch_private import needed

with needed():
    # ``activation_memory_budget`` and others: ``torch.compile`` has no public option for them.
    from torch._functorch import config as functorch_config

__all__ = ["functorch_config"]
