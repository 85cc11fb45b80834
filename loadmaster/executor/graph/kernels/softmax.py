"""Softmax over the edges of each row, as an operator of PyTorch: two passes, and no tensor but the result.

The logarithm of each row's sum of exponentials is a g-SpMM, what an edge keeps is a g-SDDMM. The gradient of the scores
is a (G - d), with a the result and d the sum of a G over the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from loadmaster.executor.graph.kernels.operators import Matrix, sddmm, spmm
from loadmaster.executor.graph.kernels.spmm_messages import Message, Side

EDGE, ROW = Side("e", "full"), Side("v", "full")


def _matrix(by_row: Sequence[Tensor | None], source: Tensor, destination: Tensor, counts: Sequence[int]) -> Matrix:
    ptr, neighbour, edge, order = by_row
    return Matrix(ptr, neighbour, edge, order, None, None, None, None, source, destination, counts, [])


@torch.library.custom_op("loadmaster::edge_softmax", mutates_args=())
def edge_softmax_op(
    scores: Tensor,
    ptr: Tensor,
    neighbour: Tensor,
    edge: Tensor | None,
    order: Tensor | None,
    source: Tensor,
    destination: Tensor,
    counts: Sequence[int],
) -> Tensor:
    """Softmax over each row's edges, exp(score) over the row's sum of exp(score): [edges, numbers] as ``scores``. The
    other arguments are those of :func:`loadmaster.executor.graph.kernels.operators.spmm_op`."""
    matrix = _matrix((ptr, neighbour, edge, order), source, destination, counts)
    numbers = scores.shape[1]
    total, _ = spmm(scores, None, matrix, Message("copy", EDGE, None), "logsumexp", 1, numbers)
    return sddmm(scores, total, matrix, Message("expsub", EDGE, ROW), 1, numbers, False)


@edge_softmax_op.register_fake
def _(scores: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(scores)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, *inputs[1:7])
    ctx.counts = inputs[7]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    kept, *by_row, source, destination = ctx.saved_tensors
    matrix = _matrix(by_row, source, destination, ctx.counts)
    numbers = kept.shape[1]
    gradient = gradient.contiguous()
    both = Message("mul", EDGE, EDGE)
    total, _ = spmm(kept, gradient, matrix, both, "sum", 1, numbers)
    centred = sddmm(gradient, total, matrix, Message("sub", EDGE, ROW), 1, numbers, False)
    return (centred * kept, *(None,) * 7)


edge_softmax_op.register_autograd(_backward, setup_context=_keep)
