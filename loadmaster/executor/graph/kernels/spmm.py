"""g-SpMM as an operator of PyTorch: messages of edges, joined and reduced to rows, without a tensor of messages.

The operator takes tensors only, so that compilers, dispatch modes and autocast see all that it reads. Its gradient is
registered in :mod:`loadmaster.executor.graph.kernels.gradients`, from the arrays of the reversed graph that it is given
for that alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import torch
from torch import Tensor

from loadmaster.executor.graph.kernels.devices import has_kernels
from loadmaster.executor.graph.kernels.spmm_messages import decode, result_dtype
from loadmaster.executor.graph.kernels.spmm_plain import spmm_plain
from loadmaster.executor.graph.kernels.spmm_schedule import schedule_rows


@torch.library.custom_op("loadmaster::spmm", mutates_args=())
def spmm_op(
    left: Tensor,
    right: Tensor | None,
    winner: Tensor | None,
    ptr: Tensor,
    neighbour: Tensor,
    edge: Tensor | None,
    order: Tensor | None,
    reverse_ptr: Tensor | None,
    reverse_neighbour: Tensor | None,
    reverse_edge: Tensor | None,
    reverse_order: Tensor | None,
    source: Tensor | None,
    destination: Tensor | None,
    counts: Sequence[int],
    reverse_counts: Sequence[int],
    work: str,
) -> tuple[Tensor, Tensor]:
    """Reduce the messages of every row's edges.

    Args:
        left, right: operands, [rows of their target, numbers of their layout], contiguous.
        winner: [rows of the left operand's target, outer * inner]; where given, an edge's message counts only in those
            features in which the winner at its left operand's row is this edge. For gradients of max and min.
        ptr, neighbour, edge: [rows + 1], [edges], [edges]: where a row's edges begin, whom each reads from, and its id;
            without ``edge`` ids are positions.
        order, counts: a :class:`loadmaster.executor.graph.kernels.spmm_schedule.Schedule`; made here where it is
            missing and needed.
        reverse_*: the same of the reversed matrix; needed for gradients of operands at u.
        source, destination: [edges], neighbour and row of each edge id; needed for gradients of operands at e.
        work: what :func:`loadmaster.executor.graph.kernels.spmm_messages.encode` makes of messages, of a reduction,
            sum, mean, max, min or logsumexp, and of the features' two dimensions.

    Returns:
        The result [rows, outer * inner], and for max and min the edge that has it, the lowest id of equal ones, -1 in
        a row without edges; empty otherwise. Such a row's result is 0. A NaN is larger, and smaller, than all numbers.
    """
    if not has_kernels(left.device):
        return spmm_plain(left, right, winner, ptr, neighbour, edge, decode(work))
    if order is None:
        made = schedule_rows(ptr)
        order, counts = made.order, made.counts
    kernels = importlib.import_module("loadmaster.executor.graph.kernels.spmm_triton")
    both: tuple[Tensor, Tensor] = kernels.spmm_triton(
        left, right, winner, ptr, neighbour, edge, order, counts, decode(work)
    )
    return both


@spmm_op.register_fake
def _(
    left: Tensor,
    right: Tensor | None,
    winner: Tensor | None,
    ptr: Tensor,
    neighbour: Tensor,
    edge: Tensor | None,
    order: Tensor | None,
    reverse_ptr: Tensor | None,
    reverse_neighbour: Tensor | None,
    reverse_edge: Tensor | None,
    reverse_order: Tensor | None,
    source: Tensor | None,
    destination: Tensor | None,
    counts: Sequence[int],
    reverse_counts: Sequence[int],
    work: str,
) -> tuple[Tensor, Tensor]:
    _, reduce, outer, inner = decode(work)
    shape = (ptr.shape[0] - 1, outer * inner)
    result = left.new_empty(shape, dtype=result_dtype(left, right))
    return result, neighbour.new_empty(shape if reduce in ("max", "min") else (0,))
