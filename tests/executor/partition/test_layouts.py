"""Layouts of a compiled backward pass: gradients are turned once for all convolutions, and stay what they were."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from loadmaster.executor.partition.compiled import as_made, turn_gradients

aten = torch.ops.aten
SHAPE = (2, 4, 6, 6)


def convolution_backward(gradient: Tensor, saved: Tensor, weight: Tensor, mask: list[bool]) -> Any:
    return aten.convolution_backward(
        gradient, saved, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [*mask, False]
    )


def residual(x: Tensor, weight: Tensor, tangent: Tensor) -> list[Tensor]:
    """Two blocks x + conv(x), backwards: the weight's gradients, the input's, and a share of a weight's, in a row."""
    gradient = tangent.expand(SHAPE).clone(memory_format=torch.contiguous_format)
    found = []
    for _ in range(2):
        of_weight = convolution_backward(gradient, x, weight, [False, True])[1]
        found.append(of_weight.view(-1))
        gradient = gradient + convolution_backward(gradient, x, weight, [True, False])[0]
    return [gradient, *found]


def traced(mode: FakeTensorMode, given: list[Tensor]) -> fx.GraphModule:
    with mode:
        return make_fx(residual)(*(torch.empty(one.shape, dtype=one.dtype) for one in given))


def test_gradients_are_turned_once() -> None:
    given = [torch.randn(SHAPE, dtype=torch.float64), torch.randn(4, 4, 3, 3, dtype=torch.float64)]
    given.append(torch.randn((), dtype=torch.float64))
    wanted = residual(*given)
    given[0] = given[0].contiguous(memory_format=torch.channels_last)
    mode = FakeTensorMode()
    module = traced(mode, given)
    fakes = as_made(module, [given[0].stride(), None], mode)
    assert fakes[0].stride() == given[0].stride() and fakes[1].is_contiguous()
    turn_gradients(module, fakes, mode)
    turned = [node for node in module.graph.nodes if node.kwargs.get("memory_format") is torch.channels_last]
    assert len(turned) == 1, module.graph
    for one, expected in zip(module(*given), wanted, strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-12, atol=1e-12)


def test_nothing_is_turned_for_contiguous_values() -> None:
    given = [torch.randn(SHAPE), torch.randn(4, 4, 3, 3), torch.randn(())]
    mode = FakeTensorMode()
    module = traced(mode, given)
    before = len(module.graph.nodes)
    turn_gradients(module, as_made(module, [None, None], mode), mode)
    assert len(module.graph.nodes) == before
