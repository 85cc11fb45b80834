"""Softmax over the edges that meet in a node, as attention takes it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.kernels.spmm_softmax import edge_softmax_op
from loadmaster.executor.graph.structure.schema import RelationKey

if TYPE_CHECKING:
    from loadmaster.executor.graph.structure.graph import Graph


def edge_softmax(
    graph: Graph, scores: Tensor, relation: RelationKey | None = None, norm_by: Literal["dst", "src"] = "dst"
) -> Tensor:
    """Softmax over all edges with the same destination, or source: exp(score) over their sum; number by number.

    Args:
        scores: [edges, ...], floating-point.
        relation: whose edges; None: all edges of a graph with one type of node.

    Raises:
        InputError: scores have no row for each edge, or are not floating-point.
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
