"""Edges by the pairs of their ends and relations: all but the number of pairs is found without waiting for the device.

So whoever wants pairs of both ends, or more, asks the device once for all of these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loadmaster.executor.graph.structure.ids import choose_dtype


@dataclass(frozen=True)
class Pairs:
    """The distinct pairs of a node and a relation, by relation, then by node.

    Attributes:
        node, relation: [pairs].
        of_edge: [edges], the pair of each edge.
        ptr: [pairs + 1], where the edges of each pair begin in ``order``.
        order: [edges], edges by pair, then by number; None: 0, 1, 2, ...
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
        """Pair the edges, which are sorted by relation, without waiting for the device.

        Args:
            node, relation: [edges], of one dtype.
            relation_ptr: [relations + 1], where the edges of each relation begin.
            is_sorted: whether the edges of one relation are sorted by node.
        """
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
        """Return the pairs, of which the host knows the number.

        Args:
            relation_list: ``relation_ptr``, on the host.
        """
        bounds = torch.arange(relation_list[-1] + 1, dtype=self.pair.dtype, device=self.pair.device)
        ptr = torch.searchsorted(self.pair, bounds, out_int32=bounds.dtype == torch.int32)
        first, of_edge = ptr[:-1], self.pair
        if self.order is not None:
            first = self.order.index_select(0, first)
            of_edge = torch.empty_like(self.pair).index_copy_(0, self.order.long(), self.pair)
        node, relation = (x.index_select(0, first) for x in (self.node, self.relation))
        return Pairs(node, relation, of_edge, ptr, self.order, self.relation_ptr, relation_list)
