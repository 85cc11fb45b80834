"""Parts of a graph as graphs: by nodes, by edges, by relations. Data come along; ``_ID`` says what each was before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from loadmaster.executor.graph.structure.blocks import expect_no_block
from loadmaster.executor.graph.structure.building import Parts
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.executor.graph.structure.schema import RelationKey, Schema, expect_within, id_tensor

PARENT_ID = "_ID"  # of nodes within their type, of edges within their relation


def node_subgraph(graph: Graph, nodes: Any | Mapping[str, Any]) -> Graph:
    """Subgraph of these nodes, in the order given, and all edges between them.

    ``nodes`` are ids, or booleans for all; by type where there are several, none of types that are not named.
    InputError: an id names no node, or the graph is a block.
    """
    expect_no_block("graph", graph)
    schema = graph.schema
    given = nodes if isinstance(nodes, Mapping) else {schema.node_types[schema.node_type(None)]: nodes}
    by_type = {schema.node_type(name): ids for name, ids in given.items()}
    nothing = torch.empty(0, dtype=graph.id_dtype, device=graph.device)
    kept = [
        _chosen(f"nodes[{name!r}]", by_type[i], schema.source_counts[i], graph, "node") if i in by_type else nothing
        for i, name in enumerate(schema.node_types)
    ]
    rows = torch.cat([ids + offset for ids, offset in zip(kept, schema.source_offsets, strict=False)])
    place = torch.full((schema.source_count,), -1, dtype=graph.id_dtype, device=graph.device)
    place[rows.long()] = torch.arange(rows.numel(), dtype=graph.id_dtype, device=graph.device)
    source, destination = place[graph.source.long()], place[graph.destination.long()]
    edges = ((source >= 0) & (destination >= 0)).nonzero().view(-1)
    return _part(graph, kept, source[edges], destination[edges], edges)


def edge_subgraph(graph: Graph, edges: Any | Mapping[RelationKey, Any], keep_nodes: bool = False) -> Graph:
    """Subgraph of these edges, each relation's in the order given, and the nodes at their ends.

    ``edges`` are ids, or booleans for all; by relation where there are several, none of those not named. InputError: an
    id names no edge, or the graph is a block.
    """
    expect_no_block("graph", graph)
    schema = graph.schema
    given = edges if isinstance(edges, Mapping) else {schema.relation(None): edges}
    by_relation = {schema.relation(key): ids for key, ids in given.items()}
    chosen = [
        _chosen(f"edges of {schema.relations[i]}", by_relation[i], graph.num_edges(i), graph, "edge").long()
        + graph.relation_ptr[i]
        for i in sorted(by_relation)
    ]
    ids = torch.cat(chosen) if chosen else torch.empty(0, dtype=torch.int64, device=graph.device)
    source, destination = graph.source[ids], graph.destination[ids]
    if keep_nodes:
        every = [graph.nodes(name) for name in graph.node_types]
        return _part(graph, every, source, destination, ids)
    rows, both = torch.unique(torch.cat([source, destination]), return_inverse=True)
    source, destination = both.to(graph.id_dtype).view(2, ids.numel()).unbind()
    bounds = torch.tensor(schema.source_offsets, dtype=rows.dtype, device=rows.device)
    sizes = torch.searchsorted(rows, bounds).diff().tolist()
    kept = [part - offset for part, offset in zip(rows.split(sizes), schema.source_offsets, strict=False)]
    return _part(graph, kept, source, destination, ids)


def relation_subgraph(graph: Graph, relations: Sequence[RelationKey]) -> Graph:
    """Subgraph of these relations: their edges in the graph's order, and all nodes of the types at their ends.
    InputError: a key names no relation, or the graph is a block."""
    expect_no_block("graph", graph)
    schema = graph.schema
    indices = sorted({schema.relation(key) for key in relations})
    types = sorted({node_type for i in indices for node_type in schema.ends(i)})
    counts = tuple(schema.source_counts[t] for t in types)
    names = tuple(schema.node_types[t] for t in types)
    made = Schema(names, counts, counts, tuple(schema.relations[i] for i in indices))
    nothing = torch.empty(0, dtype=graph.id_dtype, device=graph.device)
    ends: tuple[list[Tensor], list[Tensor]] = ([nothing], [nothing])
    ptr = [0]
    for new, old in enumerate(indices):
        adjacency = graph.relation_adjacency(old)
        for part, ids, node_type in zip(ends, (adjacency.source, adjacency.destination), made.ends(new), strict=True):
            part.append(ids + made.source_offsets[node_type])
        ptr.append(ptr[-1] + graph.num_edges(old))
    found = Graph.of_parts(Parts(made, torch.cat(ends[0]), torch.cat(ends[1]), tuple(ptr), None))
    for name in names:
        found.nodes[name].data.update(graph.nodes[name].data)
    for new, old in enumerate(indices):
        found.edges[new].data.update(graph.edges[old].data)
    return found


def _chosen(field: str, ids: Any, count: int, graph: Graph, what: str) -> Tensor:
    if isinstance(ids, Tensor) and ids.dtype == torch.bool and ids.shape == (count,):
        ids = ids.nonzero().view(-1)
    found = id_tensor(field, ids, graph.device)
    expect_within(field, found, count, what)
    return found.to(graph.id_dtype)


def _part(graph: Graph, nodes: Sequence[Tensor], source: Tensor, destination: Tensor, edges: Tensor) -> Graph:
    """Make a part of a graph: new rows of both ends, old ids of nodes by type and of edges over all relations."""
    old = graph.schema
    counts = tuple(ids.numel() for ids in nodes)
    sizes = torch.bincount(graph.relation[edges], minlength=graph.relation_count)
    ptr = (0, *sizes.cumsum(0).tolist())
    part = Graph.of_parts(Parts(Schema(old.node_types, counts, counts, old.relations), source, destination, ptr, None))
    for name, ids in zip(old.node_types, nodes, strict=True):
        frame = part.nodes[name].data
        frame.update({key: value.index_select(0, ids) for key, value in graph.nodes[name].data.items()})
        frame[PARENT_ID] = ids
    for i, ids in enumerate(torch.split(edges, sizes.tolist())):
        own = ids - graph.relation_ptr[i]
        frame = part.edges[i].data
        frame.update({key: value.index_select(0, own) for key, value in graph.edges[i].data.items()})
        frame[PARENT_ID] = own.to(graph.id_dtype)
    return part
