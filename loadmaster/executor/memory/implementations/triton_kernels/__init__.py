"""The implementations' CUDA kernels, in Triton. Each computes what its operator's PyTorch form computes.

Operators reach these through :mod:`loadmaster.executor.memory.implementations.kernels`; shapes are checked there.
Elementwise kernels run over memory from one end to the other, whatever the dense layout; only a tensor that is not
dense, or a second one in another order, is copied.
"""

from __future__ import annotations

from loadmaster.executor.memory.implementations.triton_kernels.cross_entropy import cross_entropy_rows, scaled
from loadmaster.executor.memory.implementations.triton_kernels.elementwise import (
    batch_norm_apply,
    layer_norm_apply,
    masked_gradient,
    norm_input,
    pack_inside,
    seeded_dropout,
)
from loadmaster.executor.memory.implementations.triton_kernels.pooling import pool_offset_backward, pool_offsets

__all__ = [
    "batch_norm_apply",
    "cross_entropy_rows",
    "layer_norm_apply",
    "masked_gradient",
    "norm_input",
    "pack_inside",
    "pool_offset_backward",
    "pool_offsets",
    "scaled",
    "seeded_dropout",
]
