"""Blocks: the sampled edges into some nodes, as a layer of a network reads them."""

from __future__ import annotations

from typing import Self

from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.structure.adjacency import MapTensor
from loadmaster.executor.graph.structure.building import Parts
from loadmaster.executor.graph.structure.graph import Graph


class Block(Graph):
    """Edges from source nodes to destination nodes, which are the first source nodes of each type.

    Edges are sorted by relation, then by destination: so compiled layers need not sort them. ``srcdata`` and
    ``dstdata`` are data of their own; a layer reads the former and writes the latter.

    Attributes:
        source_ids, destination_ids: of each type of node, the ids in the graph that was sampled.
        edge_ids: [edges], the ids in that graph, counted over all relations.
    """

    source_ids: tuple[Tensor, ...]
    destination_ids: tuple[Tensor, ...]
    edge_ids: Tensor

    @classmethod
    def of_sample(
        cls, parts: Parts, source_ids: tuple[Tensor, ...], destination_ids: tuple[Tensor, ...], edge_ids: Tensor
    ) -> Block:
        """Make a block of parts that are known to fit, with edges sorted by relation, then by destination."""
        block = cls.of_parts(parts)
        block.source_ids, block.destination_ids, block.edge_ids = source_ids, destination_ids, edge_ids
        return block

    def _set(self, parts: Parts) -> None:
        super()._set(parts)
        self._destination_frames = self._frames("destination data", self.schema.destination_counts)

    def num_src_nodes(self, node_type: str | None = None) -> int:
        """Number of source nodes of a type; None: of all."""
        return self.num_nodes(node_type)

    def num_dst_nodes(self, node_type: str | None = None) -> int:
        """Number of destination nodes of a type; None: of all."""
        if node_type is None:
            return self.schema.destination_count
        return self.schema.destination_counts[self.schema.node_type(node_type)]

    def reverse(self) -> Graph:
        """Refuse to reverse: destinations would not be the first sources."""
        raise InputError("block", repr(self), "cannot be reversed", "Sample the reversed graph.")

    def _mapped(self, each: MapTensor) -> Self:
        block = super()._mapped(each)
        block.source_ids = tuple(each(ids) for ids in self.source_ids)
        block.destination_ids = tuple(each(ids) for ids in self.destination_ids)
        block.edge_ids = each(self.edge_ids)
        return block


def expect_no_block(field: str, graph: Graph) -> None:
    """Refuse blocks where sources and destinations must be the same nodes."""
    if isinstance(graph, Block):
        raise InputError(field, repr(graph), "is a block", "Give the graph that was sampled.")
