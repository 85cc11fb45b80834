"""Which runner runs a kernel: a generated one, or plain PyTorch."""

from __future__ import annotations

import logging

import torch

from loadmaster.executor.graph.compiled.indices import Indices
from loadmaster.executor.graph.compiled.reference import ReferenceRunner
from loadmaster.executor.graph.compiled.runner import KernelRunner
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel

logger = logging.getLogger(__name__)
_told: set[str] = set()


def build(program: Program, kernel: Kernel, kept: frozenset[int], indices: Indices, dtype: torch.dtype) -> KernelRunner:
    """The runner of a kernel: generated on a GPU where it can be, plain PyTorch elsewhere.

    Args:
        kept: numbers of all values that kernels of the schedule store.
        dtype: of all values that are given.
    """
    if indices.device.type == "cuda":
        from loadmaster.executor.graph.compiled.triton import build as generate

        generated = generate(program, kernel, kept, indices, dtype)
        if generated is not None:
            return generated
        _tell(kernel)
    return ReferenceRunner(program, kernel, indices, dtype)


def _tell(kernel: Kernel) -> None:
    """Say once for each template that plain PyTorch runs kernels of it."""
    if kernel.template not in _told:
        _told.add(kernel.template)
        logger.info("Kernels of %s without a generated form run on PyTorch's own.", kernel.template)
