"""What the kernels of a compiled layer know of one graph: rows of every space, and which row belongs to which.

Edges are kept sorted by relation, then by target, then as they were given; pairs by relation, then by node; nodes by
type. So the edges of one relation, or of one target and relation, lie side by side. The caller's order is
:attr:`Indices.edge_order`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.structure.ids import choose_dtype
from loadmaster.executor.graph.structure.pairs import distinct_pairs, of_pair_keys, pair_keys
from loadmaster.models.graph.spaces import Space

if TYPE_CHECKING:
    from loadmaster.executor.graph.structure.graph import Graph

Groups = tuple[Tensor, Tensor | None]
_OF_NODES: tuple[Space, ...] = ("node", "source", "target")
_END_OF: dict[Space, Space] = {"source_pair": "source", "target_pair": "target"}


class Indices:
    """Indices of one graph on one device, each made when it is first needed, and kept. All are int32 where they fit.

    The rows of ``node``, ``source`` and ``target`` are the same.

    Attributes:
        edge_order: [edges], the place at which the caller gave the edge of each row.
        result_rows: the rows of nodes that are a layer's results; None: all.
        device: of all tensors.
    """

    def __init__(
        self,
        source: Tensor,
        target: Tensor,
        relation: Tensor,
        node_count: int,
        relation_count: int,
        node_type_ptr: Tensor,
        edge_order: Tensor,
        result_rows: Tensor | None,
    ) -> None:
        self.device = source.device
        self.edge_order, self.result_rows = edge_order, result_rows
        self._edges: dict[Space, Tensor] = {"source": source, "target": target, "relation": relation}
        self._type_ptr = node_type_ptr
        self._rows: dict[Space, int] = {
            "one": 1,
            "relation": relation_count,
            "node_type": node_type_ptr.numel() - 1,
            "node": node_count,
            "source": node_count,
            "target": node_count,
            "edge": source.numel(),
        }
        self._index = choose_dtype(None, max(source.numel(), node_count))
        self._kept: dict[Hashable, Any] = {}

    @classmethod
    def of(cls, graph: Graph) -> Indices:
        """Of a graph or a block; made once for each, and kept as long as it is.

        In a block the nodes are those that edges begin at; :attr:`result_rows` are those that edges end at.
        """
        if graph not in _of_graphs:
            _of_graphs[graph] = cls._of(graph)
        return _of_graphs[graph]

    @classmethod
    def _of(cls, graph: Graph) -> Indices:
        schema, device = graph.schema, graph.device
        target, rows = graph.destination, None
        if schema.destination_counts != schema.source_counts:
            shift = torch.tensor(schema.source_offsets) - torch.tensor(schema.destination_offsets)
            shifts = torch.repeat_interleave(shift[:-1], torch.tensor(schema.destination_counts)).to(device)
            target = target.long() + shifts[target.long()]
            rows = torch.arange(schema.destination_count, device=device) + shifts
        return cls.from_edges(
            graph.source,
            target,
            graph.relation,
            schema.source_count,
            len(schema.relations),
            torch.tensor(schema.source_offsets),
            graph.edge_order,
            rows,
        )

    @classmethod
    def from_edges(
        cls,
        source: Tensor,
        target: Tensor,
        relation: Tensor,
        node_count: int,
        relation_count: int,
        node_type_ptr: Tensor,
        edge_order: Tensor | None = None,
        result_rows: Tensor | None = None,
    ) -> Indices:
        """Of edges in any order, which are known to name nodes and relations.

        Args:
            source, target, relation: [edges], integers.
            node_type_ptr: [types + 1], where the nodes of each type begin.
            edge_order: [edges], the place at which the caller gave each edge; None: this one.
            result_rows: the rows of nodes that are a layer's results; None: all.
        """
        index = choose_dtype(None, max(source.numel(), node_count))
        keys, order = torch.sort(pair_keys(target, relation, node_count), stable=True)
        kinds, targets = of_pair_keys(keys, node_count)
        return cls(
            source[order].to(index),
            targets.to(index),
            kinds.to(index),
            node_count,
            relation_count,
            node_type_ptr.to(source.device, index),
            (order if edge_order is None else edge_order[order]).to(index),
            result_rows,
        )

    def rows(self, space: Space) -> int:
        """How many rows a space has."""
        if space in self._rows:
            return self._rows[space]
        return int(self._pairs(space)[0].numel())

    def map(self, fine: Space, coarse: Space) -> Tensor | None:
        """For each row of ``fine`` the row of ``coarse`` that it belongs to: [rows(fine)]; None: it is the same row.

        Raises:
            InputError: rows of ``fine`` have no row of ``coarse``.
        """
        if fine == coarse or (fine in _OF_NODES and coarse in _OF_NODES):
            return None
        found: Tensor = self._once(("map", fine, coarse), lambda: self._mapped(fine, coarse))
        return found

    def groups(self, over: Space, to: Space) -> Groups:
        """The rows of ``over`` that belong to each row of ``to``.

        Returns:
            (ptr, order): the rows of row r are ``order[ptr[r] : ptr[r + 1]]``, ascending; ptr has rows(to) + 1
            numbers; order has rows(over), or is None where it would be 0, 1, 2, ...
        """
        found: Groups = self._once(("groups", over, to), lambda: self._grouped(over, to))
        return found

    def segments(self, space: Space, types: Space) -> Tensor:
        """Where the rows of each row of ``types`` begin among the rows of a space that is sorted by it: [types + 1].

        Raises:
            InputError: the space is not sorted by it.
        """
        ptr, order = self.groups(space, types)
        if order is not None:
            raise InputError("types", types, f"is not what rows of {space} are sorted by", "Use groups.")
        return ptr

    def segment_list(self, space: Space, types: Space) -> list[int]:
        """As :meth:`segments`, on the host."""
        found: list[int] = self._once(("list", space, types), lambda: self.segments(space, types).tolist())
        return found

    def longest(self, over: Space, to: Space) -> int:
        """The most rows of ``over`` that one row of ``to`` has."""

        def measured() -> int:
            ptr, _ = self.groups(over, to)
            return int((ptr[1:] - ptr[:-1]).max()) if ptr.numel() > 1 else 0

        found: int = self._once(("longest", over, to), measured)
        return found

    def degree(self, space: Space, dtype: torch.dtype) -> Tensor:
        """How many edges each row of source, target or target_pair has: [rows(space)].

        At least 1: no edge sees the degree of a node without edges, and a quotient by 0 would be no number.
        """

        def counted() -> Tensor:
            ptr, _ = self.groups("edge", space)
            return (ptr[1:] - ptr[:-1]).clamp(min=1).to(dtype)

        found: Tensor = self._once(("degree", space, dtype), counted)
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
                return self._pairs(coarse)[2]
        if fine in _END_OF and coarse == _END_OF[fine]:
            return self._pairs(fine)[0]
        if fine in _END_OF and coarse == "relation":
            return self._pairs(fine)[1]
        if fine in _OF_NODES and coarse == "node_type":
            counts = (self._type_ptr[1:] - self._type_ptr[:-1]).long()
            types = torch.arange(counts.numel(), dtype=self._index, device=self.device)
            return torch.repeat_interleave(types, counts, output_size=self.rows("node"))
        raise InputError("coarse", coarse, f"has no row for each row of {fine}", "Map to a coarser space.")

    def _pairs(self, space: Space) -> tuple[Tensor, Tensor, Tensor]:
        """Node and relation of each pair, and the pair of each edge."""
        if space not in _END_OF:
            raise InputError("space", space, "is no space of rows", "Use one of loadmaster.models.graph.spaces.")
        found: tuple[Tensor, Tensor, Tensor] = self._once(("pairs", space), lambda: self._paired(_END_OF[space]))
        return found

    def _paired(self, end: Space) -> tuple[Tensor, Tensor, Tensor]:
        ends, relation = self._edges[end], self._edges["relation"]
        found = distinct_pairs(ends, relation, self.rows("node"), is_sorted=end == "target")
        node, kind, of_edge = (x.to(self._index) for x in found)
        return node, kind, of_edge

    def _grouped(self, over: Space, to: Space) -> Groups:
        count, rows = self.rows(to), self.rows(over)
        owner = self.map(over, to)
        if owner is None:
            return torch.arange(count + 1, dtype=self._index, device=self.device), None
        if to == "one":
            return torch.tensor([0, rows], dtype=self._index, device=self.device), None
        if to == "node_type":
            return self._type_ptr, None
        order = None
        if (over, to) not in _SORTED:
            owner, order = torch.sort(owner, stable=True)
            order = order.to(self._index)
        bounds = torch.arange(count + 1, dtype=self._index, device=self.device)
        return torch.searchsorted(owner, bounds, out_int32=self._index == torch.int32), order


_of_graphs: WeakKeyDictionary[Graph, Indices] = WeakKeyDictionary()
# Of these the rows of the finer space are sorted by the coarser one.
_SORTED: frozenset[tuple[Space, Space]] = frozenset(
    {("edge", "relation"), ("edge", "target_pair"), ("source_pair", "relation"), ("target_pair", "relation")}
)
