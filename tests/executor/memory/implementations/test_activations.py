"""ReLU and hardtanh backward from other results: the same bits as plain PyTorch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from joint_graphs import arguments, flat, joint_graph, substitute
from torch import nn

from loadmaster.errors import InputError
from loadmaster.executor.memory.implementations.masks import masked_gradient, pack_inside, packed_shape
from loadmaster.executor.memory.implementations.passes import run_passes
from loadmaster.executor.memory.implementations.registry import alternatives
from loadmaster.executor.steps.layouts import is_dense

BY_NAME = {a.name: a for a in alternatives()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("relu_input", nn.ReLU()),
        ("relu_mask", nn.ReLU()),
        ("relu_mask", nn.Threshold(0.5, 3.0)),
        ("hardtanh_input", nn.ReLU6()),
        ("hardtanh_input", nn.Hardtanh(-0.5, 0.75)),
        ("hardtanh_mask", nn.Hardtanh()),
        ("hardtanh_mask", nn.ReLU6()),
    ],
)
def test_joint_graph_with_the_alternative_gives_the_same_bits(name, activation, dtype):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 7), activation, nn.Linear(7, 3)).to(dtype)
    x = 4 * torch.randn(11, 5, dtype=dtype)
    joint = joint_graph(module, x)
    prepared = run_passes(joint)
    changed, sites = substitute(prepared, BY_NAME[name])
    assert sites == 1
    args = arguments(module, [x], [torch.randn(11, 3, dtype=dtype)])
    for got, expected in zip(flat(changed(*args)), flat(joint(*args)), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("name", ["relu_input", "relu_mask"])
def test_channels_last_keeps_its_strides(name):
    module = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 2, 3)).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 9, 7).to(memory_format=torch.channels_last)
    joint = joint_graph(module, x)
    changed, sites = substitute(joint, BY_NAME[name])
    assert sites == 1
    args = arguments(module, [x], [torch.randn(2, 2, 5, 3).to(memory_format=torch.channels_last)])
    for got, expected in zip(flat(changed(*args)), flat(joint(*args)), strict=True):
        assert torch.equal(got, expected)
        assert got.stride() == expected.stride()
    assert not any("copy" in n.name or "clone" in n.name for n in changed.graph.nodes)
    for node in changed.graph.nodes:
        if "loadmaster" in str(node.target):
            assert node.meta["val"].is_contiguous(memory_format=torch.channels_last)


def test_limits_that_the_dtype_rounds_are_no_site():
    module = nn.Sequential(nn.Linear(2, 2), nn.Hardtanh(-0.1, 0.1)).to(torch.bfloat16)
    joint = run_passes(joint_graph(module, torch.randn(2, 2, dtype=torch.bfloat16)))
    assert not BY_NAME["hardtanh_input"].sites(joint)
    assert not BY_NAME["hardtanh_mask"].sites(joint)


SHAPES = st.lists(st.integers(0, 19), max_size=5).filter(lambda shape: math.prod(shape) < 20_000)


@settings(max_examples=60, deadline=None)
@given(
    shape=SHAPES,
    dtype=st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16]),
    orders=st.tuples(st.randoms(), st.randoms()),
    seed=st.integers(0, 1000),
)
def test_mask_is_threshold_backward_in_every_pair_of_layouts(shape, dtype, orders, seed):
    generator = torch.Generator().manual_seed(seed)
    x, gradient = (torch.randn(shape, generator=generator).round(decimals=1).to(dtype) for _ in range(2))
    x[torch.rand(shape, generator=generator) < 0.1] = float("nan")
    x, gradient = (laid_out(t, order) for t, order in zip((x, gradient), orders, strict=True))
    mask = pack_inside(x, 0.0)
    assert list(mask.shape) == packed_shape(shape)
    assert is_dense(mask)
    got = masked_gradient(gradient, mask)
    assert torch.equal(got, torch.ops.aten.threshold_backward(gradient, x, 0))
    assert got.stride() == gradient.stride()
    got = masked_gradient(gradient, pack_inside(x, -0.5, 0.5))
    # PyTorch's own kernel on the CPU passes the gradient of a NaN on in some places and not in others.
    expected = gradient.where(x.isnan(), torch.ops.aten.hardtanh_backward(gradient, x, -0.5, 0.5))
    assert torch.equal(got, expected)


def laid_out(tensor, random):
    """The same values with the dimensions in another order of memory."""
    order = list(range(tensor.dim()))
    random.shuffle(order)
    back = sorted(order, key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(back)


@pytest.mark.parametrize(
    ("shape", "packed"),
    [
        ((184, 64, 112, 112), (184, 8, 112, 112)),
        ((32, 1024, 1024), (32, 1024, 128)),
        ((6, 5, 7, 7), (6, 5, 7, 1)),
        ((2, 3, 24, 9), (2, 3, 3, 9)),
        ((), (1,)),
    ],
)
def test_eight_elements_of_one_dimension_share_a_byte(shape, packed):
    assert packed_shape(shape) == list(packed)


def test_an_expanded_gradient_is_masked_too():
    x = torch.randn(4, 8, 5, 5)
    gradient = torch.randn(4, 8, 1, 1).expand(x.shape)
    got = masked_gradient(gradient, pack_inside(x, 0.0, 1.5))
    assert torch.equal(got, torch.ops.aten.hardtanh_backward(gradient, x, 0.0, 1.5))


def test_special_values():
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-45, 6.0, 3.0, 7.0])
    g = torch.arange(1.0, 10.0)
    assert torch.equal(masked_gradient(g, pack_inside(x, 0.0)), torch.ops.aten.threshold_backward(g, x, 0))
    expected = torch.ops.aten.hardtanh_backward(g, x, 0.0, 6.0)
    assert torch.equal(masked_gradient(g, pack_inside(x, 0.0, 6.0)), expected)


def test_operators_pass_the_framework_checks():
    x = torch.randn(3, 5)
    torch.library.opcheck(pack_inside, (x, 0.0))
    torch.library.opcheck(masked_gradient, (x, pack_inside(x, 0.0)))


def test_mask_of_another_shape_is_refused():
    with pytest.raises(InputError, match=r"mask.*Pass the uint8 \[2\]"):
        masked_gradient(torch.randn(9), torch.zeros(1, dtype=torch.uint8))
