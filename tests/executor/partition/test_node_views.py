"""Views of shares: random chains of views, each split wherever it can be, are shares of the view."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from loadmaster.executor.partition.on_shares import on_share
from loadmaster.models.partition.views import Cut, ShapeView


def chain(rng: random.Random) -> tuple[Tensor, Tensor, ShapeView]:
    """A tensor, a view of it, and what is known of that."""
    shape = tuple(rng.choice((1, 2, 4, 6)) for _ in range(rng.randint(1, 4)))
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape)
    seen, view = tensor, ShapeView(shape)
    for _ in range(rng.randint(1, 5)):
        rank, what = seen.dim(), rng.choice(("join", "part", "order", "slice", "spread", "one"))
        made: ShapeView | None = view
        if what == "join" and rank > 1:
            d = rng.randrange(rank - 1)
            joined = (*seen.shape[:d], seen.shape[d] * seen.shape[d + 1], *seen.shape[d + 2 :])
            seen, made = seen.reshape(joined), view.reshaped(joined)
        elif what == "part" and rank:
            d = rng.randrange(rank)
            for of in (2, 3):
                if seen.shape[d] % of == 0:
                    parted = (*seen.shape[:d], of, seen.shape[d] // of, *seen.shape[d + 1 :])
                    seen, made = seen.reshape(parted), view.reshaped(parted)
                    break
        elif what == "order" and rank:
            order = rng.sample(range(rank), rank)
            seen, made = seen.permute(order), view.permuted(order)
        elif what == "slice" and rank:
            d = rng.randrange(rank)
            if seen.shape[d] > 2:
                seen, made = seen.narrow(d, 1, seen.shape[d] - 2), view.sliced(d, 1, seen.shape[d] - 1)
        elif what == "spread":
            wide = (2, *(4 if extent == 1 else extent for extent in seen.shape))
            seen, made = seen.expand(wide), view.expanded(wide)
        elif what == "one":
            seen, made = seen.unsqueeze(0), view.reshaped((1, *seen.shape))
        if made is None:
            break
        view = made
        assert view.shape == tuple(seen.shape)
    return tensor, seen, view


def share(tensor: Tensor, cut: Cut, shares: tuple[int, ...], worker: int) -> Tensor:
    """A worker's share along a part of a dimension."""
    before, extent, after = tensor.shape[: cut.dim], tensor.shape[cut.dim], tensor.shape[cut.dim + 1 :]
    inner = tensor.reshape(*before, cut.outer, extent // cut.outer, *after)
    return piece(inner, cut.dim + 1, shares, worker).flatten(cut.dim, cut.dim + 1)


def piece(tensor: Tensor, dim: int, shares: tuple[int, ...], worker: int) -> Tensor:
    unit = tensor.shape[dim] // sum(shares)
    return tensor.narrow(dim, unit * sum(shares[:worker]), unit * shares[worker])


@pytest.mark.parametrize("seed", range(20))
def test_shares_of_a_view_are_views_of_shares(seed: int) -> None:
    rng = random.Random(seed)
    tried = 0
    while tried < 20:
        tensor, seen, view = chain(rng)
        if view.shape != tuple(seen.shape):
            continue
        assert torch.equal(on_share(view, [])(tensor), seen)
        for dim in range(seen.dim()):
            for outer in view.starts(dim):
                cut = Cut(dim, outer)
                found = view.traced(cut)
                for shares in ((1, 1), (1, 1, 1), (2, 1), (1, 3)):
                    if found is None or found.outer != 1 or found.unit % sum(shares):
                        continue
                    for worker, units in enumerate(shares):
                        own = tensor if found.dim < 0 else piece(tensor, found.dim, shares, worker)
                        local = on_share(view, [(cut, Fraction(units, sum(shares)))])(own)
                        assert torch.equal(local, share(seen, cut, shares, worker))
                        tried += 1
