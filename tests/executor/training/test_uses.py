"""The graph of a loss tells which layers read a parameter, and leaves out what it cannot tell."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from loadmaster.executor.torch_private.autograd import next_sequence_number
from loadmaster.executor.training.uses import layers_that_read

LAST = 9


class Net(nn.Module):
    """Two blocks between what reads weights in all the ways that models do; notes when the blocks run."""

    def __init__(self, reads: str) -> None:
        super().__init__()
        self.reads, self.moments = reads, [0, 0]
        self.weight, self.other = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = x @ self.other
        if "embeds" in self.reads:
            x = x + F.embedding(torch.tensor([0]), self.weight)
        if "before" in self.reads:
            x = F.linear(x, self.weight)
        self.moments[0] = next_sequence_number()
        x = torch.tanh(x)
        if "between" in self.reads:
            x = F.linear(x, self.weight)
        x = torch.tanh(x)
        self.moments[1] = next_sequence_number()
        if "after" in self.reads:
            x = F.linear(x, self.weight)
        if "hidden" in self.reads:
            x = checkpoint(F.linear, x, self.weight, use_reentrant=True)
        return x.sum()


@pytest.mark.parametrize(
    ("reads", "layers"),
    [
        ("before", (0,)),
        ("embeds", (0,)),
        ("after", (LAST,)),
        ("embeds, after", (0, LAST)),
        ("before, after", (0, LAST)),
        ("before, between, after", None),
        ("between", None),
        ("", None),
        # A checkpoint reads it as an argument.
        ("hidden", (LAST,)),
    ],
)
@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
def test_layers_that_read_a_weight(reads: str, layers: tuple[int, ...] | None, autocast: bool) -> None:
    net = Net(reads)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = net(torch.randn(1, 8))
    found = layers_that_read(loss, [net.weight, net.other], *net.moments, LAST)
    assert found.get(net.weight) == layers
    assert found[net.other] == (0,)


def test_a_frozen_weight_is_left_out() -> None:
    net = Net("before")
    net.weight.requires_grad_(requires_grad=False)
    assert layers_that_read(net(torch.randn(1, 8)), [net.weight], *net.moments, LAST) == {}
