"""Implementations of operators that the memory planner can choose from, each equal to plain PyTorch."""

from __future__ import annotations

from loadmaster.executor.memory.implementations.activations import (
    HardtanhFromInput,
    HardtanhFromMask,
    ReluFromInput,
    ReluFromMask,
)
from loadmaster.executor.memory.implementations.batch_norm import reuse_statistics
from loadmaster.executor.memory.implementations.layer_norm import reuse_row_statistics
from loadmaster.executor.memory.implementations.monotone import EluFromOutput, LeakyReluFromOutput, SoftplusFromOutput
from loadmaster.executor.memory.implementations.norm_output import NormFromOutput
from loadmaster.executor.memory.implementations.pooling import MaxPoolFromOffsets
from loadmaster.executor.memory.implementations.registry import register, register_recompute

for _alternative in (
    ReluFromInput(),
    ReluFromMask(),
    HardtanhFromInput(),
    HardtanhFromMask(),
    LeakyReluFromOutput(),
    EluFromOutput(),
    SoftplusFromOutput(),
    NormFromOutput(),
    MaxPoolFromOffsets(),
):
    register(_alternative)
register_recompute("batch_norm_apply", reuse_statistics)
register_recompute("layer_norm_apply", reuse_row_statistics)
