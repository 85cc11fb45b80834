"""Convolution backward in two operators: the gradients of plain PyTorch, without the input for the second."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from joint_graphs import arguments, flat, joint_graph
from torch import nn

from loadmaster.executor.memory.implementations.passes import run_passes

aten = torch.ops.aten
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 2e-2}


def split(module, x):
    """The prepared joint graph, and what it gives beside what the graph as it stands gives."""
    joint = joint_graph(module, x)
    prepared = run_passes(joint)
    args = arguments(module, [x], [torch.randn_like(module(x))])
    return prepared, flat(prepared(*args)), flat(joint(*args))


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    size=st.tuples(st.integers(1, 11), st.integers(1, 11)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    output_padding=st.integers(0, 1),
    groups=st.sampled_from([1, 2]),
    transposed=st.booleans(),
    bias=st.booleans(),
)
def test_every_window(size, kernel, stride, padding, dilation, output_padding, groups, transposed, bias):
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "bias": bias}
    if transposed:
        assume(all(output_padding < max(s, d) for s, d in zip(stride, dilation, strict=True)))
        made = [
            (i - 1) * s - 2 * p + d * (k - 1) + 1 + output_padding
            for i, s, p, d, k in zip(size, stride, padding, dilation, kernel, strict=True)
        ]
        assume(min(made) > 0)
        layer = nn.ConvTranspose2d(4, 6, kernel, output_padding=output_padding, **options)
    else:
        reach = [d * (k - 1) + 1 - 2 * p for d, k, p in zip(dilation, kernel, padding, strict=True)]
        assume(all(s >= r for s, r in zip(size, reach, strict=True)))
        layer = nn.Conv2d(4, 6, kernel, **options)
    module = nn.Sequential(nn.Conv2d(3, 4, 1), layer).double()
    prepared, got, expected = split(module, torch.randn(2, 3, *size, dtype=torch.float64))
    for have, want in zip(got, expected, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-11, atol=1e-11)
        assert have.stride() == want.stride()
    backward = prepared.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    assert any(n.args[10][0] is False for n in backward) or (transposed and output_padding >= min(stride))


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_input_is_read_for_the_weight_alone(layout, dtype):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 5, 3, 2)).to(dtype).to(memory_format=layout)
    x = torch.randn(2, 3, 9, 8).to(dtype).to(memory_format=layout)
    prepared, got, expected = split(module, x)
    for have, want in zip(got, expected, strict=True):
        torch.testing.assert_close(have, want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        assert have.stride() == want.stride()
    (transposed,) = (
        n for n in prepared.graph.find_nodes(op="call_function", target=aten.convolution.default) if n.args[6]
    )
    assert not any("tanh" in n.name for n in transposed.all_input_nodes)
    parameters = [n for n in prepared.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)]
    assert [n.args[10] for n in parameters] == [[False, True, True]] * 2
    assert not any("copy" in n.name for n in prepared.graph.nodes)


def test_other_dimensions():
    for layer, shape in ((nn.Conv1d(3, 4, 3, 2), (2, 3, 10)), (nn.Conv3d(3, 4, 3, 2, 1), (2, 3, 6, 5, 4))):
        first = type(layer)(3, 3, 1)
        _, got, expected = split(nn.Sequential(first, layer).double(), torch.randn(shape, dtype=torch.float64))
        for have, want in zip(got, expected, strict=True):
            torch.testing.assert_close(have, want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("why", ["depthwise", "frozen weight"])
def test_left_whole(why):
    layer = nn.Conv2d(4, 4, 3, groups=4 if why == "depthwise" else 1)
    if why == "frozen weight":
        layer.requires_grad_(False)
    joint = joint_graph(nn.Sequential(nn.Conv2d(3, 4, 1), layer), torch.randn(2, 3, 6, 6))
    count = len(joint.graph.find_nodes(op="call_function", target=aten.convolution.default))
    prepared = run_passes(joint)
    assert len(prepared.graph.find_nodes(op="call_function", target=aten.convolution.default)) == count
