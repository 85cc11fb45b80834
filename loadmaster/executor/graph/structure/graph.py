"""The graph: an immutable structure on one device, with data of its nodes and edges that can be set.

>>> graph = Graph([0, 1, 2], [1, 2, 0])
>>> graph.ndata["h"] = torch.ones(3, 4)
>>> graph = Graph.from_relations({("author", "writes", "paper"): ([0, 1], [0, 0])}, {"author": 2, "paper": 1})

Nodes of all types are numbered consecutively, type by type: that number is a node's *row*. Edges are stored by
relation, each relation's in the order given; an edge's place there is its id, and ``edge_order`` says where it was
given.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.messages.graph_calls import PassesMessages
from loadmaster.executor.graph.structure.adjacency import Adjacency, Compressed, MapTensor, Pairs, pairs_of
from loadmaster.executor.graph.structure.building import Parts, from_relations, from_rows
from loadmaster.executor.graph.structure.frames import ColumnsByType, Edges, Frame, Nodes, RelationEnds, WithData
from loadmaster.executor.graph.structure.schema import RelationKey, Schema, Triple, expect_within, id_tensor


class Graph(PassesMessages):
    """Nodes and directed edges, of one type or several.

    Attributes:
        schema: types of nodes, relations, and counts.
        source, destination: [edges], rows of the nodes at both ends, edges by relation.
        relation_ptr: where each relation's edges begin, and the number of edges: numbers, not a tensor.
        edge_order: [edges], the place at which each edge was given; None where that is its id.
        adjacency: the edges of all relations, between rows.
    """

    def __init__(
        self,
        source: Any,
        destination: Any,
        *,
        node_count: int | None = None,
        node_counts: Mapping[str, int] | None = None,
        relation: Any = None,
        relations: Sequence[Triple] | int | None = None,
        id_dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Make a graph from the rows of both ends of every edge.

        Args:
            source, destination: [edges], tensors, arrays or lists; rows, counted over all types of nodes.
            node_count: of a graph with one type of node; None: as many as the edges name.
            node_counts: of each type, instead.
            relation: [edges], the number of each edge's relation; None: all edges have the only one.
            relations: (source type, name, destination type) of each, or how many there are between nodes of one type;
                None: as many as ``relation`` names.
            id_dtype: torch.int32 or torch.int64; None: int32 where all ids fit.
            device: None: that of ``source``.

        Raises:
            InputError: edges name no node or relation, or join nodes of other types than their relation says; ids do
                not fit their dtype; or a count is missing or not a count.
        """
        self._set(from_rows(source, destination, node_count, node_counts, relation, relations, id_dtype, device))

    @classmethod
    def from_relations(
        cls,
        edges: Mapping[Triple, tuple[Any, Any]],
        node_counts: Mapping[str, int] | None = None,
        *,
        id_dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Graph:
        """Make a graph from the edges of each relation, with ids counted within each type of node.

        ``edges`` gives for each (source type, name, destination type) both ends of its edges, perhaps none. The rest,
        and errors, are as in the constructor; ``node_counts`` None: as many as the edges name.
        """
        return cls.of_parts(from_relations(edges, node_counts, id_dtype, device))

    @classmethod
    def of_parts(cls, parts: Parts) -> Self:
        """Make a graph of parts that are known to fit."""
        graph = cls.__new__(cls)
        graph._set(parts)
        return graph

    def _set(self, parts: Parts) -> None:
        self.schema, self.source, self.destination, self.relation_ptr, self.edge_order = parts
        schema = self.schema
        self.adjacency = Adjacency(self.source, self.destination, schema.source_count, schema.destination_count)
        self._relation_adjacency: dict[int, Adjacency] = {}
        self._pairs: Pairs | None = None
        self._source_frames = self._frames("node data", schema.source_counts)
        self._destination_frames = self._source_frames
        self._edge_frames = self._frames("edge data", [self.num_edges(i) for i in range(self.relation_count)])

    def _frames(self, what: str, counts: Sequence[int]) -> tuple[Frame, ...]:
        return tuple(Frame(what, count, self.device) for count in counts)

    # Sizes and types.

    @property
    def device(self) -> torch.device:
        return self.source.device

    @property
    def id_dtype(self) -> torch.dtype:
        return self.source.dtype

    @property
    def node_types(self) -> tuple[str, ...]:
        return self.schema.node_types

    @property
    def relations(self) -> tuple[Triple, ...]:
        return self.schema.relations

    @property
    def relation_count(self) -> int:
        return len(self.schema.relations)

    def num_nodes(self, node_type: str | None = None) -> int:
        """Number of nodes of a type; None: of all."""
        if node_type is None:
            return self.schema.source_count
        return self.schema.source_counts[self.schema.node_type(node_type)]

    def num_edges(self, relation: RelationKey | None = None) -> int:
        """Number of edges of a relation; None: of all."""
        if relation is None:
            return self.relation_ptr[-1]
        start, stop = self.relation_range(self.schema.relation(relation))
        return stop - start

    def relation_range(self, relation: int) -> tuple[int, int]:
        """Return where the edges of a relation begin and end."""
        return self.relation_ptr[relation], self.relation_ptr[relation + 1]

    @property
    def relation(self) -> Tensor:
        """The number of each edge's relation: [edges], of the ids' dtype; made again each time."""
        sizes = torch.tensor(self.relation_ptr, dtype=self.id_dtype).diff().to(self.device, non_blocking=True)
        return torch.repeat_interleave(sizes, output_size=self.num_edges())

    def __repr__(self) -> str:
        nodes = ", ".join(f"{name}: {n}" for name, n in zip(self.node_types, self.schema.source_counts, strict=True))
        names = ", ".join("-".join(triple) for triple in self.relations[:8])
        more = ", ..." if self.relation_count > 8 else ""
        kind = type(self).__name__
        return (
            f"{kind}(nodes {{{nodes}}}, {self.num_edges()} edges of {{{names}{more}}}, {self.id_dtype}, {self.device})"
        )

    # Data.

    @property
    def nodes(self) -> Nodes:
        """Nodes by type: called with one, ids of its nodes; ``nodes[type].data``: their data."""
        return Nodes(self._source_frames, self.schema.node_type, self.id_dtype)

    @property
    def srcnodes(self) -> Nodes:
        """Nodes as sources: other nodes than ``dstnodes`` in blocks only."""
        return self.nodes

    @property
    def dstnodes(self) -> Nodes:
        """Nodes as destinations, by type."""
        return Nodes(self._destination_frames, self.schema.node_type, self.id_dtype)

    @property
    def edges(self) -> Edges:
        """Edges by relation: called with one, ends of its edges, by type; ``edges[relation].data``: their data."""
        return Edges(self._edge_frames, self.schema.relation, self.relation_adjacency)

    @property
    def ndata(self) -> Frame | ColumnsByType:
        """Data of all nodes: of one type, tensors by name; of several, {type: tensor} by name."""
        return self._columns(self.node_types, self._source_frames)

    @property
    def edata(self) -> Frame | ColumnsByType:
        """Data of all edges: of one relation, tensors by name; of several, {relation: tensor} by name."""
        return self._columns(self.relations, self._edge_frames)

    @property
    def srcdata(self) -> Frame | ColumnsByType:
        """Data of nodes as sources: other data than ``dstdata`` in blocks only."""
        return self._columns(self.node_types, self._source_frames)

    @property
    def dstdata(self) -> Frame | ColumnsByType:
        """Data of nodes as destinations."""
        return self._columns(self.node_types, self._destination_frames)

    def _columns(self, keys: tuple[str, ...] | tuple[Triple, ...], frames: tuple[Frame, ...]) -> Frame | ColumnsByType:
        return frames[0] if len(frames) == 1 else ColumnsByType(keys, frames)

    @contextlib.contextmanager
    def local_scope(self) -> Iterator[None]:
        """Restore all data after the ``with`` block, whatever is set or deleted inside."""
        frames = [*self._source_frames, *self._destination_frames, *self._edge_frames]
        before = [dict(frame.columns) for frame in frames]
        try:
            yield
        finally:
            for frame, columns in zip(frames, before, strict=True):
                frame.columns = columns

    # Structure.

    def relation_adjacency(self, relation: RelationKey | None = None) -> Adjacency:
        """The edges of a relation, with ids counted within the types of node at its ends."""
        index = self.schema.relation(relation)
        if self.relation_count == 1 and self.schema.one_type:
            return self.adjacency
        if index not in self._relation_adjacency:
            schema = self.schema
            start, stop = self.relation_range(index)
            source_type, destination_type = schema.ends(index)
            with torch.inference_mode(False):  # it is kept, and serves training too
                self._relation_adjacency[index] = Adjacency(
                    self.source[start:stop] - schema.source_offsets[source_type],
                    self.destination[start:stop] - schema.destination_offsets[destination_type],
                    schema.source_counts[source_type],
                    schema.destination_counts[destination_type],
                )
        return self._relation_adjacency[index]

    def relation_ends(self, relation: RelationKey | None = None) -> RelationEnds:
        """The edges of a relation with all data around them."""
        index = self.schema.relation(relation)
        source_type, destination_type = self.schema.ends(index)
        return RelationEnds(
            self.relation_adjacency(index),
            self._source_frames[source_type],
            self._destination_frames[destination_type],
            self._edge_frames[index],
        )

    def node_frame(self, node_type: str | None = None) -> Frame:
        """The data of nodes of a type, as destinations."""
        return self._destination_frames[self.schema.node_type(node_type)]

    def csr(self) -> Compressed:
        """All edges by the row of their source."""
        return self.adjacency.csr()

    def csc(self) -> Compressed:
        """All edges by the row of their destination."""
        return self.adjacency.csc()

    def create_formats_(self) -> Self:
        """Make all formats of each relation, which are else made when first needed; return the graph.
        ``torch.compile(..., fullgraph=True)`` needs that, as making it waits for the device."""
        for index in range(self.relation_count):
            self.relation_adjacency(index).matrix(reverse=True)
        return self

    def in_degrees(self, nodes: Any = None, relation: RelationKey | None = None) -> Tensor:
        """Edges that end at each node (of those given): int64; of a relation, or over all of a graph of one type."""
        return _of(self.adjacency_of(relation).in_degrees(), nodes)

    def out_degrees(self, nodes: Any = None, relation: RelationKey | None = None) -> Tensor:
        """Edges that begin at each node (of those given); see :meth:`in_degrees`."""
        return _of(self.adjacency_of(relation).out_degrees(), nodes)

    def adjacency_of(self, relation: RelationKey | None) -> Adjacency:
        """The edges of a relation; None: of all of them, where there is one type of node."""
        if relation is None and self.schema.one_type:
            return self.adjacency
        return self.relation_adjacency(relation)

    def destination_pairs(self) -> Pairs:
        """The distinct pairs of a destination and a relation."""
        if self._pairs is None:
            count = self.schema.destination_count
            self._pairs = pairs_of(self.destination, self.source, self.relation, count)
        return self._pairs

    def filter_nodes(self, predicate: Callable[[WithData], Tensor], node_type: str | None = None) -> Tensor:
        """Ids of nodes of a type for which ``predicate(nodes)`` is true, a truth for each from ``nodes.data``."""
        found = self.nodes[node_type]
        return _true_ids(predicate(found), found.data.rows, self.id_dtype)

    def filter_edges(self, predicate: Callable[..., Tensor], relation: RelationKey | None = None) -> Tensor:
        """Ids, within a relation, of edges for which ``predicate(edges)`` is true; see :meth:`apply_edges`."""
        rows = self.relation_ends(relation).edge.rows
        return _true_ids(predicate(self.edge_batch(relation)), rows, self.id_dtype)

    # Other graphs.

    def reverse(self) -> Graph:
        """The graph with sources and destinations exchanged; data of nodes and edges are shared."""
        schema = self.schema
        relations = tuple((destination, name, source) for source, name, destination in schema.relations)
        turned = Schema(schema.node_types, schema.destination_counts, schema.source_counts, relations)
        parts = Parts(turned, self.destination, self.source, self.relation_ptr, self.edge_order)
        graph = Graph.of_parts(parts)
        graph.adjacency = self.adjacency.reverse()
        graph._take_frames(self, lambda tensor: tensor)
        return graph

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """Copy to another device, with data and whatever has been made of the structure; itself if it is there."""
        wanted = torch.device(device)
        if wanted == self.device or (wanted.type == self.device.type == "cuda" and wanted.index is None):
            return self
        return self._mapped(lambda tensor: tensor.to(wanted, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Copy to pinned host memory, with data and whatever has been made of the structure."""
        return self._mapped(lambda tensor: tensor.pin_memory())

    def _mapped(self, each: MapTensor) -> Self:
        adjacency = self.adjacency.mapped(each)
        order = None if self.edge_order is None else each(self.edge_order)
        parts = Parts(self.schema, adjacency.source, adjacency.destination, self.relation_ptr, order)
        graph = type(self).of_parts(parts)
        graph.adjacency = adjacency
        graph._take_frames(self, each)
        return graph

    def _take_frames(self, other: Graph, each: MapTensor) -> None:
        """Take the data of another graph of the same nodes and edges, with ``each`` applied to every tensor."""
        for mine, given in (
            (self._source_frames, other._source_frames),
            (self._destination_frames, other._destination_frames),
            (self._edge_frames, other._edge_frames),
        ):
            for frame, source in zip(mine, given, strict=True):
                frame.columns = {name: each(value) for name, value in source.columns.items()}


def _of(degrees: Tensor, nodes: Any) -> Tensor:
    if nodes is None:
        return degrees
    ids = id_tensor("nodes", nodes, degrees.device)
    expect_within("nodes", ids, degrees.numel())
    return degrees[ids.long()]


def _true_ids(truths: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    if truths.dtype != torch.bool or tuple(truths.reshape(-1).shape) != (rows,):
        found = f"{truths.dtype} {list(truths.shape)}"
        raise InputError("predicate", found, "is no truth for each", f"Return {rows} booleans.")
    return truths.reshape(-1).nonzero().view(-1).to(dtype)
