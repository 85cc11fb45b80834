"""g-SpMM and g-SDDMM as operators of PyTorch: messages of edges, joined and reduced to rows, or kept for every edge.

g-SpMM makes no tensor of messages. The operators take tensors only, so that compilers, dispatch modes and autocast see
all that they read. Their gradients are registered in :mod:`loadmaster.executor.graph.kernels.gradients`, from the
arrays of the reversed graph that they are given for that alone.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from loadmaster.executor.graph.kernels.plain import sddmm_plain, spmm_plain
from loadmaster.executor.graph.kernels.spmm_messages import Message, Reduce, Work, decode, encode, result_dtype
from loadmaster.executor.graph.kernels.spmm_schedule import schedule_rows

# Numbers of a row from which on reading rows in order outweighs writing edges out of order.
WIDE_ROW = 16


@cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def has_kernels(device: torch.device) -> bool:
    """Return whether a device runs the Triton kernels; others run the same operators in plain PyTorch."""
    return device.type == "cuda" and has_triton()


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
        order, counts: a :class:`~loadmaster.executor.graph.kernels.spmm_schedule.Schedule`; made if missing and needed.
        reverse_*: the same of the reversed matrix; needed for gradients of operands at u.
        source, destination: [edges], neighbour and row of each edge id; needed for gradients of operands at e.
        work: what :func:`loadmaster.executor.graph.kernels.spmm_messages.encode` makes of messages, of a reduction
            (sum, mean, max, min or logsumexp), and of the features' two dimensions.

    Returns:
        The result [rows, outer * inner], and for max and min the edge that has it, the lowest id of equal ones, -1 in a
            row without edges, whose result is 0; else empty. A NaN is larger, and smaller, than all numbers.
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
def _(left: Tensor, right: Tensor | None, _: Any, ptr: Tensor, neighbour: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    work = decode(rest[-1])
    shape = (ptr.shape[0] - 1, work.outer * work.inner)
    result = left.new_empty(shape, dtype=result_dtype(left, right))
    return result, neighbour.new_empty(shape if work.reduce in ("max", "min") else (0,))


@torch.library.custom_op("loadmaster::sddmm", mutates_args=())
def sddmm_op(
    left: Tensor,
    right: Tensor | None,
    winner: Tensor | None,
    ptr: Tensor | None,
    neighbour: Tensor | None,
    edge: Tensor | None,
    order: Tensor | None,
    reverse_ptr: Tensor | None,
    reverse_neighbour: Tensor | None,
    reverse_edge: Tensor | None,
    reverse_order: Tensor | None,
    source: Tensor,
    destination: Tensor,
    counts: Sequence[int],
    reverse_counts: Sequence[int],
    work: str,
) -> Tensor:
    """Message of every edge id: [edges, outer * inner] (``each``), or its sum over ``inner``: [edges, outer]. Arguments
    are those of :func:`spmm_op`. The matrix, by rows and reversed, is needed for gradients of operands at v and at u;
    wide rows are also visited in the order of ``edge``."""
    decoded = decode(work)
    if not has_kernels(left.device):
        return sddmm_plain(left, right, winner, source, destination, decoded)
    kernels = importlib.import_module("loadmaster.executor.graph.kernels.sddmm_triton")
    result = torch.empty(_edge_shape(source, decoded), dtype=result_dtype(left, right), device=left.device)
    visit = edge if decoded.outer * decoded.inner >= WIDE_ROW else None
    kernels.sddmm_triton(left, right, winner, source, destination, visit, result, decoded)
    return result


@sddmm_op.register_fake
def _(left: Tensor, right: Tensor | None, *rest: Any) -> Tensor:
    return left.new_empty(_edge_shape(rest[9], decode(rest[-1])), dtype=result_dtype(left, right))


def _edge_shape(source: Tensor, work: Work) -> tuple[int, int]:
    return source.shape[0], work.outer if work.reduce == "inner" else work.outer * work.inner


class Matrix(NamedTuple):
    """The edges by rows, by rows of the reversed graph, and by id, as :func:`spmm_op` takes them; None: not needed."""

    ptr: Tensor | None
    neighbour: Tensor | None
    edge: Tensor | None
    order: Tensor | None
    reverse_ptr: Tensor | None
    reverse_neighbour: Tensor | None
    reverse_edge: Tensor | None
    reverse_order: Tensor | None
    source: Tensor | None
    destination: Tensor | None
    counts: Sequence[int]
    reverse_counts: Sequence[int]

    def reversed(self) -> Matrix:
        """The matrix with neighbours and rows exchanged."""
        return Matrix(*self[4:8], *self[:4], self.destination, self.source, self.reverse_counts, self.counts)


def spmm(
    left: Tensor,
    right: Tensor | None,
    matrix: Matrix,
    message: Message,
    reduce: Reduce,
    outer: int,
    inner: int,
    winner: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run g-SpMM on a matrix: :func:`spmm_op`."""
    both: tuple[Tensor, Tensor] = spmm_op(left, right, winner, *matrix, encode(Work(message, reduce, outer, inner)))
    return both


def sddmm(
    left: Tensor,
    right: Tensor | None,
    matrix: Matrix,
    message: Message,
    outer: int,
    inner: int,
    summed: bool,
    winner: Tensor | None = None,
) -> Tensor:
    """Run g-SDDMM on a matrix: :func:`sddmm_op`."""
    work = Work(message, "inner" if summed else "each", outer, inner)
    result: Tensor = sddmm_op(left, right, winner, *matrix, encode(work))
    return result
