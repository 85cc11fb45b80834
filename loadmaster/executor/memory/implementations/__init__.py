"""Implementations of operators that the memory planner can choose from, each equal to plain PyTorch."""

from __future__ import annotations

from loadmaster.executor.memory.implementations.activations import (
    HardtanhFromMask,
    HardtanhFromOutput,
    ReluFromInput,
    ReluFromMask,
)
from loadmaster.executor.memory.implementations.registry import register

for _alternative in (ReluFromInput(), ReluFromMask(), HardtanhFromOutput(), HardtanhFromMask()):
    register(_alternative)
