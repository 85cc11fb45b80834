"""Strategies of an operator as its tensors see them, where it is given views of them.

A strategy splits an index. Where a dimension of that index is several dimensions of the tensor, joined by a view, each
of them can be split (:mod:`loadmaster.models.partition.views`): rows [batch x sequence] along the batch or along the
sequence, in all tensors in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadmaster.models.partition.placements import code
from loadmaster.models.partition.problem import Need, Part, Strategy
from loadmaster.models.partition.views import Cut, ShapeView


@dataclass(frozen=True)
class Seen:
    """A strategy for the tensors themselves, with the index that is split and the cut of each view, of inputs and then
    of results; None where it is not split."""

    strategy: Strategy
    index: str
    cuts: tuple[Cut | None, ...]


def through_views(strategies: Sequence[Strategy], views: Sequence[ShapeView]) -> list[Seen]:
    """The strategies that are some of the tensors' own. Views are of each input, and of each result: how the operator
    makes it, of how it is kept."""
    return [seen for strategy in strategies for seen in _seen(strategy, views)]


def _seen(strategy: Strategy, views: Sequence[ShapeView]) -> Iterator[Seen]:
    parts = [code(part) for part in (*(need.part for need in strategy.inputs), *strategy.outputs)]
    slots = [(slot, part) for slot, part in enumerate(parts) if part >= 0]
    starts = [set(views[slot].starts(part)) for slot, part in slots]
    common = sorted({1}.union(*starts).intersection(*(s | {1} for s in starts))) if starts else []
    for outer in common:
        cuts: list[Cut | None] = [None] * len(parts)
        own: list[Part] = [*(need.part for need in strategy.inputs), *strategy.outputs]
        shares = 0
        for slot, part in slots:
            cuts[slot] = cut = Cut(part, outer)
            found = views[slot].traced(cut) if views[slot].stages else Cut(part, outer, views[slot].of[part])
            if found is None or found.outer != 1:
                break
            own[slot] = "R" if found.dim < 0 else f"S{found.dim}"
            shares = math.gcd(shares, found.unit)
        else:
            count = len(strategy.inputs)
            plain = all(views[slot].is_identity for slot, _ in slots)
            name = strategy.name if outer == 1 else f"{strategy.name}.{outer}"
            yield Seen(
                Strategy(
                    name,
                    tuple(map(Need, own[:count])),
                    tuple(own[count:]),
                    divides=strategy.divides,
                    shares_divide=None if plain else shares,
                ),
                strategy.name,
                tuple(cuts),
            )
