"""g-SpMM, g-SDDMM and softmax over edges on features of any shape; the first two run the built-in functions.

>>> spmm(adjacency, "mul", ("u", h), ("e", w), "sum")    # sum over in-edges of h[source] * w[edge]
>>> sddmm(adjacency, "dot", ("u", h), ("v", h))          # for every edge h[source] . h[destination]

``adjacency`` is ``graph.adjacency`` or ``graph.relation_adjacency(relation)``. Operands are (where, rows), where is u
(the source), v (the destination) or e (the edge). Differentiable in both. Kernels take features in two dimensions,
along which an operand is whole or repeated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from loadmaster.errors import InputError
from loadmaster.executor.graph.kernels import operators as kernels
from loadmaster.executor.graph.kernels.plain import CHUNK_NUMBERS, edge_messages
from loadmaster.executor.graph.kernels.softmax import edge_softmax_op
from loadmaster.executor.graph.kernels.spmm_messages import Layout, Message, Side, Target, Work, result_dtype
from loadmaster.executor.graph.messages.functions import MessageOperator, ReduceOperator
from loadmaster.executor.graph.structure.adjacency import Adjacency
from loadmaster.executor.graph.structure.schema import RelationKey

if TYPE_CHECKING:
    from loadmaster.executor.graph.structure.graph import Graph

Shape = tuple[int, ...]
Operand = tuple[Target, Tensor]
# By whether an operand is whole, 1, or repeated, 0, along the outer and the inner dimension.
LAYOUTS: dict[tuple[int, int], Layout] = {(1, 1): "full", (1, 0): "outer", (0, 1): "inner", (0, 0): "one"}


class Joined(NamedTuple):
    """Shapes and layouts by which two operands' rows are joined. ``shape`` is that of a result's row, by broadcasting,
    with a last 1 for ``dot``; ``expanded``, what an operand's rows are to be written out to first; None: as they are.
    """

    shape: Shape
    outer: int
    inner: int
    layouts: tuple[Layout, Layout]
    expanded: tuple[Shape | None, Shape | None]


def join_shapes(left: Shape, right: Shape, dot: bool, expand_first: int) -> Joined:
    """Choose how rows of these shapes are joined, as DGL joins them: broadcast from the last dimension on.
    ``expand_first`` is the operand, 0 or 1, to write out where two dimensions do not say how both are repeated.
    InputError: they do not broadcast; for ``dot``, there is no last dimension, or not the same one."""
    if dot and (not left or not right or left[-1] != right[-1]):
        raise InputError("message", (left, right), "have no last dimension in common", "Give rows of equal length.")
    rank = max(len(left), len(right))
    padded = [(1,) * (rank - len(shape)) + shape for shape in (left, right)]
    full: list[int] = []
    for a, b in zip(*padded, strict=True):
        if a != b and 1 not in (a, b):
            remedy = "Give rows that broadcast, from the last dimension on."
            raise InputError("message", (left, right), "are no shapes that can be joined", remedy)
        full.append(b if a == 1 else a)
    shape = (*full[:-1], 1) if dot else tuple(full)
    groups = _grouped(full, padded, dot)
    expanded: list[Shape | None] = [None, None]
    for operand in (expand_first, 1 - expand_first):
        if len(groups) > 2:
            padded[operand], expanded[operand] = tuple(full), tuple(full)
            groups = _grouped(full, padded, dot)
    groups = [(1, 1, 1)] * (2 - len(groups)) + groups
    (outer, *first), (inner, *second) = groups
    layouts = (LAYOUTS[first[0], second[0]], LAYOUTS[first[1], second[1]])
    return Joined(shape, outer, inner, layouts, (expanded[0], expanded[1]))


# Compilers look through the first; other calls find what they were told before.
remembered_join_shapes = lru_cache(maxsize=1024)(join_shapes)


def _grouped(full: Sequence[int], padded: Sequence[Shape], dot: bool) -> list[tuple[int, int, int]]:
    """Neighbouring dimensions along which both operands are whole, or repeated, together; 1 is left out."""
    groups: list[tuple[int, int, int]] = []
    dims = list(zip(full, *padded, strict=True))
    for i, (size, a, b) in enumerate(dims):
        last = dot and i == len(dims) - 1
        if size == 1 and not last:
            continue
        # Branches, not truths: a compiler that keeps sizes open settles them here.
        here = (size, 1 if a == size else 0, 1 if b == size else 0)
        if groups and not last and groups[-1][1:] == here[1:]:
            here = (groups.pop()[0] * size, *here[1:])
        groups.append(here)
    return groups


def rows_of(value: Tensor, expanded: Shape | None) -> Tensor:
    """Rows as kernels take them: [rows, numbers], contiguous."""
    rows = value.shape[0]
    if expanded is not None:
        padded = value.view(rows, *(1,) * (len(expanded) - value.dim() + 1), *value.shape[1:])
        value = padded.expand(rows, *expanded)
    if value.dim() != 2:
        value = value.reshape(rows, math.prod(value.shape[1:]))
    return value.contiguous()


def spmm(
    adjacency: Adjacency, operator: MessageOperator, left: Operand, right: Operand | None, reduce: ReduceOperator
) -> Tensor:
    """Reduce the messages of every destination's edges: [destinations, ...]; zero where there are none. Operands are
    [rows of their place, ...], their rows broadcast; ``copy`` takes the left alone. InputError: rows do not match the
    graph, numbers are not floating-point, or shapes do not broadcast."""
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
    """Message of every edge: [edges, ...]; InputError as :func:`spmm`."""
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


def product(
    adjacency: Adjacency, left: Tensor, right: Tensor | None, message: Message, outer: int, inner: int
) -> Tensor:
    """Product of each destination's messages: [destinations, outer * inner]; zero where there are none. Messages of a
    chunk of edges are made again when gradients flow, and gradients are right at zeros too. A row longer than a chunk
    is a chunk of its own. Waits for the device."""
    dtype = result_dtype(left, right)
    csc = adjacency.csc()
    ptr = csc.ptr.long()
    edge = csc.edge_ids()

    def chunk(left: Tensor, right: Tensor | None, first: int, last: int) -> Tensor:
        offsets = ptr[first : last + 1]
        begin, end = int(offsets[0]), int(offsets[-1])
        rows = torch.arange(first, last, device=ptr.device).repeat_interleave(offsets.diff(), output_size=end - begin)
        where: dict[Target, Tensor] = {"u": csc.neighbour[begin:end], "v": rows, "e": edge[begin:end]}
        messages = edge_messages(Work(message, "each", outer, inner), left, right, None, where)
        return torch.segment_reduce(messages.contiguous(), "prod", offsets=offsets - begin, axis=0, unsafe=True)

    parts = []
    step = max(1, CHUNK_NUMBERS // max(1, outer * inner))
    count = adjacency.destination_count
    first = 0
    while first < count:
        bound = ptr[first] + step
        last = min(count, max(first + 1, int(torch.searchsorted(ptr, bound, right=True)) - 1))
        parts.append(checkpoint(chunk, left, right, first, last, use_reentrant=False))
        first = last
    if not parts:
        return left.new_zeros((0, outer * inner), dtype=dtype)
    whole = torch.cat(parts).to(dtype)
    return whole.masked_fill((ptr.diff() == 0)[:, None], 0)


def edge_softmax(
    graph: Graph, scores: Tensor, relation: RelationKey | None = None, norm_by: Literal["dst", "src"] = "dst"
) -> Tensor:
    """Softmax over all edges with the same destination, or source: exp(score) over their sum; number by number.

    ``scores`` are [edges, ...], floating-point, of a relation's edges; None: all edges of a graph with one type of
    node. InputError: scores have no row for each edge, or are not floating-point.
    """
    if norm_by not in ("dst", "src"):
        raise InputError("norm_by", norm_by, "is no end of an edge", 'Use "dst" or "src".')
    adjacency = graph.adjacency_of(relation)
    if scores.dim() == 0 or scores.shape[0] != adjacency.edge_count:
        remedy = f"Give a tensor of {adjacency.edge_count} rows."
        raise InputError("scores", tuple(scores.shape), "have no row for each edge", remedy)
    if not scores.is_floating_point():
        raise InputError("scores", scores.dtype, "are not floating-point", "Convert them, for example with .float().")
    if scores.device != adjacency.device:
        raise InputError("scores", str(scores.device), f"are not on {adjacency.device}", "Move them, or the graph.")
    rows = adjacency.matrix(reverse=False) if norm_by == "dst" else adjacency.matrix(reverse=True).reversed()
    flat = scores.reshape(scores.shape[0], math.prod(scores.shape[1:])).contiguous()
    made: Tensor = edge_softmax_op(flat, *rows[:4], rows.source, rows.destination, rows.counts)
    return made.view(scores.shape)
