"""Max-pool backward from 8-bit offsets: the bits of PyTorch's own backward."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from joint_graphs import arguments, flat, joint_graph, substitute
from torch import nn

from loadmaster.executor.memory.implementations.pooling import (
    MaxPoolFromOffsets,
    pool_indices,
    pool_offset_backward,
    pool_offsets,
)

aten = torch.ops.aten


@settings(max_examples=40, deadline=None)
@given(
    planes=st.tuples(st.integers(0, 3), st.integers(1, 3)),
    size=st.tuples(st.integers(1, 13), st.integers(1, 13)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padded=st.booleans(),
    ceil_mode=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_offsets_hold_what_the_indices_hold(planes, size, kernel, stride, dilation, padded, ceil_mode, dtype):
    padding = [k // 2 if padded else 0 for k in kernel]
    for s, k, d, p in zip(size, kernel, dilation, padding, strict=True):
        # The second: PyTorch's own indices leave the plane where a dilated window has no element inside it.
        assume(s + 2 * p >= d * (k - 1) + 1 and s >= d)
    kernel, stride, dilation = list(kernel), list(stride), list(dilation)
    x = torch.randn(*planes, *size).round(decimals=1).to(dtype)
    output, indices = aten.max_pool2d_with_indices(x, kernel, stride, padding, dilation, ceil_mode)
    offsets = pool_offsets(indices, size[1], kernel, stride, padding, dilation)
    assert torch.equal(pool_indices(offsets, size[1], kernel, stride, padding, dilation), indices)
    gradient = torch.randn(output.shape).to(dtype)
    expected = aten.max_pool2d_with_indices_backward(gradient, x, kernel, stride, padding, dilation, ceil_mode, indices)
    got = pool_offset_backward(gradient, offsets, *size, kernel, stride, padding, dilation, ceil_mode)
    assert torch.equal(got, expected)


def test_the_layout_of_gradient_and_offsets_does_not_matter():
    window = ([3, 3], [2, 2], [1, 1], [1, 1])
    x = torch.randn(2, 8, 12, 12).relu()
    output, indices = aten.max_pool2d_with_indices(x, *window)
    gradient = torch.randn_like(output)
    expected = aten.max_pool2d_with_indices_backward(gradient, x, *window, False, indices)
    layouts = (torch.contiguous_format, torch.channels_last)
    for first in layouts:
        for second in layouts:
            offsets = pool_offsets(indices.to(memory_format=second), 12, *window).to(memory_format=second)
            got = pool_offset_backward(gradient.to(memory_format=first), offsets, 12, 12, *window, False)
            assert torch.equal(got, expected)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2), nn.MaxPool2d((3, 2), (2, 1), (1, 0), ceil_mode=True)]
)
def test_joint_graph_with_offsets_gives_the_same_bits(pool, layout):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), pool).to(memory_format=layout)
    x = torch.randn(2, 3, 14, 11).to(memory_format=layout)
    joint = joint_graph(module, x)
    changed, sites = substitute(joint, MaxPoolFromOffsets())
    assert sites == 1
    args = arguments(module, [x], [torch.randn_like(module(x))])
    for got, expected in zip(flat(changed(*args)), flat(joint(*args)), strict=True):
        assert torch.equal(got, expected)
        assert got.stride() == expected.stride()
    backward = next(n for n in changed.graph.nodes if "pool_offset_backward" in n.name)
    read = {n.name for n in backward.all_input_nodes}
    assert not any("convolution" in name or "getitem" in name for name in read)


def test_windows_of_more_than_a_byte_are_left_alone():
    joint = joint_graph(nn.Sequential(nn.Conv2d(1, 1, 1), nn.MaxPool2d(17)), torch.randn(1, 1, 17, 17))
    assert not MaxPoolFromOffsets().sites(joint)


def test_operators_pass_the_framework_checks():
    window = ([3, 3], [2, 2], [1, 1], [1, 1])
    output, indices = aten.max_pool2d_with_indices(torch.randn(1, 2, 7, 7), *window)
    torch.library.opcheck(pool_offsets, (indices, 7, *window))
    offsets = pool_offsets(indices, 7, *window)
    torch.library.opcheck(pool_offset_backward, (torch.randn_like(output), offsets, 7, 7, *window, False))
