"""Random walks along edges, many at once, on the graph's device.

>>> walks = random_walk(graph, seeds, length=5, restart_prob=0.5)
>>> walks.nodes    # [seeds, 6]: each seed, then where its walk went; -1 after its end
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.structure.adjacency import Adjacency
from loadmaster.executor.graph.structure.blocks import expect_no_block
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.executor.graph.structure.ids import expect_within, id_tensor
from loadmaster.executor.graph.structure.schema import RelationKey


class Walks(NamedTuple):
    """Nodes and edges of random walks. A walk that is over has -1 from there on.

    Attributes:
        nodes: [walks, steps + 1], ids within the types of node.
        edges: [walks, steps], ids: within the relations of a metapath, else of the graph.
    """

    nodes: Tensor
    edges: Tensor


def random_walk(
    graph: Graph,
    seeds: Tensor | Sequence[int],
    length: int | None = None,
    *,
    metapath: Sequence[RelationKey] | None = None,
    restart_prob: float = 0.0,
    generator: torch.Generator | None = None,
) -> Walks:
    """Walk from each seed: every edge that begins at a node is equally likely. At a node without any, a walk is over.

    Args:
        seeds: where walks begin; a node may come several times.
        length: how many steps, on a graph with nodes of one type, along edges of any relation.
        metapath: the relation of each step, instead.
        restart_prob: with which a walk is over before each step, so that whoever walks again starts at a seed.
        generator: of the graph's device; the same state gives the same walks.

    Raises:
        InputError: a seed does not name a node; not one of length and metapath is given; a relation of the metapath
            does not begin where the one before ends; the probability is not from 0 to 1.
    """
    expect_no_block("graph", graph)
    if not 0 <= restart_prob <= 1:
        raise InputError("restart_prob", restart_prob, "is no probability", "Give a number from 0 to 1.")
    steps, first_type = _steps(graph, length, metapath)
    ids = id_tensor("seeds", seeds, graph.device)
    expect_within("seeds", ids, graph.schema.source_counts[first_type])
    nodes, edges = [ids.to(graph.id_dtype)], []
    goes_on = torch.ones(ids.numel(), dtype=torch.bool, device=graph.device)
    for adjacency in steps:
        ptr, neighbour, edge = adjacency.csr()
        at = nodes[-1].long().clamp(min=0)
        degree = ptr[at + 1] - ptr[at]
        drawn = torch.rand(2, ids.numel(), generator=generator, dtype=torch.float64, device=graph.device)
        goes_on = goes_on & (degree > 0) & (drawn[0] >= restart_prob)
        if adjacency.edge_count == 0:
            nodes.append(torch.full_like(nodes[0], -1))
            edges.append(nodes[-1])
            continue
        position = (ptr[at] + (drawn[1] * degree).long()).clamp(max=adjacency.edge_count - 1)
        nodes.append(torch.where(goes_on, neighbour[position], -1))
        edges.append(torch.where(goes_on, position if edge is None else edge[position], -1).to(graph.id_dtype))
    none = torch.empty(ids.numel(), 0, dtype=graph.id_dtype, device=graph.device)
    return Walks(torch.stack(nodes, 1), torch.stack(edges, 1) if edges else none)


def _steps(graph: Graph, length: int | None, metapath: Sequence[RelationKey] | None) -> tuple[Sequence[Adjacency], int]:
    """The edges of each step, and the type of node that walks begin at."""
    schema = graph.schema
    if (length is None) == (metapath is None):
        raise InputError("length", length, "or metapath: one of both is needed", "Give length= or metapath=.")
    if metapath is None:
        if not isinstance(length, int) or length < 0:
            raise InputError("length", length, "is no number of steps", "Give one >= 0.")
        if not schema.one_type:
            raise InputError("length", length, "does not say along which relations", "Give metapath=.")
        return [graph.adjacency] * length, 0
    ends = [schema.ends(schema.relation(key)) for key in metapath]
    for at, ((_, last), (first, _)) in enumerate(pairwise(ends)):
        if first != last:
            found, names = f"{metapath[at]}, {metapath[at + 1]}", schema.node_types
            problem = f"lead to {names[last]} and go on from {names[first]}"
            raise InputError("metapath", found, problem, "Give relations that follow each other.")
    if not ends:
        raise InputError("metapath", [], "has no step", "Give a relation for each step.")
    return [graph.relation_adjacency(key) for key in metapath], ends[0][0]
