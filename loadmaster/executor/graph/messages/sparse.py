"""g-SpMM and g-SDDMM on features of any shape, which run the built-in functions.

>>> spmm(adjacency, "mul", ("u", h), ("e", w), "sum")    # sum over in-edges of h[source] * w[edge]
>>> sddmm(adjacency, "dot", ("u", h), ("v", h))          # for every edge h[source] . h[destination]

``adjacency`` is ``graph.adjacency`` or ``graph.relation_adjacency(relation)``. Operands are (where, rows), where is u
(the source), v (the destination) or e (the edge). Differentiable in both.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.kernels import matrix as kernels
from loadmaster.executor.graph.kernels.spmm_messages import Message, Side, Target
from loadmaster.executor.graph.messages.functions import MessageOperator, ReduceOperator
from loadmaster.executor.graph.messages.products import product
from loadmaster.executor.graph.messages.shapes import Joined, join_shapes, remembered_join_shapes, rows_of
from loadmaster.executor.graph.structure.adjacency import Adjacency

Operand = tuple[Target, Tensor]


def spmm(
    adjacency: Adjacency, operator: MessageOperator, left: Operand, right: Operand | None, reduce: ReduceOperator
) -> Tensor:
    """Reduce the messages of every destination's edges; zero where there are none.

    Args:
        operator: ``copy`` of the left operand, or what joins both.
        left, right: [rows of their place, ...]; shapes of rows broadcast.

    Returns:
        [destinations, ...].

    Raises:
        InputError: rows that do not match the graph, numbers of another kind than floating-point, or shapes that do
            not broadcast.
    """
    _expect(adjacency, left, right)
    if operator == "dot":
        return spmm(adjacency, "copy", ("e", sddmm(adjacency, "dot", left, right)), None, reduce)
    how, message, first, second = _prepared(operator, left, right)
    if reduce == "prod":
        total = product(adjacency, first, second, message, how.outer, how.inner)
    else:
        reverse = _needs_reverse(left, right)
        total, _ = kernels.spmm(first, second, adjacency.matrix(reverse), message, reduce, how.outer, how.inner)
    return total.view(adjacency.destination_count, *how.shape)


def sddmm(adjacency: Adjacency, operator: MessageOperator, left: Operand, right: Operand | None = None) -> Tensor:
    """Message of every edge: [edges, ...].

    Raises:
        InputError: as :func:`spmm`.
    """
    if operator == "copy" and not left[1].is_floating_point():
        _expect_rows(adjacency, left)
        ends = {"u": adjacency.source, "v": adjacency.destination}
        return left[1] if left[0] == "e" else left[1].index_select(0, ends[left[0]])
    _expect(adjacency, left, right)
    if operator == "copy" and left[0] == "e":
        return left[1]
    how, message, first, second = _prepared(operator, left, right)
    matrix = adjacency.matrix(_needs_reverse(left, right))
    made = kernels.sddmm(first, second, matrix, message, how.outer, how.inner, operator == "dot")
    return made.view(adjacency.edge_count, *how.shape)


def _prepared(
    operator: MessageOperator, left: Operand, right: Operand | None
) -> tuple[Joined, Message, Tensor, Tensor | None]:
    if right is None:
        shape = tuple(left[1].shape[1:])
        how = Joined(shape, 1, math.prod(shape), ("full", "full"), (None, None))
        return how, Message("copy", Side(left[0], "full"), None), rows_of(left[1], None), None
    shapes = tuple(left[1].shape[1:]), tuple(right[1].shape[1:])
    # Writing out an operand at nodes costs less than one at edges.
    join = join_shapes if torch.compiler.is_compiling() else remembered_join_shapes
    how = join(*shapes, operator == "dot", 1 if left[0] == "e" else 0)
    sides = Side(left[0], how.layouts[0]), Side(right[0], how.layouts[1])
    message = Message("mul" if operator == "dot" else operator, *sides)
    return how, message, rows_of(left[1], how.expanded[0]), rows_of(right[1], how.expanded[1])


def _needs_reverse(left: Operand, right: Operand | None) -> bool:
    """Return whether a gradient will flow to sources, which takes the reversed graph."""
    operands = (left,) if right is None else (left, right)
    return torch.is_grad_enabled() and any(where == "u" and value.requires_grad for where, value in operands)


def _expect(adjacency: Adjacency, left: Operand, right: Operand | None) -> None:
    for operand in (left,) if right is None else (left, right):
        _expect_rows(adjacency, operand)
        if not operand[1].is_floating_point():
            remedy = "Convert it, for example with .float()."
            raise InputError(f"feature at {operand[0]}", operand[1].dtype, "is not floating-point", remedy)


def _expect_rows(adjacency: Adjacency, operand: Operand) -> None:
    where, value = operand
    counts = {"u": adjacency.source_count, "v": adjacency.destination_count, "e": adjacency.edge_count}
    if value.dim() == 0 or value.shape[0] != counts[where]:
        remedy = f"Give a tensor of {counts[where]} rows."
        raise InputError(f"feature at {where}", tuple(value.shape), "does not match the graph's rows", remedy)
    if value.device != adjacency.device:
        remedy = "Move it, or the graph with graph.to(device)."
        raise InputError(f"feature at {where}", str(value.device), f"is not on {adjacency.device}", remedy)
