"""Implementations of operators that the memory planner can choose from, each equal to plain PyTorch."""

from __future__ import annotations

from loadmaster.executor.memory.implementations.activations import (
    EluFromOutput,
    HardtanhFromInput,
    HardtanhFromMask,
    LeakyReluFromOutput,
    ReluFromInput,
    ReluFromMask,
    SoftplusFromOutput,
)
from loadmaster.executor.memory.implementations.norm_output import NormFromOutput
from loadmaster.executor.memory.implementations.pooling import MaxPoolFromOffsets
from loadmaster.executor.memory.implementations.registry import register

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
