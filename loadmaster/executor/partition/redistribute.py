"""Redistribution of tensors from one placement to another, over the process groups of a mesh, on the planned path.

Every step is one collective along one axis (:mod:`loadmaster.models.partition.traffic`), so that what is counted here
is what was predicted. Along an axis of unequal shares, rows that are gathered or scattered are padded to the longest
one, since NCCL takes equal rows only; shares are exchanged as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from loadmaster.executor.partition.collectives import all_gather, all_reduce, all_to_all, in_a_row, reduce_scatter
from loadmaster.models.partition.placements import WHOLE, Placement
from loadmaster.models.partition.traffic import Hop, Traffic


class Redistributor:
    """Redistributor of tensors over a mesh that has a dimension for every axis of the problem. ``counts`` are the
    collectives so far, by name; ``worker`` is that of this rank's shares."""

    def __init__(self, mesh: DeviceMesh, traffic: Traffic) -> None:
        self.mesh, self.traffic = mesh, traffic
        self.counts: Counter[str] = Counter()
        self._groups = [mesh.get_group(axis) for axis in range(mesh.ndim)]
        self._ranks: Sequence[int] = mesh.get_coordinate() or ()
        self._sizes = list(mesh.shape)
        self.worker = traffic.mesh.worker(self._ranks)

    def __call__(self, share: Tensor, shape: Sequence[int], held: Placement, needed: Placement) -> Tensor:
        """Bring a share of a tensor of that shape, in the placement ``held``, to another placement."""
        return self.along(share, self.traffic.path(shape, share.element_size(), held, needed))

    def along(self, share: Tensor, path: Sequence[Hop]) -> Tensor:
        """Bring a share along a path of collectives and cuts."""
        for hop in path:
            share = self._step(share, hop)
        return share

    def cut(self, whole: Tensor, placement: Placement) -> Tensor:
        """Cut this rank's share out of a tensor that it has whole."""
        for axis, part in enumerate(placement):
            if part >= 0:
                whole = self._own(whole, axis, part)
        return whole.contiguous()

    def offsets(self, shape: Sequence[int], placement: Placement) -> list[int]:
        """Offset of this rank's share in a tensor of that shape, along each dimension."""
        of_mesh = self.traffic.mesh
        own = int(np.ravel_multi_index(tuple(self._ranks), tuple(self._sizes)))
        return [int(start) for start, _ in of_mesh.regions(shape, [placement])[0, own]]

    def whole(self, share: Tensor, shape: Sequence[int], placement: Placement) -> Tensor:
        """Gather the whole tensor from the shares of all ranks."""
        return self(share, shape, placement, (WHOLE,) * len(placement))

    def _own(self, tensor: Tensor, axis: int, dim: int) -> Tensor:
        along = self.traffic.axes[axis]
        if along.is_even:
            return tensor.chunk(self._sizes[axis], dim)[self._ranks[axis]]
        return _pieces(tensor, dim, along.shares)[self._ranks[axis]]

    def _step(self, share: Tensor, hop: Hop) -> Tensor:
        axis, part, to = hop
        group, size = self._groups[axis].group_name, self._sizes[axis]
        if hop.collective is None:
            return self._own(share, axis, to).contiguous()
        self.counts[hop.collective] += 1
        row: Tensor
        if hop.collective == "all-reduce":
            row = all_reduce(in_a_row(share), group)
            return row.view_as(share)
        if not self.traffic.axes[axis].is_even:
            return self._uneven_step(share, hop)
        if hop.collective == "all-gather":
            row = all_gather(in_a_row(share), share.numel(), size, group)
            return _joined(row.view(size, *share.shape), part)
        shape = (*share.shape[:to], size, share.shape[to] // size, *share.shape[to + 1 :])
        pieces = share.reshape(shape).movedim(to, 0)
        if hop.collective == "reduce-scatter":
            row = reduce_scatter(in_a_row(pieces), size, group)
            return row.view(pieces.shape[1:])
        counts = [share.numel() // size] * size
        row = all_to_all(in_a_row(pieces), counts, counts, group)
        return _joined(row.view(pieces.shape), part)

    def _uneven_step(self, share: Tensor, hop: Hop) -> Tensor:
        axis, part, to = hop
        group, shares, own = self._groups[axis].group_name, self.traffic.axes[axis].shares, self._ranks[axis]
        if hop.collective == "all-gather":
            return _gathered(share, part, shares, own, group)
        if hop.collective == "reduce-scatter":
            return _scattered(share, to, shares, own, group)
        return _exchanged(share, part, to, shares, own, group)


def _joined(pieces: Tensor, dim: int) -> Tensor:
    """Join pieces, stacked along the first dimension, along one dimension of each; without a copy for dimension 0. The
    result is contiguous: pieces of one element would give a strided view, and some kernels read their input as one row
    (PyTorch's layer norms on CPUs, for the means of the forward pass)."""
    return pieces.movedim(0, dim).flatten(dim, dim + 1).contiguous()


def _pieces(tensor: Tensor, dim: int, shares: Sequence[int]) -> tuple[Tensor, ...]:
    """Cut a dimension that is whole into the share of each rank."""
    unit = tensor.shape[dim] // sum(shares)
    return tensor.split_with_sizes([share * unit for share in shares], dim)


def _gathered(share: Tensor, dim: int, shares: Sequence[int], own: int, group: str) -> Tensor:
    """Gather a dimension that is split into these units of each rank, of which this one is number ``own``."""
    unit = share.numel() // shares[own]
    most = unit * max(shares)
    rows = all_gather(in_a_row(share), most, len(shares), group).view(len(shares), most)
    extent = share.shape[dim] // shares[own]
    found = [
        row[: unit * count].view(_with_extent(share.shape, dim, extent * count))
        for row, count in zip(rows.unbind(), shares, strict=True)
    ]
    return torch.cat(found, dim)


def _scattered(terms: Tensor, dim: int, shares: Sequence[int], own: int, group: str) -> Tensor:
    """Reduce-scatter terms of the whole dimension: this rank's share of their sum."""
    of_ranks = _pieces(terms, dim, shares)
    most = max(piece.numel() for piece in of_ranks)
    rows = [torch.nn.functional.pad(in_a_row(piece), (0, most - piece.numel())) for piece in of_ranks]
    row: Tensor = reduce_scatter(torch.cat(rows), len(shares), group)
    return row[: of_ranks[own].numel()].view(of_ranks[own].shape)


def _exchanged(share: Tensor, dim: int, to: int, shares: Sequence[int], own: int, group: str) -> Tensor:
    """Exchange a share along ``dim`` for a share along ``to``, by an all-to-all."""
    sent = _pieces(share, to, shares)
    extent = share.shape[dim] // shares[own]
    shapes = [_with_extent(sent[own].shape, dim, extent * count) for count in shares]
    counts = [torch.Size(shape).numel() for shape in shapes]
    row = all_to_all(torch.cat([in_a_row(piece) for piece in sent]), counts, [p.numel() for p in sent], group)
    received = [part.view(shape) for part, shape in zip(row.split_with_sizes(counts), shapes, strict=True)]
    return torch.cat(received, dim)


def _with_extent(shape: Sequence[int], dim: int, extent: int) -> list[int]:
    return [*shape[:dim], extent, *shape[dim + 1 :]]
