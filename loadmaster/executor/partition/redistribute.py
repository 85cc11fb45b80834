"""A tensor brought from one placement to another, over the process groups of a mesh: the path that was planned.

Every step is one collective along one axis (:mod:`loadmaster.models.partition.traffic`), so that what is counted here
is what was predicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from loadmaster.executor.partition.collectives import all_gather, all_reduce, all_to_all, reduce_scatter
from loadmaster.models.partition.placements import WHOLE, Placement
from loadmaster.models.partition.traffic import Hop, Traffic


class Redistributor:
    """Redistributes over one mesh.

    Args:
        mesh: with a dimension for every axis of the problem.
        traffic: of the problem.

    Attributes:
        counts: collectives so far, by name.
    """

    def __init__(self, mesh: DeviceMesh, traffic: Traffic) -> None:
        self.mesh, self.traffic = mesh, traffic
        self.counts: Counter[str] = Counter()
        self._groups = [mesh.get_group(axis) for axis in range(mesh.ndim)]
        self._ranks: Sequence[int] = mesh.get_coordinate() or ()
        self._sizes = list(mesh.shape)

    def __call__(self, share: Tensor, shape: Sequence[int], held: Placement, needed: Placement) -> Tensor:
        """A share of a tensor of that shape, in another placement.

        Args:
            share: of this rank, in the placement ``held``.
            shape: of the whole.
        """
        return self.along(share, self.traffic.path(shape, share.element_size(), held, needed))

    def along(self, share: Tensor, path: Sequence[Hop]) -> Tensor:
        """A share brought along a path."""
        for hop in path:
            share = self._step(share, hop)
        return share

    def cut(self, whole: Tensor, placement: Placement) -> Tensor:
        """This rank's share of a tensor that it has whole."""
        for axis, part in enumerate(placement):
            if part >= 0:
                whole = self._own(whole, axis, part)
        return whole.contiguous()

    def whole(self, share: Tensor, shape: Sequence[int], placement: Placement) -> Tensor:
        """The tensor that shares make up."""
        return self(share, shape, placement, (WHOLE,) * len(placement))

    def _own(self, tensor: Tensor, axis: int, dim: int) -> Tensor:
        return tensor.chunk(self._sizes[axis], dim)[self._ranks[axis]]

    def _step(self, share: Tensor, hop: Hop) -> Tensor:
        axis, part, to = hop
        group, size = self._groups[axis].group_name, self._sizes[axis]
        if hop.collective is None:
            return self._own(share, axis, to).contiguous()
        self.counts[hop.collective] += 1
        row: Tensor
        if hop.collective == "all-reduce":
            row = all_reduce(_row(share), group)
            return row.view_as(share)
        if hop.collective == "all-gather":
            row = all_gather(_row(share), size, group)
            return _joined(row.view(size, *share.shape), part)
        shape = (*share.shape[:to], size, share.shape[to] // size, *share.shape[to + 1 :])
        pieces = share.reshape(shape).movedim(to, 0)
        if hop.collective == "reduce-scatter":
            row = reduce_scatter(_row(pieces), size, group)
            return row.view(pieces.shape[1:])
        row = all_to_all(_row(pieces), size, group)
        return _joined(row.view(pieces.shape), part)


def _joined(pieces: Tensor, dim: int) -> Tensor:
    """Pieces, the first dimension, one after the other along a dimension of each; nothing is copied for the first."""
    return pieces.movedim(0, dim).flatten(dim, dim + 1)


def _row(tensor: Tensor) -> Tensor:
    """The elements in one row: collectives over the first dimension want one, and a compiler lays out a row one way."""
    return tensor.contiguous().view(-1)
