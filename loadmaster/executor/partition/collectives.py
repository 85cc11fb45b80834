"""Collectives on one row of elements, each one operator that a graph can hold: begun and waited for.

PyTorch's own operators have an operator of its own for waiting. Inductor of 2.13 has read a result before that (seen
with ``reduce_scatter_tensor`` and an elementwise reader, on CPUs). On a GPU, waiting stops the stream, not the process.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ops = torch.ops._c10d_functional


@torch.library.custom_op("loadmaster::all_reduce", mutates_args=())
def all_reduce(row: Tensor, group: str) -> Tensor:
    """The sum over a group."""
    return _waited(_ops.all_reduce(row, "sum", group))


@torch.library.custom_op("loadmaster::all_gather", mutates_args=())
def all_gather(row: Tensor, size: int, group: str) -> Tensor:
    """The rows of a group of that size, one after the other."""
    return _waited(_ops.all_gather_into_tensor(row, size, group))


@torch.library.custom_op("loadmaster::reduce_scatter", mutates_args=())
def reduce_scatter(row: Tensor, size: int, group: str) -> Tensor:
    """This rank's share of the sum over a group of that size."""
    return _waited(_ops.reduce_scatter_tensor(row, "sum", size, group))


@torch.library.custom_op("loadmaster::all_to_all", mutates_args=())
def all_to_all(row: Tensor, size: int, group: str) -> Tensor:
    """One share from each rank of a group of that size."""
    shares = [row.numel() // size] * size
    return _waited(_ops.all_to_all_single(row, shares, shares, group))


def _waited(result: Tensor) -> Tensor:
    found: Tensor = _ops.wait_tensor(result)
    return found


@all_reduce.register_fake
def _(row: Tensor, group: str) -> Tensor:
    return torch.empty_like(row)


@all_gather.register_fake
def _(row: Tensor, size: int, group: str) -> Tensor:
    return row.new_empty(row.numel() * size)


@reduce_scatter.register_fake
def _(row: Tensor, size: int, group: str) -> Tensor:
    return row.new_empty(row.numel() // size)


@all_to_all.register_fake
def _(row: Tensor, size: int, group: str) -> Tensor:
    return torch.empty_like(row)
