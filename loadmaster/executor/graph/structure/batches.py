"""Many small graphs as one: their nodes and edges side by side, and sums, means and maxima over each graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.messages.functions import ReduceOperator
from loadmaster.executor.graph.messages.sparse import spmm
from loadmaster.executor.graph.structure.adjacency import Adjacency, MapTensor
from loadmaster.executor.graph.structure.blocks import expect_no_block
from loadmaster.executor.graph.structure.building import Parts
from loadmaster.executor.graph.structure.frames import Frame
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.executor.graph.structure.schema import RelationKey, Schema


class GraphBatch(Graph):
    """Graphs side by side: within each type and each relation, the first graph's nodes and edges come first.
    ``node_sizes`` are the nodes of each graph by type of node; ``edge_sizes`` the edges of each by relation."""

    node_sizes: tuple[tuple[int, ...], ...]
    edge_sizes: tuple[tuple[int, ...], ...]

    @property
    def batch_size(self) -> int:
        """Number of graphs in the batch."""
        return len(self.node_sizes[0])

    def _mapped(self, each: MapTensor) -> Self:
        made = super()._mapped(each)
        made.node_sizes, made.edge_sizes = self.node_sizes, self.edge_sizes
        return made


def batch(graphs: Sequence[Graph]) -> GraphBatch:
    """Join many graphs to one. Data that all of them have come along. InputError: there are none, one is a block, or
    their types, relations or devices differ."""
    if not graphs:
        raise InputError("graphs", 0, "are none", "Give at least one graph.")
    first = graphs[0]
    for i, graph in enumerate(graphs):
        expect_no_block(f"graphs[{i}]", graph)
        if (graph.node_types, graph.relations, graph.device) != (first.node_types, first.relations, first.device):
            problem = "has other types of nodes, relations or another device than the first"
            raise InputError(f"graphs[{i}]", repr(graph), problem, "Batch graphs of one kind on one device.")
    node_sizes = tuple(tuple(g.schema.source_counts[t] for g in graphs) for t in range(len(first.node_types)))
    edge_sizes = tuple(tuple(g.num_edges(r) for g in graphs) for r in range(first.relation_count))
    counts = tuple(sum(sizes) for sizes in node_sizes)
    schema = Schema(first.node_types, counts, counts, first.relations)
    dtype = max((g.id_dtype for g in graphs), key=lambda d: d.itemsize)
    if max(schema.source_count, sum(map(sum, edge_sizes))) > torch.iinfo(dtype).max:
        dtype = torch.int64
    before = [torch.tensor([0, *sizes]).cumsum(0).tolist() for sizes in node_sizes]
    ends: tuple[list[Tensor], list[Tensor]] = ([], [])
    ptr = [0]
    for relation in range(first.relation_count):
        for i, graph in enumerate(graphs):
            adjacency = graph.relation_adjacency(relation)
            pairs = zip(ends, (adjacency.source, adjacency.destination), schema.ends(relation), strict=True)
            for part, ids, node_type in pairs:
                part.append(ids.to(dtype) + (schema.source_offsets[node_type] + before[node_type][i]))
        ptr.append(ptr[-1] + sum(edge_sizes[relation]))
    nothing = torch.empty(0, dtype=dtype, device=first.device)
    source, destination = (torch.cat([nothing, *part]) for part in ends)
    made = GraphBatch.of_parts(Parts(schema, source, destination, tuple(ptr), None))
    made.node_sizes, made.edge_sizes = node_sizes, edge_sizes
    for name in first.node_types:
        made.nodes[name].data.update(_common([graph.nodes[name].data for graph in graphs]))
    for relation in range(first.relation_count):
        made.edges[relation].data.update(_common([graph.edges[relation].data for graph in graphs]))
    return made


def _common(frames: Sequence[Frame]) -> dict[str, Tensor]:
    names = [name for name in frames[0] if all(name in frame for frame in frames)]
    return {name: torch.cat([frame[name] for frame in frames]) for name in names}


def unbatch(graph: GraphBatch) -> list[Graph]:
    """The graphs of a batch, with their parts of its data."""
    schema = graph.schema
    nodes = [
        {key: torch.split(value, list(sizes)) for key, value in graph.nodes[name].data.items()}
        for name, sizes in zip(graph.node_types, graph.node_sizes, strict=True)
    ]
    edges = [
        {key: torch.split(value, list(sizes)) for key, value in graph.edges[r].data.items()}
        for r, sizes in enumerate(graph.edge_sizes)
    ]
    adjacencies = [graph.relation_adjacency(r) for r in range(graph.relation_count)]
    sources = [torch.split(a.source, list(sizes)) for a, sizes in zip(adjacencies, graph.edge_sizes, strict=True)]
    destinations = [
        torch.split(a.destination, list(sizes)) for a, sizes in zip(adjacencies, graph.edge_sizes, strict=True)
    ]
    before = [0] * len(schema.node_types)
    found = []
    for i in range(graph.batch_size):
        counts = tuple(sizes[i] for sizes in graph.node_sizes)
        own = Schema(schema.node_types, counts, counts, schema.relations)
        parts: tuple[list[Tensor], list[Tensor]] = ([graph.source[:0]], [graph.source[:0]])
        ptr = [0]
        for r in range(graph.relation_count):
            for part, ids, node_type in zip(parts, (sources[r][i], destinations[r][i]), own.ends(r), strict=True):
                part.append(ids - before[node_type] + own.source_offsets[node_type])
            ptr.append(ptr[-1] + graph.edge_sizes[r][i])
        one = Graph.of_parts(Parts(own, torch.cat(parts[0]), torch.cat(parts[1]), tuple(ptr), None))
        for name, columns in zip(graph.node_types, nodes, strict=True):
            one.nodes[name].data.update({key: split[i] for key, split in columns.items()})
        for r, columns in enumerate(edges):
            one.edges[r].data.update({key: split[i] for key, split in columns.items()})
        found.append(one)
        before = [start + count for start, count in zip(before, counts, strict=True)]
    return found


def readout_nodes(
    graph: GraphBatch, field: str, reduce: ReduceOperator, weight: str | None = None, node_type: str | None = None
) -> Tensor:
    """Reduce a field of every graph's nodes, each times its ``weight`` if given: [graphs, ...]; zero without nodes."""
    index = graph.schema.node_type(node_type)
    return _readout(graph.nodes[node_type].data, graph.node_sizes[index], field, reduce, weight)


def readout_edges(
    graph: GraphBatch,
    field: str,
    reduce: ReduceOperator,
    weight: str | None = None,
    relation: RelationKey | None = None,
) -> Tensor:
    """Reduce a field of every graph's edges of a relation, as :func:`readout_nodes` does for nodes."""
    index = graph.schema.relation(relation)
    return _readout(graph.edges[index].data, graph.edge_sizes[index], field, reduce, weight)


def _readout(frame: Frame, sizes: Sequence[int], field: str, reduce: ReduceOperator, weight: str | None) -> Tensor:
    graphs = torch.arange(len(sizes), device=frame.device)
    owner = graphs.repeat_interleave(torch.tensor(sizes, device=frame.device), output_size=frame.rows)
    members = torch.arange(frame.rows, device=frame.device)
    adjacency = Adjacency(members, owner, frame.rows, len(sizes))
    if weight is None:
        return spmm(adjacency, "copy", ("u", frame[field]), None, reduce)
    return spmm(adjacency, "mul", ("u", frame[field]), ("e", frame[weight]), reduce)
