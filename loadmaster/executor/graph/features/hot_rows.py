"""Unified tensors whose most-read rows are kept on the GPU as well, and estimates of which rows those are.

One kernel reads both: for each row it looks up, on the GPU, whether the row is there, and fetches it over the link if
not. Nothing is sorted out first and the host waits for nothing. The GPU counts how many reads found their row.

A node's row is read when a sampled neighbourhood reaches the node, against the direction of its edges. So the estimates
count how many edges leave it, how often samples of the first epochs had it, or how likely a walk back from the seeds
ends at it. They run once, on the host, before training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.features.gather import (
    INDEX_DTYPES,
    expect_in_range,
    expect_nodes,
    gather_hot_rows,
    rows_are_contiguous,
)
from loadmaster.executor.graph.features.unified_tensor import UnifiedTensor

_LEAST_TOLERANCE = 1e-14  # sums of float64 probabilities differ by about that in every step
SLOT_BYTES = 4  # of the map from a row to its place on the GPU, for each row of the table


def out_degrees(source: Tensor, node_count: int) -> Tensor:
    """Number of edges that leave each node: int64 [node_count] on the host. ``source``, int [edges], is the node that
    each edge leaves. InputError: the graph lacks one of them."""
    expect_nodes("source", source, node_count)
    return torch.bincount(source.cpu(), minlength=node_count)


def sampled_frequency(
    sample: Callable[[Tensor], tuple[Any, Tensor]], seeds: Iterable[Tensor], node_count: int
) -> Tensor:
    """Count how often each node's row is read for some batches of seeds: int64 [node_count] on the host.

    ``sample`` is the training's sampler, seeds -> (blocks, nodes whose rows are read); batches of one to three epochs
    show which rows are read. InputError: a sample of nodes that the graph does not have.
    """
    reads = torch.zeros(node_count, dtype=torch.int64)
    for batch in seeds:
        nodes = sample(batch)[1]
        expect_nodes("sample", nodes, node_count)
        here = nodes.reshape(-1).cpu().long()
        reads.index_add_(0, here, torch.ones_like(here))
    return reads


def reverse_pagerank(
    source: Tensor,
    destination: Tensor,
    node_count: int,
    *,
    seeds: Tensor | None = None,
    damping: float = 0.85,
    tolerance: float = 1e-9,
) -> Tensor:
    """Probability that a walk back along edges is at each node: float64 [node_count] on the host, in sum 1.

    The walk begins at a seed, goes to a random in-neighbour with probability ``damping``, and begins again otherwise or
    where there is no in-neighbour.

    Args:
        source, destination: int [edges].
        seeds: nodes that training begins with, at least one, weighted by how often each is named; None: all nodes.
        damping: at least 0, below 1.
        tolerance: the sum by which two steps differ at the end, at most; at least 1e-14, what rounding leaves.

    Raises:
        InputError: edges or seeds that name no node, no seeds, or a damping or tolerance out of range.
    """
    if not 0.0 <= damping < 1.0:
        raise InputError("damping", damping, "is no probability below 1", "Take 0.85.")
    if not tolerance >= _LEAST_TOLERANCE:
        raise InputError("tolerance", tolerance, "is less than rounding leaves", f"Take {_LEAST_TOLERANCE} or more.")
    if source.shape != destination.shape:
        remedy = "Give both per edge."
        raise InputError("destination", list(destination.shape), f"does not fit {list(source.shape)} sources", remedy)
    for name, nodes in (("source", source), ("destination", destination)):
        expect_nodes(name, nodes, node_count)
    source, destination = source.cpu().long(), destination.cpu().long()
    in_degrees = torch.bincount(destination, minlength=node_count).double()
    start = torch.ones(node_count, dtype=torch.float64)
    if seeds is not None:
        expect_nodes("seeds", seeds, node_count)
        if not seeds.numel():
            raise InputError("seeds", 0, "are none to walk back from", "Give at least one, or None for all nodes.")
        start = torch.bincount(seeds.cpu(), minlength=node_count).double()
    start /= start.sum()
    rank, change = start, 1.0
    while change > tolerance:
        share = torch.where(in_degrees > 0, rank / in_degrees.clamp(min=1), 0.0)
        walked = torch.zeros_like(rank).index_add_(0, source, share[destination])
        new = damping * walked
        new += (1.0 - new.sum()) * start
        change = float((new - rank).abs().sum())
        rank = new
    return rank


def hottest(scores: Tensor, rows: int) -> Tensor:
    """The ``rows`` rows with the highest ``scores`` [nodes], hottest first, the earlier of equal ones: int64 on the
    host. All nodes if there are fewer. InputError: a negative number of rows."""
    if rows < 0:
        raise InputError("rows", rows, "is less than none", "Give a number of rows; rows_within() says how many fit.")
    return torch.argsort(scores.cpu(), descending=True, stable=True)[:rows]


def rows_within(budget_bytes: int, table: Tensor) -> int:
    """Number of a table's rows that fit into a budget on the GPU, together with the map that says which they are."""
    row_bytes = max(1, table.shape[1:].numel() * table.element_size())
    return min(max(0, (budget_bytes - SLOT_BYTES * table.shape[0]) // row_bytes), table.shape[0])


def predicted_hit_rate(frequency: Tensor, hot: Tensor) -> float:
    """The share of reads that find their row on the GPU.

    Predict with batches that did not choose the rows: what a sample chose fits that sample better than the next one.
    ``frequency`` [nodes] says how often each row is read, in any unit; ``hot``, int [rows], which rows are there.
    InputError: rows that ``frequency`` does not have.
    """
    expect_nodes("hot", hot, frequency.shape[0])
    frequency = frequency.cpu().double()
    return float(frequency[hot.cpu()].sum() / frequency.sum()) if bool(frequency.any()) else 0.0


class HotRows:
    """Rows of a table, the hot ones kept on the GPU: ``hot_rows[index]`` is what ``table[index]`` is.

    Contents are those of the table, [nodes, ...], when this was made. ``hot``, int [rows], names each row to keep once:
    :func:`hottest` finds them. InputError: not a unified tensor, rows not contiguous, rows that the table does not
    have, or one named twice.
    """

    def __init__(self, table: UnifiedTensor, hot: Tensor) -> None:
        if not isinstance(table, UnifiedTensor):
            raise InputError("table", type(table).__name__, "is no unified tensor", "Make one: unified(tensor).")
        if not table.dim() or not rows_are_contiguous(table.cpu_view):
            raise InputError("table", list(table.shape), "has no rows in one piece", "Give a contiguous table.")
        if hot.dtype not in INDEX_DTYPES or hot.dim() != 1:
            remedy = "Give one dimension of int64 or int32."
            raise InputError("hot", f"{hot.dtype} {list(hot.shape)}", "does not name rows", remedy)
        hot = hot.cpu().long()
        expect_nodes("hot", hot, table.shape[0])
        if hot.numel() and int(torch.bincount(hot).max()) > 1:
            raise InputError("hot", f"{hot.numel()} rows", "names a row twice", "Give each row once.")
        self.table = table
        device = table.result_device
        self._rows = table.rows(hot)
        slots = torch.full((table.shape[0],), -1, dtype=torch.int32)
        slots[hot] = torch.arange(hot.numel(), dtype=torch.int32)
        self._slots = slots.to(device)
        self._counts = torch.zeros(2, dtype=torch.int64, device=device)

    @property
    def shape(self) -> torch.Size:
        """Shape of the whole table."""
        return self.table.shape

    @property
    def device_bytes(self) -> int:
        """Bytes of the GPU's memory that rows and their map take."""
        return sum(t.numel() * t.element_size() for t in (self._rows, self._slots))

    def __getitem__(self, index: Tensor) -> Tensor:
        """Rows on the GPU: [*index, ...] for an index of int32 or int64, of any shape, on the GPU or the host."""
        if not isinstance(index, Tensor):
            raise InputError("index", type(index).__name__, "is no tensor", "Give a tensor of int64 or int32.")
        flat = index.to(self._rows.device).reshape(-1)
        if self.table.debug:
            expect_in_range(flat, self.shape[0])
        found: Tensor = gather_hot_rows(
            self.table.cpu_view, self._rows, self._slots, self._counts, flat, self.table.in_place
        )
        return found.view(*index.shape, *self.shape[1:])

    def hit_rate(self) -> float:
        """The share of rows read since :meth:`forget_reads` that were on the GPU; 0 before any. Waits for the GPU."""
        hits, reads = (int(n) for n in self._counts.tolist())
        return hits / reads if reads else 0.0

    def forget_reads(self) -> None:
        """Count reads for :meth:`hit_rate` from here on."""
        self._counts.zero_()
