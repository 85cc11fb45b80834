"""Collectives along an axis of unequal shares, where each rank has its own number of units of the split dimension.

NCCL gathers and scatters equal rows only, so rows are padded to the longest one; shares are exchanged as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from loadmaster.executor.partition.collectives import all_gather, all_to_all, in_a_row, reduce_scatter


def pieces(tensor: Tensor, dim: int, shares: Sequence[int]) -> tuple[Tensor, ...]:
    """Cut a dimension that is whole into the share of each rank."""
    unit = tensor.shape[dim] // sum(shares)
    return tensor.split_with_sizes([share * unit for share in shares], dim)


def gathered(share: Tensor, dim: int, shares: Sequence[int], own: int, group: str) -> Tensor:
    """Gather a dimension that is split.

    Args:
        shares: units of each rank.
        own: the number of this rank.
    """
    unit = share.numel() // shares[own]
    most = unit * max(shares)
    rows = all_gather(in_a_row(share), most, len(shares), group).view(len(shares), most)
    extent = share.shape[dim] // shares[own]
    found = [
        row[: unit * count].view(_with_extent(share.shape, dim, extent * count))
        for row, count in zip(rows.unbind(), shares, strict=True)
    ]
    return torch.cat(found, dim)


def scattered(terms: Tensor, dim: int, shares: Sequence[int], own: int, group: str) -> Tensor:
    """Reduce-scatter terms along a dimension: this rank's share of their sum.

    Args:
        terms: this rank's, of the whole dimension.
    """
    of_ranks = pieces(terms, dim, shares)
    most = max(piece.numel() for piece in of_ranks)
    rows = [torch.nn.functional.pad(in_a_row(piece), (0, most - piece.numel())) for piece in of_ranks]
    row: Tensor = reduce_scatter(torch.cat(rows), len(shares), group)
    return row[: of_ranks[own].numel()].view(of_ranks[own].shape)


def exchanged(share: Tensor, dim: int, to: int, shares: Sequence[int], own: int, group: str) -> Tensor:
    """Exchange a share along one dimension for a share along another, by an all-to-all.

    Args:
        dim: the dimension that is split.
        to: the dimension that is whole, and is to be split.
    """
    sent = pieces(share, to, shares)
    extent = share.shape[dim] // shares[own]
    shapes = [_with_extent(sent[own].shape, dim, extent * count) for count in shares]
    counts = [torch.Size(shape).numel() for shape in shapes]
    row = all_to_all(torch.cat([in_a_row(piece) for piece in sent]), counts, [p.numel() for p in sent], group)
    received = [part.view(shape) for part, shape in zip(row.split_with_sizes(counts), shapes, strict=True)]
    return torch.cat(received, dim)


def _with_extent(shape: Sequence[int], dim: int, extent: int) -> list[int]:
    return [*shape[:dim], extent, *shape[dim + 1 :]]
