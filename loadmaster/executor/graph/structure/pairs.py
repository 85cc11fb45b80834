"""Distinct pairs of a node and a relation: what depends on both alone needs a row for each pair, not for each edge."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loadmaster.executor.graph.structure.adjacency import Compressed, compress


class Pairs(NamedTuple):
    """The distinct (node, relation) pairs at one end of the edges, by relation, then by node.

    Attributes:
        node: [pairs], the node's row among all nodes.
        relation: [pairs].
        edges: those of each pair.
    """

    node: Tensor
    relation: Tensor
    edges: Compressed

    @property
    def pair_count(self) -> int:
        """Number of distinct (node, relation) pairs."""
        return self.node.numel()


def pair_keys(node: Tensor, relation: Tensor, node_count: int) -> Tensor:
    """One number for the node and the relation of each edge, ordered by relation, then by node: int64 [edges]."""
    return relation.long() * max(1, node_count) + node


def of_pair_keys(keys: Tensor, node_count: int) -> tuple[Tensor, Tensor]:
    """Relation and node of each number that :func:`pair_keys` made."""
    relation = keys // max(1, node_count)
    return relation, keys - relation * max(1, node_count)


def pairs_of(rows: Tensor, neighbours: Tensor, relation: Tensor, row_count: int) -> Pairs:
    """The pairs of ``rows`` [edges] and ``relation`` [edges]. Waits for the device."""
    dtype = rows.dtype
    distinct, edge_pair = torch.unique(pair_keys(rows, relation, row_count), return_inverse=True)
    kind, node = of_pair_keys(distinct, row_count)
    edges = compress(edge_pair.to(dtype), neighbours, node.numel())
    return Pairs(node.to(dtype), kind.to(dtype), edges)
