"""The contract of runners, which run one kernel of a schedule: generated kernels and plain PyTorch share it.

A runner is made for one kernel, one graph and one dtype. It takes the values that are *held*, by their number in the
program: those given (features, parameters, degrees, gradients) and those that earlier kernels stored. Views are never
held: a runner reads the value that they are views of. Seen from edges through ``source``, a value of nodes has the rows
``indices.map("edge", "source")``, and so has what it is made of: ``source(as_node(aggregate to target))`` reads the
aggregate's rows of the edges' sources. A runner returns what the kernel stores, in the order of ``kernel.stores``.

Every held value is contiguous, [rows of its space, *shape of a row], weights too: a weight for all has one row.
Features and gradients of edges are in the order of :class:`~loadmaster.executor.graph.compiled.indices.Indices`. All
that are given have one floating dtype, which a runner is built for; what is stored has it too, unless
:func:`stored_dtype` widens it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import torch
from torch import Tensor

from loadmaster.models.graph.inline import Inline
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel
from loadmaster.models.graph.spaces import WEIGHT_SPACES


class KernelRunner(Protocol):
    """Runs one kernel on one graph."""

    def __call__(self, held: Mapping[int, Tensor]) -> list[Tensor]:
        """Run the kernel on what it reads (:func:`reads`); return what it stores, in order."""


def reads(program: Program, kernel: Kernel, kept: Collection[int]) -> tuple[int, ...]:
    """Numbers of the held values that a kernel reads, ascending; ``kept``: of all that the schedule's kernels store."""
    needs = Inline(program, frozenset(kept))
    found: set[int] = set()
    for n in kernel.stores:
        found |= needs.to_make(n).reads
    return tuple(sorted(found - set(kernel.stores)))


def stored_dtype(program: Program, n: int, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a value that a kernel stores, where features and weights are of ``dtype``. In 16-bit layers
    float32 is kept for what the backward pass compares with (max, min), for the logarithm of sums, of which an
    exponential is taken, and for sums of rows into weights, where the terms are many."""
    if dtype.itemsize > 2:
        return dtype
    value = program.values[n]
    compared = value.op == "aggregate" and value.reduce in ("logsumexp", "max", "min")
    into_weight = value.op in ("aggregate", "outer") and value.space in WEIGHT_SPACES
    return torch.float32 if compared or into_weight else dtype
