"""The edges between two sets of nodes: as pairs, by source and by destination, each made when first needed and kept.

Distinct pairs of a node and a relation, too: what depends on both alone needs a row for each pair, not for each edge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from loadmaster.executor.graph.kernels.operators import Matrix, has_kernels
from loadmaster.executor.graph.kernels.spmm_schedule import Schedule, schedule_rows

MapTensor = Callable[[Tensor], Tensor]


class Compressed(NamedTuple):
    """Edges by the nodes at one of their ends; those of node i are at positions ptr[i] to ptr[i + 1]. ``neighbour``
    [edges] is the node at the other end; ``edge`` [edges], the edge's id; None where ids are positions."""

    ptr: Tensor
    neighbour: Tensor
    edge: Tensor | None

    def mapped(self, each: MapTensor) -> Compressed:
        """The edges with ``each`` applied to every tensor."""
        return Compressed(each(self.ptr), each(self.neighbour), None if self.edge is None else each(self.edge))

    def edge_ids(self) -> Tensor:
        """The id of the edge at each position, written out."""
        if self.edge is not None:
            return self.edge
        return torch.arange(self.neighbour.numel(), dtype=self.ptr.dtype, device=self.ptr.device)


# Formats are made once, outside compiled code: see create_formats_. They serve training too, whoever asks first.
@torch.compiler.disable  # type: ignore[untyped-decorator]
@torch.inference_mode(False)
def compress(rows: Tensor, neighbours: Tensor, count: int) -> Compressed:
    """Edges by ``rows``; edges of one row keep their order. Waits for the device."""
    edge: Tensor | None = None
    if rows.numel() > 1 and bool((rows[1:] < rows[:-1]).any()):
        rows, order = rows.sort(stable=True)
        neighbours, edge = neighbours[order], order.to(rows.dtype)
    bounds = torch.arange(count + 1, dtype=rows.dtype, device=rows.device)
    ptr = torch.searchsorted(rows, bounds, out_int32=rows.dtype == torch.int32)
    return Compressed(ptr, neighbours.contiguous(), edge)


def positions_of(rows: Compressed, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of the edges of these nodes, node after node, and how many each has: int64. Waits for the device."""
    begin = rows.ptr[nodes.long()].long()
    counts = rows.ptr[nodes.long() + 1].long() - begin
    before = counts.cumsum(0) - counts
    total = int(counts.sum())
    shift = (begin - before).repeat_interleave(counts, output_size=total)
    return torch.arange(total, device=begin.device) + shift, counts


class Adjacency:
    """Edges from ``source_count`` to ``destination_count`` nodes; an edge's id is its place in the two tensors. These
    are [edges], int32 or int64, on one device."""

    def __init__(self, source: Tensor, destination: Tensor, source_count: int, destination_count: int) -> None:
        self.source = source
        self.destination = destination
        self.source_count = source_count
        self.destination_count = destination_count
        self._csr: Compressed | None = None
        self._csc: Compressed | None = None
        self._schedules: dict[str, Schedule] = {}

    @property
    def edge_count(self) -> int:
        return self.source.numel()

    @property
    def device(self) -> torch.device:
        return self.source.device

    def csr(self) -> Compressed:
        """Edges by source; made when first needed."""
        if self._csr is None:
            self._csr = compress(self.source, self.destination, self.source_count)
        return self._csr

    def csc(self) -> Compressed:
        """Edges by destination; made when first needed."""
        if self._csc is None:
            self._csc = compress(self.destination, self.source, self.destination_count)
        return self._csc

    def in_degrees(self) -> Tensor:
        """Edges that end at each node: int64 [destination_count]."""
        return self.csc().ptr.diff().long()

    def out_degrees(self) -> Tensor:
        """Edges that begin at each node: int64 [source_count]."""
        if self._csr is None:
            return torch.bincount(self.source, minlength=self.source_count)
        return self._csr.ptr.diff().long()

    def matrix(self, reverse: bool) -> Matrix:
        """The arrays that kernels take: rows are destinations. ``reverse`` adds what gradients of sources need."""
        csc = self.csc()
        forward = self._schedule("csc", csc)
        if not reverse:
            return Matrix(*csc, forward[0], None, None, None, None, self.source, self.destination, forward[1], [])
        csr = self.csr()
        backward = self._schedule("csr", csr)
        return Matrix(*csc, forward[0], *csr, backward[0], self.source, self.destination, forward[1], backward[1])

    def _schedule(self, key: str, rows: Compressed) -> tuple[Tensor | None, list[int]]:
        if not has_kernels(self.device):
            return None, []
        if key not in self._schedules:
            self._schedules[key] = schedule_rows(rows.ptr)
        made = self._schedules[key]
        return made.order, made.counts

    def reverse(self) -> Adjacency:
        """The adjacency with sources and destinations exchanged; what is made already is shared."""
        turned = Adjacency(self.destination, self.source, self.destination_count, self.source_count)
        turned._csr, turned._csc = self._csc, self._csr
        turned._schedules = {{"csr": "csc", "csc": "csr"}[key]: made for key, made in self._schedules.items()}
        return turned

    def mapped(self, each: MapTensor) -> Adjacency:
        """The adjacency, and what is made already, with ``each`` applied to every tensor: to move or pin them."""
        made = Adjacency(each(self.source), each(self.destination), self.source_count, self.destination_count)
        made._csr, made._csc = (None if rows is None else rows.mapped(each) for rows in (self._csr, self._csc))
        return made


class Pairs(NamedTuple):
    """The distinct (node, relation) pairs at one end of the edges, by relation, then node's row among all: [pairs]."""

    node: Tensor
    relation: Tensor
    edges: Compressed


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
