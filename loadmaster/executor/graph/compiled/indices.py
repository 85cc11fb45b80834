"""Indices of one graph for the kernels of a compiled layer: rows of every space, and which row belongs to which.

All of it is made when a kernel first asks, on the graph's device. Counts and longest rows, which the host must know,
are taken from the graph's own counts where possible; :meth:`Indices.learn` asks the device for the rest at once.

Edges are sorted by relation, then target, then as they were given (:attr:`Indices.edge_order`); pairs by relation, then
node; nodes by type. So the edges of one relation, or of one target and relation, are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.structure.adjacency import of_pair_keys, pair_keys
from loadmaster.executor.graph.structure.blocks import Block
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.executor.graph.structure.schema import choose_dtype
from loadmaster.models.graph.inline import OF_NODES
from loadmaster.models.graph.spaces import Space

Groups = tuple[Tensor, Tensor | None]
_END_OF: dict[Space, Space] = {"source_pair": "source", "target_pair": "target"}


@dataclass(frozen=True)
class Pairs:
    """The distinct pairs of a node and a relation, by relation, then by node: [pairs].

    Attributes:
        of_edge: [edges], the pair of each edge.
        ptr: [pairs + 1], where each pair's edges begin in ``order``: [edges], by pair, then number; None: 0, 1, 2, ...
        relation_ptr: [relations + 1], where the pairs of each relation begin; the same on the host as a list.
    """

    node: Tensor
    relation: Tensor
    of_edge: Tensor
    ptr: Tensor
    order: Tensor | None
    relation_ptr: Tensor
    relation_list: list[int]


@dataclass(frozen=True)
class Pairing:
    """Pairs whose number is on the device still.

    Attributes:
        node, relation: [edges], of each edge.
        order: [edges], edges by pair; None: they are in that order.
        pair: [edges], the pair of each edge in that order.
        relation_ptr: [relations + 1], where the pairs of each relation begin; the last one is the number of pairs.
    """

    node: Tensor
    relation: Tensor
    order: Tensor | None
    pair: Tensor
    relation_ptr: Tensor

    @classmethod
    def of(cls, node: Tensor, relation: Tensor, relation_ptr: Tensor, node_count: int, *, is_sorted: bool) -> Pairing:
        """Pair the edges, which are sorted by relation, without waiting for the device. ``node`` and ``relation`` are
        [edges], of one dtype; ``relation_ptr`` [relations + 1] says where each relation's edges begin; ``is_sorted``,
        whether these are sorted by node."""
        edges, relations, index = node.numel(), relation_ptr.numel() - 1, node.dtype
        order = None
        is_first = torch.ones(edges, dtype=torch.bool, device=node.device)
        if is_sorted:
            is_first[1:] = (node[1:] != node[:-1]) | (relation[1:] != relation[:-1])
        else:
            keys = relation.to(choose_dtype(None, relations * node_count)) * node_count + node
            keys, order = torch.sort(keys, stable=True)
            order = order.to(index)
            is_first[1:] = keys[1:] != keys[:-1]
        so_far = torch.cumsum(is_first, 0, dtype=index)
        before = torch.cat((so_far.new_zeros(1), so_far)).index_select(0, relation_ptr)
        return cls(node, relation, order, so_far - 1, before)

    def counted(self, relation_list: list[int]) -> Pairs:
        """Return the pairs, of which the host knows the number."""
        bounds = torch.arange(relation_list[-1] + 1, dtype=self.pair.dtype, device=self.pair.device)
        ptr = torch.searchsorted(self.pair, bounds, out_int32=bounds.dtype == torch.int32)
        first, of_edge = ptr[:-1], self.pair
        if self.order is not None:
            first = self.order.index_select(0, first)
            of_edge = torch.empty_like(self.pair).index_copy_(0, self.order.long(), self.pair)
        node, relation = (x.index_select(0, first) for x in (self.node, self.relation))
        return Pairs(node, relation, of_edge, ptr, self.order, self.relation_ptr, relation_list)


class Indices:
    """Indices of one graph on one device, each made when first needed and kept. All are int32 where they fit. The rows
    of ``node``, ``source`` and ``target`` are the same. ``result_rows`` are the rows of nodes that are a layer's
    results; None: all."""

    def __init__(
        self,
        ends: tuple[Tensor, Tensor, Tensor],
        node_count: int,
        relation_count: int,
        node_type_ptr: Sequence[int],
        edge_order: Tensor | None = None,
        relation_ptr: Sequence[int] | None = None,
        result_rows: Tensor | None = None,
    ) -> None:
        source, target, relation = ends
        self.device, self.result_rows = source.device, result_rows
        self._edge_order = edge_order
        self._edges: dict[Space, Tensor] = {"source": source, "target": target, "relation": relation}
        self._type_list = [*node_type_ptr]
        self._relation_list = None if relation_ptr is None else [*relation_ptr]
        self._rows: dict[Space, int] = {
            "one": 1,
            "relation": relation_count,
            "node_type": len(node_type_ptr) - 1,
            "node": node_count,
            "source": node_count,
            "target": node_count,
            "edge": source.numel(),
        }
        self._index = choose_dtype(None, max(source.numel(), node_count))
        self._pairs: dict[Space, Pairs] = {}
        self._longest: dict[tuple[Space, Space], int] = {}
        self._kept: dict[Hashable, Any] = {}

    @classmethod
    def of(cls, graph: Graph) -> Indices:
        """Return the indices of a graph or a block; made once for each, and kept as long as it is. In a block the nodes
        are those that edges begin at; :attr:`result_rows` are those that edges end at."""
        if graph not in _of_graphs:
            _of_graphs[graph] = cls._of_block(graph) if isinstance(graph, Block) else cls._of_graph(graph)
        return _of_graphs[graph]

    @classmethod
    def _of_graph(cls, graph: Graph) -> Indices:
        schema = graph.schema
        counts = schema.source_count, len(schema.relations), schema.source_offsets
        ends = graph.source, graph.destination, graph.relation
        return cls.from_edges(*ends, *counts, graph.edge_order, graph.relation_ptr)

    @classmethod
    def _of_block(cls, block: Block) -> Indices:
        """Make the indices of a block without waiting for the device: its edges are sorted already."""
        schema, device = block.schema, block.device
        index = choose_dtype(None, max(block.num_edges(), schema.source_count))
        target = block.destination.to(index)
        relation = block.relation.to(index)
        # Of each type, nodes that edges end at are the first of those that edges begin at.
        shifts = [schema.source_offsets[t] - schema.destination_offsets[t] for t in range(len(schema.node_types))]
        if any(shifts):
            of_relation = [shifts[schema.ends(r)[1]] for r in range(len(schema.relations))]
            target = target + _on(device, of_relation, index).index_select(0, relation)
        rows = None
        if schema.destination_counts != schema.source_counts:
            starts = zip(schema.source_offsets, schema.destination_counts, strict=False)
            rows = torch.cat([torch.arange(start, start + count, device=device) for start, count in starts])
        counts = schema.source_count, len(schema.relations), schema.source_offsets
        return cls((block.source.to(index), target, relation), *counts, None, block.relation_ptr, rows)

    @classmethod
    def from_edges(
        cls,
        source: Tensor,
        target: Tensor,
        relation: Tensor,
        node_count: int,
        relation_count: int,
        node_type_ptr: Sequence[int],
        edge_order: Tensor | None = None,
        relation_ptr: Sequence[int] | None = None,
    ) -> Indices:
        """Make the indices of edges in any order, which are known to name nodes and relations.

        Args:
            source, target, relation: [edges], integers.
            node_type_ptr: [types + 1], where the nodes of each type begin.
            edge_order: [edges], the place at which the caller gave each edge; None: this one.
            relation_ptr: [relations + 1], where each relation's edges begin once they are sorted; None: unknown.
        """
        index = choose_dtype(None, max(source.numel(), node_count))
        keys, order = torch.sort(pair_keys(target, relation, node_count), stable=True)
        kinds, targets = of_pair_keys(keys, node_count)
        ends = source[order].to(index), targets.to(index), kinds.to(index)
        given = (order if edge_order is None else edge_order[order]).to(index)
        return cls(ends, node_count, relation_count, node_type_ptr, given, relation_ptr)

    @property
    def edge_order(self) -> Tensor:
        """The place at which the caller gave the edge of each row: [edges]."""
        if self._edge_order is None:
            self._edge_order = torch.arange(self.rows("edge"), dtype=self._index, device=self.device)
        return self._edge_order

    def learn(self, pairs: Iterable[Space] = (), longest: Iterable[tuple[Space, Space]] = ()) -> None:
        """Find together what the host must know and only the device does; waits for it at most once for each of both.
        ``pairs`` are spaces of pairs whose number of rows is wanted; ``longest`` are (over, to): the most rows of
        ``over`` that one row of ``to`` has."""
        begun = {space: self._pairing(space) for space in dict.fromkeys(pairs) if space not in self._pairs}
        if begun:
            lists = torch.stack([one.relation_ptr for one in begun.values()]).tolist()
            for (space, one), relation_list in zip(begun.items(), lists, strict=True):
                found = self._pairs[space] = one.counted(relation_list)
                self._kept[("groups", "edge", space)] = found.ptr, found.order
                self._kept[("groups", space, "relation")] = found.relation_ptr, None
        wanted = [key for key in dict.fromkeys(longest) if key not in self._longest]
        self._longest.update(dict.fromkeys(wanted, 0))
        some = [(over, to) for over, to in wanted if self.rows(to)]
        if some:
            lengths = [self.groups(over, to)[0].diff().max() for over, to in some]
            self._longest.update(zip(some, torch.stack(lengths).tolist(), strict=True))

    def rows(self, space: Space) -> int:
        """Return the number of rows of a space."""
        if space in self._rows:
            return self._rows[space]
        return self._pairs_of(space).node.numel()

    def map(self, fine: Space, coarse: Space) -> Tensor | None:
        """Return the row of ``coarse`` that each row of ``fine`` belongs to: [rows(fine)]; None: it is the same row."""
        if fine == coarse or (fine in OF_NODES and coarse in OF_NODES):
            return None
        found: Tensor = self._once(("map", fine, coarse), lambda: self._mapped(fine, coarse))
        return found

    def groups(self, over: Space, to: Space) -> Groups:
        """The rows of ``over`` that belong to each row of ``to``, as (ptr, order). Those of row r are ``order[ptr[r] :
        ptr[r + 1]]``, ascending; ptr has rows(to) + 1 numbers, order rows(over), or is None where it would be 0, 1, 2,
        ..."""
        for space in (over, to):
            if space in _END_OF:
                self._pairs_of(space)  # with which some groups come
        found: Groups = self._once(("groups", over, to), lambda: self._grouped(over, to))
        return found

    def segments(self, space: Space, types: Space) -> list[int]:
        """Return where the rows of each row of ``types`` begin in a space that is sorted by it: [types + 1]."""
        found: list[int] = self._once(("segments", space, types), lambda: self._segmented(space, types))
        return found

    def longest(self, over: Space, to: Space) -> int:
        """The most rows of ``over`` that one row of ``to`` has."""
        if (over, to) not in self._longest:
            self.learn(longest=[(over, to)])
        return self._longest[over, to]

    def degree(self, space: Space, dtype: torch.dtype) -> Tensor:
        """Return the number of edges of each row of source, target or target_pair: [rows(space)]. At least 1: no edge
        sees the degree of a node without edges, and a quotient by 0 would not be a number."""
        key = ("degree", space, dtype)
        found: Tensor = self._once(key, lambda: self.groups("edge", space)[0].diff().clamp(min=1).to(dtype))
        return found

    def _once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def _mapped(self, fine: Space, coarse: Space) -> Tensor:
        if coarse == "one":
            return torch.zeros(1, dtype=self._index, device=self.device).expand(self.rows(fine))
        if fine == "edge":
            if coarse in self._edges:
                return self._edges[coarse]
            if coarse in _END_OF:
                return self._pairs_of(coarse).of_edge
        if fine in _END_OF and coarse == _END_OF[fine]:
            return self._pairs_of(fine).node
        if fine in _END_OF and coarse == "relation":
            return self._pairs_of(fine).relation
        if fine in OF_NODES and coarse == "node_type":
            counts = [b - a for a, b in pairwise(self._type_list)]
            return torch.repeat_interleave(_on(self.device, counts, self._index), output_size=self.rows("node"))
        raise InputError("coarse", coarse, f"has no row for each row of {fine}", "Map to a coarser space.")

    def _pairs_of(self, space: Space) -> Pairs:
        if space not in self._pairs:
            self.learn([space])
        return self._pairs[space]

    def _pairing(self, space: Space) -> Pairing:
        if space not in _END_OF:
            raise InputError("space", space, "is no space of rows", "Use one of loadmaster.models.graph.spaces.")
        ends, relation_ptr = self._edges[_END_OF[space]], self.groups("edge", "relation")[0]
        is_sorted = space == "target_pair"
        return Pairing.of(ends, self._edges["relation"], relation_ptr, self.rows("node"), is_sorted=is_sorted)

    def _segmented(self, space: Space, types: Space) -> list[int]:
        if types == "one":
            return [0, self.rows(space)]
        if space in OF_NODES and types == "node_type":
            return self._type_list
        if types == "relation" and space in _END_OF:
            return self._pairs_of(space).relation_list
        if (space, types) == ("edge", "relation") and self._relation_list is not None:
            return self._relation_list
        ptr, order = self.groups(space, types)
        if order is not None:
            raise InputError("types", types, f"is not what rows of {space} are sorted by", "Use groups.")
        found: list[int] = ptr.tolist()
        return found

    def _grouped(self, over: Space, to: Space) -> Groups:
        count = self.rows(to)
        owner = self.map(over, to)
        if owner is None:
            return torch.arange(count + 1, dtype=self._index, device=self.device), None
        if to in ("one", "node_type") or ((over, to) == ("edge", "relation") and self._relation_list is not None):
            return _on(self.device, self._segmented(over, to), self._index), None
        order = None
        if not self._is_sorted(over, to):
            owner, order = torch.sort(owner, stable=True)
            order = order.to(self._index)
        bounds = torch.arange(count + 1, dtype=self._index, device=self.device)
        return torch.searchsorted(owner, bounds, out_int32=self._index == torch.int32), order

    def _is_sorted(self, over: Space, to: Space) -> bool:
        """Return whether the rows of ``over`` are sorted by the row of ``to`` that they belong to."""
        if to == "relation":
            return True
        alone = self.rows("relation") == 1
        return alone and ((over, to) in (("edge", "target"), ("source_pair", "source"), ("target_pair", "target")))


def _on(device: torch.device, numbers: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Copy a few numbers to a device without waiting for what is queued there."""
    return torch.tensor(numbers, dtype=dtype).to(device, non_blocking=True)


_of_graphs: WeakKeyDictionary[Graph, Indices] = WeakKeyDictionary()
