"""What the forward pass saves where kernels go on across operators, against bytes counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from loadmaster.executor.memory.operators.accounting import fused_savings_us
from loadmaster.executor.memory.operators.grouping import group
from tests.executor.memory.tracing import trace

ROWS, WIDTH = 64, 32
BIG = 4 * ROWS * WIDTH


class Bytes:
    """A microsecond for each byte that a fused kernel moves."""

    def node_us(self, node: object) -> float:
        return 0.0

    def workspace_bytes(self, node: object) -> int:
        return 0

    def move_us(self, size_bytes: int, kernels: int = 1) -> float:
        return float(size_bytes)


class Chain(nn.Module):
    """A product, functions of it one after another, a product."""

    def __init__(self, *functions) -> None:
        super().__init__()
        self.functions = functions
        self.first, self.last = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        x = self.first(x)
        for function in self.functions:
            x = function(x)
        return self.last(x).sum()


def flipped(x):
    return torch.cumsum(x, 0)


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        ((torch.relu,), {}),
        # The ReLU is kept, as 16 bits an element are as good: its reader need not read it.
        ((torch.relu, torch.exp), {"relu": BIG / 2, "exp": BIG / 2}),
        ((torch.relu, flipped, torch.relu), {}),  # a product or a scan between them ends the kernel
    ],
)
def test_what_the_next_operator_reads_need_not_be_read_again(functions, expected):
    found = group(trace(Chain(*functions), (torch.randn(ROWS, WIDTH),)), fused=True)
    names = {found.forward[f].name: us for f, us in fused_savings_us(found, Bytes()).items()}
    assert names == pytest.approx(expected)
