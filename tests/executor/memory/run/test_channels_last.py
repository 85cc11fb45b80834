"""Channels last wins where both layouts meet: the same numbers, no row-major gradient down a residual chain."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils._python_dispatch import TorchDispatchMode

from loadmaster.executor.memory.run.backends import inductor
from loadmaster.executor.memory.run.channels_last import ChannelsLast, is_channels_last, laid_out

aten = torch.ops.aten


def graph(*ops) -> fx.GraphModule:
    """Each op is called with the previous result and the second input."""
    made = fx.Graph()
    node, other = made.placeholder("x"), made.placeholder("y")
    for op, *rest in ops:
        node = made.call_function(op, (node, other, *rest) if op is not aten.view.default else (node, *rest))
    made.output(node)
    return fx.GraphModule(torch.nn.Module(), made)


@pytest.mark.parametrize("dims", [4, 5])
@pytest.mark.parametrize("turned", [False, True])
def test_either_order_of_operands_gives_channels_last(dims, turned):
    shape = (2, 3, 4, 5, 6)[:dims]
    rows = torch.randn(shape)
    channels = laid_out(torch.randn(shape))
    assert is_channels_last(channels)
    assert not is_channels_last(rows)
    operands = (channels, rows) if turned else (rows, channels)
    result = ChannelsLast(graph((aten.add.Tensor,), (aten.mul.Tensor,))).run(*operands)
    assert is_channels_last(result)
    assert torch.equal(result, (operands[0] + operands[1]) * operands[1])


def test_graphs_without_channels_last_are_left_alone():
    x, y = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    result = ChannelsLast(graph((aten.add.Tensor,))).run(x, y)
    assert result.is_contiguous()
    assert laid_out(torch.randn(3, 4)).shape == (3, 4)


def test_rows_that_are_asked_for_stay_rows():
    """A position bias is a table [tokens, tokens, heads], turned and made contiguous: attention reads its rows."""
    table = torch.randn(6, 6, 4)
    made = fx.Graph()
    turned = made.call_function(aten.permute.default, (made.placeholder("table"), [2, 0, 1]))
    heads = made.call_function(aten.unsqueeze.default, (turned, 0))
    rows = made.call_function(aten.clone.default, (heads,), {"memory_format": torch.contiguous_format})
    made.output((heads, made.call_function(aten.sin.default, (rows,))))
    heads, result = ChannelsLast(fx.GraphModule(torch.nn.Module(), made)).run(table)
    assert is_channels_last(heads)
    assert result.is_contiguous()


def test_views_traced_row_major_hold_for_channels_last():
    x = laid_out(torch.randn(2, 3, 4, 5))
    result = ChannelsLast(graph((aten.add.Tensor,), (aten.view.default, [2, -1]))).run(x, x)
    assert torch.equal(result, (x + x).reshape(2, -1))


def test_convolutions_get_their_gradient_channels_last():
    x, weight = laid_out(torch.randn(2, 3, 8, 8)), torch.randn(4, 3, 3, 3)
    gradient = torch.randn(2, 4, 6, 6)
    made = fx.Graph()
    nodes = [made.placeholder(name) for name in ("gradient", "x", "weight")]
    rest = ([0], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])
    made.output(made.call_function(aten.convolution_backward.default, (*nodes, *rest)))
    seen = []

    class Watching(ChannelsLast):
        def call_function(self, target, args, kwargs):
            seen.append(is_channels_last(args[0]))
            return super().call_function(target, args, kwargs)

    dx, dw, _ = Watching(fx.GraphModule(torch.nn.Module(), made)).run(gradient, x, weight)
    expected = aten.convolution_backward(gradient, x, weight, *rest)
    assert seen == [True]
    torch.testing.assert_close(dx, expected[0])
    torch.testing.assert_close(dw, expected[1])


def test_convolutions_can_start_it():
    x, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    made = fx.Graph()
    image, kernel = made.placeholder("image"), made.placeholder("kernel")
    rest = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    node = made.call_function(aten.convolution.default, (image, kernel, *rest))
    made.output(made.call_function(aten.relu.default, (node,)))
    module = fx.GraphModule(torch.nn.Module(), made)
    assert not is_channels_last(ChannelsLast(module).run(x, weight))
    result = ChannelsLast(module, convolutions=True).run(x, weight)
    assert is_channels_last(result)
    torch.testing.assert_close(result, torch.relu(torch.conv2d(x, weight, padding=1)))


def depthwise_gradients(layout: torch.memory_format) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """The gradients of a depthwise convolution, whose gradient is computed first; no forward convolution."""
    made = fx.Graph()
    nodes = [made.placeholder(name) for name in ("gradient", "x", "weight")]
    doubled = made.call_function(aten.mul.Tensor, (nodes[0], nodes[0]))
    rest = ([4], [1, 1], [1, 1], [1, 1], False, [0, 0], 4, [True, True, False])
    gradients = made.call_function(aten.convolution_backward.default, (doubled, *nodes[1:], *rest))
    made.output(tuple(made.call_function(operator.getitem, (gradients, i)) for i in range(2)))
    inputs = [torch.randn(2, 4, 8, 8).to(memory_format=layout) for _ in range(2)]
    return fx.GraphModule(torch.nn.Module(), made), [*inputs, torch.randn(4, 1, 3, 3)]


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_gradients_of_depthwise_convolutions_are_computed_in_the_layout_that_there_is(layout):
    module, inputs = depthwise_gradients(layout)
    mode = FakeTensorMode()
    FakeTensorProp(module, mode).propagate(*inputs)
    want = module(*inputs)
    compiled = inductor(module, [mode.from_tensor(t) for t in inputs])
    read: list[torch.Tensor] = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is aten.convolution_backward.default:
                read.extend(args[:2])
            return func(*args, **(kwargs or {}))

    with Watching():
        got = compiled(list(inputs))
    assert len(read) == 2
    assert read[1].data_ptr() == inputs[1].data_ptr()  # no copy
    assert all(t.is_contiguous(memory_format=layout) for t in read)
    for have, expected in zip(got, want, strict=True):
        torch.testing.assert_close(have, expected)


def test_rows_between_convolutions_stay_rows():
    """ConvNeXt: a LayerNorm's result has four dimensions, of which the channels are the last already."""
    made = fx.Graph()
    image, kernel, other = (made.placeholder(name) for name in ("image", "kernel", "other"))
    rest = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    first = made.call_function(aten.convolution.default, (image, kernel, *rest))
    rows = made.call_function(aten.sin.default, (made.call_function(aten.permute.default, (first, [0, 2, 3, 1])),))
    turned = made.call_function(aten.permute.default, (rows, [0, 3, 1, 2]))
    made.output((rows, made.call_function(aten.convolution.default, (turned, other, *rest))))
    module = fx.GraphModule(torch.nn.Module(), made)
    inputs = [torch.randn(2, 3, 8, 9), torch.randn(16, 3, 3, 3), torch.randn(16, 16, 3, 3)]
    mode = FakeTensorMode()
    FakeTensorProp(module, mode).propagate(*inputs)
    want = module(*inputs)
    compiled = inductor(module, [mode.from_tensor(t) for t in inputs])
    got = compiled(list(inputs))
    torch.testing.assert_close(got, want)
    assert got[0].is_contiguous()
    assert is_channels_last(got[1])
