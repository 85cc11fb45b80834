"""Dimensions that are listed by a tensor, as MONAI's losses list them: the step is one graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.variables.tensor import TensorVariable

from loadmaster.errors import InputError
from loadmaster.executor import capture
from tests.executor.memory.plain_gradients import expect_plain_gradients

BATCH = (torch.rand(2, 1, 6, 6, 6), torch.randint(0, 2, (2, 3, 6, 6, 6)).float())


def asks():
    """What follows ``tolist`` while nothing is traced: from PyTorch 2.14 on it is in a table."""
    return getattr(TensorVariable, "tp_methods", {}).get("tolist", TensorVariable.method_tolist)


ASKS = asks()


class Dice(nn.Module):
    """One less twice the share that output and target have in common, over dimensions 2 to 4."""

    def __init__(self, listed) -> None:
        super().__init__()
        self.listed = listed

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        over = self.listed(output.dim())
        output = output.softmax(1)
        common, whole = (output * target).sum(over), output.sum(over) + target.sum(over)
        return (1.0 - 2.0 * common / (whole + 1e-5)).mean()


@pytest.mark.parametrize(
    "listed",
    [
        lambda dim: torch.arange(2, dim).tolist(),
        lambda dim: torch.arange(dim - 2).tolist(),
        lambda dim: torch.arange(dim - 1, 0, -2, device="cpu").tolist(),
    ],
    ids=["from the second on", "to the second", "backwards"],
)
def test_gradients_are_those_of_plain_pytorch(listed):
    torch.manual_seed(0)
    expect_plain_gradients(nn.Conv3d(1, 3, 3, padding=1), BATCH, Dice(listed))
    assert asks() is ASKS


@pytest.mark.parametrize(
    "listed",
    [lambda dim: torch.arange(1, dim - 1).add_(1).tolist(), lambda dim: torch.full((3,), 2).cumsum(0).tolist()],
    ids=["written to", "computed"],
)
def test_numbers_that_are_computed_are_no_graph(listed):
    with pytest.raises(InputError, match="cannot be traced as one graph"):
        capture(nn.Conv3d(1, 3, 3, padding=1), BATCH, Dice(listed), hardware="cpu")
    assert asks() is ASKS
