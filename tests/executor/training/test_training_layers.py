"""Groups of parameters are of sizes that are worth a move, and need little room while they are updated."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from loadmaster.executor.training import layers as layers_module
from loadmaster.executor.training.layers import layers_of


class Blocks(nn.Module):
    """Blocks of linear layers with these numbers of weights, in thousands."""

    def __init__(self, *thousands: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleList(nn.Linear(1000, n, bias=False) for n in thousands) for _ in range(2))


def groups(monkeypatch: pytest.MonkeyPatch, *thousands: int) -> list[tuple[tuple[int, ...], list[int]]]:
    """Layers of each group, and its parameters in thousands, where parts are of 100,000 weights."""
    monkeypatch.setattr(layers_module, "SMALL_ELEMENTS", 1000)
    monkeypatch.setattr(layers_module, "PART_ELEMENTS", 100_000)
    with torch.device("meta"):
        model = Blocks(*thousands)
    found = layers_of(model, torch.optim.SGD(model.parameters()))
    return [(of.layers, [p.numel() // 1000 for p in of.parameters]) for of in found.groups]


@pytest.mark.parametrize(
    ("thousands", "parts"),
    [
        ((99, 100), [[99, 100]]),
        ((100, 100), [[100], [100]]),
        # A block of Llama: attention, gate, up and down.
        ((94, 31, 31, 94, 250, 250, 250), [[94, 31, 31, 94], [250], [250], [250]]),
        ((10, 900), [[10], [900]]),
        ((900,), [[900]]),
        ((50,) * 12, [[50] * 3] * 4),
    ],
)
def test_parameters_of_a_block_are_cut_into_parts_of_about_one_size(
    monkeypatch: pytest.MonkeyPatch, thousands: tuple[int, ...], parts: list[list[int]]
) -> None:
    assert groups(monkeypatch, *thousands) == [((n,), part) for n in (1, 2) for part in parts]
