"""Estimates of the rows read most, which may be kept on the GPU: by degree, by sampling, by reverse PageRank.

A node's row is read when a sampled neighbourhood reaches the node, against the direction of its edges. So what counts
is how many edges leave it, how often samples of the first epochs had it, or how likely a walk back from the seeds ends
at it. All of this runs once, on the host, before training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.features.gather import expect_nodes

_LEAST_TOLERANCE = 1e-14  # sums of float64 probabilities differ by about that in every step
SLOT_BYTES = 4  # of the map from a row to its place on the GPU, for each row of the table


def out_degrees(source: Tensor, node_count: int) -> Tensor:
    """Edges that leave each node.

    Args:
        source: int [edges], the node that each edge leaves.
        node_count: nodes of the graph.

    Returns:
        int64 [node_count] on the host.

    Raises:
        InputError: an edge that leaves a node which the graph does not have.
    """
    expect_nodes("source", source, node_count)
    return torch.bincount(source.cpu(), minlength=node_count)


def sampled_frequency(
    sample: Callable[[Tensor], tuple[Any, Tensor]], seeds: Iterable[Tensor], node_count: int
) -> Tensor:
    """Count how often each node's row is read for some batches of seeds.

    Args:
        sample: the sampler that training uses: seeds -> (blocks, nodes whose rows are read).
        seeds: batches; those of one to three epochs show which rows are read.
        node_count: nodes of the graph.

    Returns:
        int64 [node_count] on the host.

    Raises:
        InputError: a sample of nodes that the graph does not have.
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
    """Probability that a walk back along edges is at each node.

    The walk begins at a seed, goes to a random in-neighbour with probability ``damping``, and begins again otherwise or
    where there is no in-neighbour.

    Args:
        source, destination: int [edges].
        node_count: nodes of the graph, at least one.
        seeds: nodes that training begins with, at least one; a walk begins at each time that one is named. All nodes
            if None.
        damping: at least 0, below 1.
        tolerance: the probabilities of two steps differ by no more in sum when this ends; at least 1e-14, what
            rounding leaves.

    Returns:
        float64 [node_count] on the host, in sum 1.

    Raises:
        InputError: edges or seeds that name no node, no seeds, or a damping or tolerance out of range.
    """
    if not 0.0 <= damping < 1.0:
        raise InputError("damping", damping, "is no probability below 1", "Take 0.85.")
    if not tolerance >= _LEAST_TOLERANCE:
        raise InputError("tolerance", tolerance, "is less than rounding leaves", f"Take {_LEAST_TOLERANCE} or more.")
    if source.shape != destination.shape:
        raise InputError(
            "destination", list(destination.shape), f"does not fit {list(source.shape)} sources", "Give both per edge."
        )
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
    """The rows with the highest scores, the earlier of equal ones.

    Args:
        scores: [nodes].
        rows: how many; all nodes if there are fewer.

    Returns:
        int64 [rows], hottest first, on the host.

    Raises:
        InputError: a negative number of rows.
    """
    if rows < 0:
        raise InputError("rows", rows, "is less than none", "Give a number of rows; rows_within() says how many fit.")
    return torch.argsort(scores.cpu(), descending=True, stable=True)[:rows]


def rows_within(budget_bytes: int, table: Tensor) -> int:
    """Number of a table's rows that fit into a budget on the GPU, together with the map that says which they are.

    Args:
        budget_bytes: for both.
        table: [nodes, ...].
    """
    row_bytes = max(1, table.shape[1:].numel() * table.element_size())
    return min(max(0, (budget_bytes - SLOT_BYTES * table.shape[0]) // row_bytes), table.shape[0])


def predicted_hit_rate(frequency: Tensor, hot: Tensor) -> float:
    """The share of reads that find their row on the GPU.

    Predict with batches that did not choose the rows: what a sample chose fits that sample better than the next one.

    Args:
        frequency: [nodes], how often each row is read, in any unit.
        hot: int [rows], which rows are there.

    Raises:
        InputError: rows that ``frequency`` does not have.
    """
    expect_nodes("hot", hot, frequency.shape[0])
    frequency = frequency.cpu().double()
    return float(frequency[hot.cpu()].sum() / frequency.sum()) if bool(frequency.any()) else 0.0
