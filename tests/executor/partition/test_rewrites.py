"""Operators written anew compute what they did: graphs before and after, on the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from loadmaster.executor.partition.rewrites import REWRITES, rewritten
from loadmaster.executor.steps.tracing import trace
from tests.executor.partition.models import classes, t


class Scaled(nn.Module):
    """addmm and baddbmm with factors, and means over some dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(t(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.addmm(x, x, self.w, beta=0.5, alpha=2.0)
        z = torch.baddbmm(y.expand(2, 6, 6), y.expand(2, 6, 6), self.w.expand(2, 6, 6))
        return z.mean((0, 2), keepdim=True) + z.mean(0) + z.mean()


WEIGHTS = t(4).abs()


def weighted(x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(x, y, weight=WEIGHTS, ignore_index=1)


CASES: dict[str, tuple[nn.Module, tuple[Tensor, ...], Callable[..., Tensor]]] = {
    "products and means": (Scaled(), (t(6, 6), t(6, 6)), lambda x, y: (x * y).sum()),
    "convolution with shift": (nn.Conv2d(4, 6, 3), (t(2, 4, 8, 8), t(2, 6, 6, 6)), functional.mse_loss),
    "no gradient of the input": (nn.Conv2d(4, 6, 3, bias=False), (t(2, 4, 8, 8), t(2, 6, 6, 6)), functional.l1_loss),
    "batch norm": (nn.BatchNorm2d(4), (t(2, 4, 8, 8), t(2, 4, 8, 8)), functional.smooth_l1_loss),
    "batch norm without scale": (
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)),
        (t(6, 4), t(6, 4)),
        functional.huber_loss,
    ),
    "batch norm in evaluation": (nn.BatchNorm1d(4).eval(), (t(6, 4), t(6, 4)), functional.mse_loss),
    "cross entropy": (nn.Linear(8, 4), (t(6, 8), classes(4, 6)), weighted),
    "sum of cross entropies": (
        nn.Linear(8, 4),
        (t(6, 8), classes(4, 6)),
        lambda x, y: functional.cross_entropy(x, y, reduction="sum"),
    ),
    "of pixels": (nn.Conv2d(4, 4, 1), (t(2, 4, 8, 8), classes(4, 2, 8, 8)), functional.cross_entropy),
    "binary": (
        nn.Linear(8, 4),
        (t(6, 8), t(6, 4).sigmoid()),
        lambda x, y: (
            functional.binary_cross_entropy(x.sigmoid(), y)
            + functional.binary_cross_entropy_with_logits(x, y, reduction="sum")
        ),
    ),
}


def outcome(module: fx.GraphModule, given: dict[str, Tensor]) -> list[Any]:
    """What a graph computes of values by the names of its placeholders."""
    values = [given[str(node.target)] for node in module.graph.find_nodes(op="placeholder")]
    found = fx.Interpreter(module).run(*values, enable_io_processing=False)
    return [value for value in found if isinstance(value, Tensor)]


@pytest.mark.parametrize("name", CASES)
def test_a_graph_computes_what_it_did(name: str) -> None:
    model, batch, loss = CASES[name]
    plain = trace(model.double(), batch, loss, passes=lambda module: module)
    graph = trace(model, batch, loss, passes=rewritten)
    given: dict[str, Tensor] = {}
    for node in plain.module.graph.find_nodes(op="placeholder"):
        value = node.meta["val"]
        low = torch.randint(0, 4, value.shape, dtype=value.dtype) if not value.is_floating_point() else None
        given[str(node.target)] = (t(*value.shape).sigmoid() + 0.1).reshape(value.shape) if low is None else low
    torch.testing.assert_close(outcome(graph.module, given), outcome(plain.module, given), rtol=1e-10, atol=1e-12)
    left = [node for node in graph.nodes if node.target in REWRITES]
    assert [node for node in left if REWRITES[node.target](node) is not None] == []
