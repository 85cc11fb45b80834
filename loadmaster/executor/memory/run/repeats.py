"""Cuts where a graph repeats itself, so that its layers are compiled once.

A compiler takes a network of 24 equal layers for one graph and compiles each of them, which is most of the wait for a
step. Before and after a product or a convolution values are in memory anyway, and a cut costs no fusion.

Operators are compared by what they are: target, constants, and the shapes, types and strides of their results. Shifted
by one period, the part of a graph that repeats itself equals itself::

    operators             embed  mm gelu mm norm  mm gelu mm norm  mm gelu mm norm  loss
    the same, 4 later?    no     yes yes yes yes  yes yes yes yes  no ...

The period that saves the most operators is taken, then the same is asked of what is left before and after it. Within a
period the place is taken where the least is lost. Cutting is all that is done here: pieces may still differ in what
they read, and then each is compiled.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, fx

from loadmaster.executor.costs.traffic import value_bytes, value_of
from loadmaster.executor.memory.operators.fusion import is_fusible
from loadmaster.executor.steps.step_graph import is_alias, is_compute, is_mutating, tensors, views_of

_LAGS = 16
"""A layer may have so many equal products: periods are the distances from each to as many after it."""
_KERNELS = 2
"""A period has at least this many kernels that do not fuse: less is not worth a call."""


@dataclass(frozen=True, order=True)
class _Repeated:
    """Repetition of ``count`` periods from ``first`` on; the better, the more it saves, and the shorter its period."""

    saved: int
    negative_period: int
    first: int
    count: int

    @property
    def places(self) -> range:
        """Places where periods begin, and where the last one ends."""
        period = -self.negative_period
        return range(self.first, self.first + self.count * period + 1, period)


def repeated_pieces(run: Sequence[fx.Node]) -> list[Sequence[fx.Node]]:
    """The run of nodes, cut where it repeats itself; the whole run where it does not."""
    places = [0, *_Run(run).cuts(0, len(run)), len(run)]
    return [run[a:b] for a, b in itertools.pairwise(places) if a < b]


def described(node: fx.Node, named: Callable[[fx.Node], str] = lambda _: "") -> Hashable:
    """Key of a node without its name: equal for operators that compile to the same code.

    Args:
        named: what to call the nodes that it reads.
    """
    arguments = fx.node.map_arg((node.args, node.kwargs), named)
    target = node.target if node.op == "call_function" else None
    return node.op, target, str(arguments), described_tensors(tensors(value_of(node)))


def described_tensors(tensors: Iterable[Tensor]) -> Hashable:
    """Key of tensors, with all that a compiler knows of them."""
    return tuple((t.dtype, t.device, tuple(t.shape), t.stride(), t.storage_offset()) for t in tensors)


class _Run:
    def __init__(self, run: Sequence[fx.Node]) -> None:
        fusible = [is_fusible(n) for n in run]
        kernels = [is_compute(n) and not f and not is_mutating(n) for n, f in zip(run, fusible, strict=True)]
        self.kernels = np.array(kernels, np.int64)
        known: dict[Hashable, int] = {}
        self.kinds = np.array([known.setdefault(described(n), len(known)) for n in run], np.int64)
        self.losses = _losses(run, fusible, kernels)

    def cuts(self, start: int, end: int) -> list[int]:
        """Places to cut at between two, in ascending order."""
        best = max(self._repeated(start, end), default=None)
        if best is None:
            return []
        first, last = best.places[0], best.places[-1]
        inside = [p for p in best.places if start < p < end]
        return [*self.cuts(start, first), *inside, *self.cuts(last, end)]

    def _repeated(self, start: int, end: int) -> Iterator[_Repeated]:
        kinds, kernels = self.kinds[start:end], self.kernels[start:end]
        for period in _periods(kinds, kernels):
            for begin, stop in _stretches(kinds[:-period] == kinds[period:]):
                if stop - begin < period or kernels[begin : begin + period].sum() < _KERNELS:
                    continue
                first = start + begin
                first = min(range(first, first + period), key=self.losses.__getitem__)
                count = (start + stop + period - first) // period
                is_possible = not self.losses[first][0]
                if is_possible and count > 1:
                    yield _Repeated((count - 1) * period, -period, first, count)


def _periods(kinds: NDArray[np.int64], kernels: NDArray[np.int64]) -> set[int]:
    """Distances between kernels of a kind."""
    places = defaultdict(list)
    for place in np.flatnonzero(kernels).tolist():
        places[int(kinds[place])].append(place)
    return {
        later - place
        for equal in places.values()
        for n, place in enumerate(equal)
        for later in equal[n + 1 : n + 1 + _LAGS]
    }


def _stretches(same: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Stretches of True without a break: (begin, end) of each."""
    changes = np.flatnonzero(np.diff(same, prepend=False, append=False))
    return [(begin, end) for begin, end in changes.reshape(-1, 2).tolist()]


def _losses(run: Sequence[fx.Node], fusible: Sequence[bool], kernels: Sequence[bool]) -> list[tuple[int, int, int]]:
    """Cost of a cut before each node: values that cannot cross it, bytes that stay inside a fused kernel otherwise, and
    all that cross."""
    place = {node: n for n, node in enumerate(run)}
    changes = np.zeros((len(run) + 1, 3), np.int64)
    behind = _behind_kernels(run, place, kernels)
    for node in run:
        if is_alias(node):
            continue
        made = place[node]
        own = {node, *views_of(node)}
        readers = [place[u] for value in own for u in value.users if u in place and u not in own]
        fused = [p for p in readers if fusible[made] and fusible[p] and not behind[p] >> made & 1]
        # Of several results only the elements are handed over.
        stays = readers if not isinstance(value_of(node), Tensor) else []
        size = value_bytes(value_of(node))
        for column, (crossing, cost) in enumerate(((stays, 1), (fused, size), (readers, size))):
            if crossing:
                changes[made + 1, column] += cost
                changes[max(crossing) + 1, column] -= cost
    return [(stay, lost, crossing) for stay, lost, crossing in np.cumsum(changes, axis=0).tolist()]


def _behind_kernels(run: Sequence[fx.Node], place: Mapping[fx.Node, int], kernels: Sequence[bool]) -> list[int]:
    """Bits for each node: the nodes that it can be in no fused kernel with, since one that does not fuse is between."""
    before: list[int] = []
    behind: list[int] = []
    for node in run:
        sources = [place[source] for source in node.all_input_nodes if source in place]
        before.append(functools.reduce(operator.or_, (before[s] | 1 << s for s in sources), 0))
        apart = (before[s] if kernels[s] else behind[s] for s in sources)
        behind.append(functools.reduce(operator.or_, apart, 0))
    return behind
