"""A graph's edges as the arrays that operators take, and the two operators on them as plain calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from loadmaster.executor.graph.kernels.sddmm import sddmm_op
from loadmaster.executor.graph.kernels.spmm import spmm_op
from loadmaster.executor.graph.kernels.spmm_messages import Message, Reduce, Work, encode


class Matrix(NamedTuple):
    """The edges by rows, by rows of the reversed graph, and by id; what is None is not needed by what is called.

    See :func:`loadmaster.executor.graph.kernels.spmm.spmm_op` for each. ``source`` and ``destination`` are the
    neighbour and the row of each edge.
    """

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
    """Run g-SpMM on a matrix: :func:`loadmaster.executor.graph.kernels.spmm.spmm_op`."""
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
    """Run g-SDDMM on a matrix: :func:`loadmaster.executor.graph.kernels.sddmm.sddmm_op`."""
    work = Work(message, "inner" if summed else "each", outer, inner)
    result: Tensor = sddmm_op(left, right, winner, *matrix, encode(work))
    return result
