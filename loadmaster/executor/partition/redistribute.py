"""A tensor brought from one placement to another, over the process groups of a mesh: the path that was planned.

Every step is one collective along one axis (:mod:`loadmaster.models.partition.traffic`), so that what is counted here
is what was predicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from loadmaster.models.partition.placements import TERM, WHOLE, Placement
from loadmaster.models.partition.traffic import Hop, Traffic

# Operators, and so traceable; torch.distributed's own names for them change from version to version.
_ops = torch.ops._c10d_functional


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
        for hop in self.traffic.path(shape, share.element_size(), held, needed):
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
        group, size = self._groups[axis], self._sizes[axis]
        if part == WHOLE:
            return self._own(share, axis, to).contiguous()
        name = group.group_name
        if part == TERM and to == WHOLE:
            return self._done("all-reduce", _ops.all_reduce(share.contiguous(), "sum", name))
        if to == WHOLE:
            gathered = self._done("all-gather", _ops.all_gather_into_tensor(_rows(share), size, name))
            pieces = gathered.view(size, *share.shape)
            return torch.cat(list(pieces.unbind(0)), part)
        pieces = torch.stack(share.chunk(size, to))
        shape = pieces.shape[1:]
        if part == TERM:
            found = self._done("reduce-scatter", _ops.reduce_scatter_tensor(_rows(pieces), "sum", size, name))
            return found.view(shape)
        given = [1] * size
        pieces = self._done("all-to-all", _ops.all_to_all_single(pieces, given, given, name))
        return torch.cat(list(pieces.unbind(0)), part)

    def _done(self, name: str, result: Tensor) -> Tensor:
        self.counts[name] += 1
        found: Tensor = _ops.wait_tensor(result)
        return found


def _rows(tensor: Tensor) -> Tensor:
    """The elements in one row, as collectives over the first dimension want them: even one number has a row."""
    return tensor.contiguous().view(-1)
